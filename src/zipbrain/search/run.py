"""`search`: the paper's two-stage search for a model on a corpus; resumable, on this machine or a cluster."""

from __future__ import annotations

import math
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation.metrics import main_metric
from zipbrain.evaluation.options import RATIOS, read_ratio, read_ratios
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.timings import latencies
from zipbrain.evaluation.trial import Trial, recipe_for
from zipbrain.jobs import BACKENDS, JobsFailed, run_jobs
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, restore, summary
from zipbrain.search.result import Entry, SearchResult, ranked, value_of
from zipbrain.search.space import LEADERS, Point, full_grid, stage_1, stage_2
from zipbrain.search.targets import Target, choose, finalists
from zipbrain.search.worker import Case, Work, keep, score

Progress = Callable[[str, int, int], None]
_BATCH: Final = 32  # windows of a timed call, as in the paper
_ROUNDS: Final = 20  # timed calls of every finalist
_PREFIXES: Final = 4 * 2**30  # bytes that reused prefixes of all workers of this machine may take together
_PARCEL: Final = 8  # recipes in one call where the model has to travel with them


class SearchStopped(ZipbrainError):
    """A search that did not come to its end; its results are stored, and `partial` has them ranked."""

    def __init__(self, message: str, partial: SearchResult) -> None:
        super().__init__(message)
        self.partial = partial


def search(
    model: nn.Module | str | Path,
    data: Windows | Mapping[str, Windows] | str | Path,
    *,
    ratio: float | str = "max",
    mass: bool = False,
    select_on: str = "val",
    full: bool = False,
    target: str | Target | None = None,
    ratios: Sequence[float | str] | None = None,
    out: str | Path = "results",
    backend: str = "loky",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    batch_size: int = 128,
    limit: int | None = None,
    scaling: str | None = None,
    reuse_prefix: bool = True,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the best setting of ZIPBrain for a model on a corpus.

    Stage 1 scores 27 pairs (z1, z2) with 11 values of rho and z3 = x, stage 2 the four best of them with the six other
    z3: 321 results. Each is stored as soon as it is there, so a search that was stopped goes on where it was.

    Parameters
    ----------
    model : nn.Module or path
        A model, or the folder of a run of finetune or of a saved model.
    data : Windows, mapping of str to Windows, str or path
        The split to select on, splits by name (``"val"``, ``"test"``), a folder of `zipbrain data prepare`,
        ``"synthetic-events"`` or ``"synthetic-sleep"``.
    ratio : float or "max"
        Share of the tokens that every recipe removes.
    mass : bool
        Whether tokens remember how many original tokens they stand for.
    select_on : {"val", "test"}
        The split that decides. With ``"val"`` the winner is then scored on the test split, if there is one.
    full : bool
        Score all 3,773 settings instead.
    target : str or Target, optional
        Such as ``"latency<=0.6"`` or ``"kappa>=0.99x"``; then several ratios are searched.
    ratios : sequence of float or "max", optional
        Those of a target; 0.2, 0.4, 0.6, 0.8 and max if not given.
    out : path
        Folder of the store.
    backend, workers, address
        See `zipbrain.jobs.run_jobs`; without `workers`, one on a GPU and one per core on a CPU.
    device, batch_size, scaling, reuse_prefix
        See `zipbrain.evaluation.trial.Trial`.
    limit : int, optional
        At most so many windows of each split, for a trial.
    progress : callable, optional
        Called with what is being done, results so far and results in all.

    Returns
    -------
    result : SearchResult

    Raises
    ------
    SearchStopped
        Workers or the cluster went away, or the user stopped it. Calling `search` again goes on.
    """
    if select_on not in ("val", "test"):
        raise OptionError("select_on", select_on, "it must be val or test")
    if backend not in BACKENDS:
        raise OptionError("backend", backend, f"it must be one of {', '.join(BACKENDS)}")
    if ratios is not None and target is None:
        raise OptionError("ratios", list(ratios), "several ratios are for a target; without one, give a ratio")
    goal = Target.parse(target) if isinstance(target, str) else target
    asked = read_ratios(RATIOS if ratios is None else ratios) if goal else (read_ratio(ratio, "ratio"),)
    if isinstance(data, Mapping):
        data = dict(data)
    name = "" if isinstance(model, nn.Module) else str(model)
    case = Case(model, data, select_on, limit, device, batch_size, scaling, reuse_prefix, name=name).anywhere()
    if not case.has(select_on):
        other = "test" if select_on == "val" else "val"
        raise OptionError("select_on", select_on, f"the data have no such split: try --select-on {other}")
    trial = case.open()
    if workers is None and backend in ("loky", "threading") and trial.device.type == "cuda":
        workers = 1
    if backend in ("loky", "threading") and trial.device.type == "cpu":
        case = replace(case, prefix_budget=_PREFIXES // max(2, workers or os.cpu_count() or 1))
    run = _Run(case, trial, Store(out), mass, backend, workers, address, progress)
    _check_target(goal, run.original)
    remarks = list(trial.remarks)
    if not run.original["token_counts"]:
        compress(trial.model, ratio=asked[0])  # says which blocks it looked for
    chosen = _distinct(trial, asked, run.original["token_counts"][0], remarks)
    result = SearchResult(
        trial.task, run.metric, select_on, [], len(chosen) * _size(full), run.original, target=goal, full=full,
        mass=mass, remarks=remarks,
    )  # fmt: skip
    run.total = result.expected
    try:
        for value in chosen:
            result.remarks += run.grid(value) if full else run.two_stages(value)
        result.ranking = ranked(run.entries)
        result.evaluated = run.evaluated
        _decide(result, run)
        if result.winner is not None and select_on == "val" and case.has("test"):
            _score_on_test(result, run, case)
    except (JobsFailed, KeyboardInterrupt) as stop:
        result.ranking, result.evaluated = ranked(run.entries), run.evaluated
        why = str(stop) or "stopped"
        stored = f"{len(run.seen)} networks are stored in {run.store.path}"
        message = f"{why}: {len(result.ranking)} of {result.expected} results, {stored}; the same command goes on"
        raise SearchStopped(message, result) from None
    result.remarks += run.store.remarks
    return result


class _Run:
    """Scores settings: out of the store where they are known, else by workers, each network once."""

    def __init__(
        self, case: Case, trial: Trial, store: Store, mass: bool, backend: str, workers: int | None,
        address: str | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.case, self.trial, self.store, self.mass = case, trial, store, mass
        self.backend, self.workers, self.address, self.progress = backend, workers, address, progress
        self.metric = main_metric(len(trial.windows.classes))
        self.token = trial.key(None)
        self.entries: list[Entry] = []
        self.seen: dict[str, dict[str, Any]] = {}  # records by key
        self.evaluated = self.total = 0
        self._pickled: bytes | None = None
        known = store.get(self.token)
        if known is None:
            known = trial.original.record(trial.task, kind="search")
            store.add(known)
        self.original = known

    def two_stages(self, ratio: float | str) -> list[str]:
        """The paper's search at one ratio; returns what the user should know about it."""
        first = self.score(stage_1(), ratio, 1)
        leaders = ranked(first)[:LEADERS]
        self.score(stage_2([entry.point for entry in leaders]), ratio, 2)
        distinct = len({entry.record["key"] for entry in leaders})
        if distinct == len(leaders):
            return []
        networks = f"{distinct} distinct network{'s' * (distinct > 1)}"
        return [f"ratio {ratio}: the {len(leaders)} leaders are {networks} (at rho = 1, z2 can't matter)"]

    def grid(self, ratio: float | str) -> list[str]:
        """All settings at one ratio."""
        self.score(full_grid(), ratio, 0)
        return []

    def recipe(self, point: Point, ratio: float | str) -> Recipe:
        """The recipe of a setting, with what it is chosen on."""
        about = {"dataset": self.trial.task["dataset"], "split": self.case.split, "metric": self.metric}
        return recipe_for(self.trial.model, point.method, ratio=ratio, mass=self.mass, **about)

    def labels(self, ratio: float | str) -> dict[str, Any]:
        """Fields of a record besides the outcome."""
        return {"kind": "search", "label": "ZIPBrain", "ratio": ratio, "extra": {"mass": self.mass}}

    def score(self, points: list[Point], ratio: float | str, stage: int) -> list[Entry]:
        """Score settings; an entry is added as soon as its result is there."""
        waiting: dict[str, list[int]] = {}
        recipes: dict[str, Recipe] = {}
        for number, point in enumerate(points):
            recipe = self.recipe(point, ratio)
            key = self.trial.key(recipe)
            waiting.setdefault(key, []).append(number)
            recipes.setdefault(key, recipe)
        found: dict[int, Entry] = {}
        before = len(self.entries)
        what = f"ratio {ratio}, " + (f"stage {stage}" if stage else "whole grid")

        def take(record: dict[str, Any]) -> None:
            self.seen[record["key"]] = record
            for number in waiting.pop(record["key"]):
                found[number] = Entry(points[number], ratio, stage, value_of(record, self.metric), record)
            if self.progress is not None:
                self.progress(what, before + len(found), self.total)

        try:
            for key in list(waiting):
                record = self.seen.get(key) or self.store.get(key)
                if record is not None:
                    take(record)
            for record in self._evaluate([recipes[key] for key in waiting], ratio):
                self.store.add(record)
                self.evaluated += 1
                take(record)
        finally:  # in list order, so that ties are decided the same way whoever came first
            self.entries += [found[number] for number in sorted(found)]
        return self.entries[before:]

    def _evaluate(self, recipes: list[Recipe], ratio: float | str) -> Iterator[dict[str, Any]]:
        if not recipes:
            return
        labels = self.labels(ratio)
        here = self.backend == "sequential" or (self.backend in ("loky", "threading") and self.workers == 1)
        parcel = 1 if here or self.case.by_name else min(_PARCEL, -(-len(recipes) // 4))
        content: Case | bytes = self.case
        if here:
            keep(self.token, self.trial)
        elif not self.case.by_name:
            self._pickled = content = self._pickled or pickle.dumps(self.case)
        parcels = [tuple(recipes[start : start + parcel]) for start in range(0, len(recipes), parcel)]
        work = [Work(content, self.token, part, labels) for part in parcels]
        try:
            options = {"backend": self.backend, "workers": self.workers, "address": self.address}
            for _, records in run_jobs(score, work, **options):  # type: ignore[arg-type]
                yield from records
        finally:
            if here:
                keep("", None)


def _decide(result: SearchResult, run: _Run) -> None:
    """Find the winner: the best, or what the target asks for."""
    goal = result.target
    if math.isnan(result.ranking[0].score):
        result.remarks.append(f"{result.metric} is undefined for every setting: no winner")
        return
    if goal is None:
        result.winner = result.ranking[0]
    else:
        final = finalists(goal, result.ranking, result.original)
        result.latency = _timed(run, final)
        result.winner = choose(goal, [(entry, result.latency[entry.record["key"]]) for entry in final])
        if result.winner is None:
            result.remarks.append(_out_of_reach(goal, result))
            return
        if min(result.latency.values()) >= 1:
            result.remarks.append("no finalist is faster than the uncompressed model on this machine")
    winner = result.winner
    result.best = replace(run.recipe(winner.point, winner.ratio), score=winner.score)


def _timed(run: _Run, entries: list[Entry]) -> dict[str, float]:
    """Time of a batch over the uncompressed model's, by the key of a record, in one interleaved run."""
    recipes = {
        entry.record["key"]: (run.recipe(entry.point, entry.ratio), entry.record["token_counts"]) for entry in entries
    }
    if not recipes:
        return {}
    rounds = 0

    def tick() -> None:
        nonlocal rounds
        rounds += 1
        if run.progress is not None:
            run.progress(f"timing {len(entries)} finalists", rounds, _ROUNDS)

    found = latencies(run.trial, recipes, batch=_BATCH, rounds=_ROUNDS, tick=tick)
    return {key: times["to_original"] for key, times in found.items()}


def _out_of_reach(goal: Target, result: SearchResult) -> str:
    if goal.on_latency:
        fastest = min(result.latency.values())
        return f"no recipe meets {goal}: the fastest takes {fastest:.2f} of the uncompressed time"
    best = max(value_of(entry.record, goal.name) for entry in result.ranking)
    return f"no recipe meets {goal} ({goal.least(result.original):.4f}): the best {goal.name} is {best:.4f}"


def _score_on_test(result: SearchResult, run: _Run, case: Case) -> None:
    """Score the winner on the test split, once; what goes wrong there does not lose the ranking."""
    try:
        trial = replace(case, split="test").open()
        result.test = _winner_record(result, run, trial)
        result.test_original = run.store.get(trial.key(None))
        if result.test_original is None:
            result.test_original = trial.original.record(trial.task, kind="search")
            run.store.add(result.test_original)
    except ZipbrainError as error:
        result.test = result.test_original = None
        result.remarks.append(f"not scored on the test split: {error}")


def _winner_record(result: SearchResult, run: _Run, trial: Trial) -> dict[str, Any]:
    """The winner's record on the test split, under a key of its own.

    A trial's key leaves out what a recipe was chosen on, so a record under it may be that of a search that was
    selected on the test split: its numbers are the same, its provenance is not.
    """
    assert result.best is not None
    assert result.winner is not None
    plain = trial.key(result.best)
    key = f"winner:{result.select_on}:{run.token[:8]}:{plain}"
    known = run.store.get(key)
    if known is not None:
        return known
    about = {"key": key, **run.labels(result.winner.ratio)}
    scored = run.store.get(plain)
    if scored is None:
        record = trial.run(result.best).record(trial.task, **about)
    else:
        record = {**scored, **about, "task": trial.task, "recipe": result.best.to_dict()}
    run.store.add(record)
    return record


def _size(full: bool) -> int:
    return len(full_grid()) if full else len(stage_1()) + LEADERS * 6


def _check_target(goal: Target | None, original: dict[str, Any]) -> None:
    if goal is not None and not goal.on_latency and math.isnan(value_of(original, goal.name)):
        known = ", ".join([*original["scores"], "agreement"])
        raise OptionError("target", str(goal), f"the uncompressed model has no such score here: there are {known}")
    if goal is not None and not goal.on_latency and goal.relative and value_of(original, goal.name) <= 0:
        found = f"the uncompressed model's {goal.name} is {value_of(original, goal.name):.4f}"
        raise OptionError("target", str(goal), f"{found}, of which a share says nothing: give a plain number")


def _distinct(trial: Trial, ratios: Sequence[float | str], tokens: int, remarks: list[str]) -> list[float | str]:
    """The ratios that remove tokens, each schedule once; refuses if none is left."""
    found: dict[tuple[int, ...], float | str] = {}
    for ratio in ratios:
        counts = _counts(trial, ratio, tokens)
        if counts[-1] == tokens:
            remarks.append(f"ratio {ratio} removes none of the {tokens} tokens: left out")
        elif counts in found:
            remarks.append(f"ratio {ratio} removes as many tokens as {found[counts]}: searched once")
        else:
            found[counts] = ratio
    if not found:
        allowed = f"no method can reach it: it removes none of the {tokens} tokens; take a larger one, or max"
        raise OptionError("ratio", ratios[0] if len(ratios) == 1 else list(ratios), allowed)
    return list(found.values())


def _counts(trial: Trial, ratio: float | str, tokens: int) -> tuple[int, ...]:
    """Tokens before the first block and after each, at a ratio."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is removed is told by the caller
        try:
            counts = summary(compress(trial.model, ratio=ratio, tokens=tokens)).token_counts
        finally:
            restore(trial.model)
    assert counts is not None
    return tuple(counts)
