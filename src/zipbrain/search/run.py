"""`search`: the paper's two-stage search for a model on a corpus; resumable, on this machine or a cluster."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from torch import nn

from zipbrain.cores import free_cores
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation.cached_scores import CachedScores
from zipbrain.evaluation.options import RATIOS, read_ratio, read_ratios
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.rounds import check_budget
from zipbrain.evaluation.second_look import copy_on_same_weights
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.timings import Candidate, latencies
from zipbrain.evaluation.trial import Trial
from zipbrain.jobs import BACKENDS, JobsFailed
from zipbrain.models import Build
from zipbrain.profiling import Timing, interleaved
from zipbrain.progress import Progress
from zipbrain.seams import compress, restore, summary
from zipbrain.search.result import Entry, SearchResult, ranked
from zipbrain.search.scorer import Scorer
from zipbrain.search.targets import Target, choose, finalists
from zipbrain.search.worker import Case

_BATCH: Final = 32  # windows of a timed call, as in the paper
_ROUNDS: Final = 20  # timed calls of every finalist
_WARMUP: Final = 3  # calls before them that don't count
_PREFIXES: Final = 4 * 2**30  # bytes that reused prefixes of all workers of this machine may take together


class SearchStopped(ZipbrainError):
    """A search that did not come to its end; its results are stored, and `partial` has them ranked."""

    def __init__(self, message: str, partial: SearchResult) -> None:
        super().__init__(message)
        self.partial = partial


def search(
    model: nn.Module | Build | str | Path,
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
    time_budget: float = math.inf,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the best setting of ZIPBrain for a model on a corpus.

    Stage 1 scores 27 pairs (z1, z2) with 11 values of rho and z3 = x, stage 2 the four best of them with the six other
    z3: 321 results. Each is stored as soon as it is there, so a search that was stopped goes on where it was.

    Parameters
    ----------
    model : nn.Module, path or Build
        A model, the folder of a run of finetune or of a saved model, or the function that makes one.
    data : Windows, mapping of str to Windows, str or path
        The split to select on, splits by name (``"val"``, ``"test"``), a folder of `zipbrain data prepare`,
        ``"synthetic-events"`` or ``"synthetic-sleep"``.
    ratio : float or "max"
        Share of the tokens that every recipe removes.
    mass : bool
        Tokens remember how many original tokens they stand for.
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
        See `zipbrain.jobs.run_jobs`; without `workers`, one on a GPU and one per free core on a CPU.
    device, batch_size, scaling
        See `zipbrain.evaluation.trial.Trial`.
    reuse_prefix : bool
        Compute what comes before the first reduction once for all recipes.
    limit : int, optional
        At most so many windows of each split, for a trial.
    time_budget : float
        Seconds for timing the finalists of a target; one round is always made.
    progress : callable, optional
        See `zipbrain.progress`.

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
    check_budget(time_budget)
    goal = Target.parse(target) if isinstance(target, str) else target
    asked = read_ratios(RATIOS if ratios is None else ratios) if goal else (read_ratio(ratio, "ratio"),)
    if isinstance(data, Mapping):
        data = dict(data)
    name = "" if isinstance(model, nn.Module) else str(model)
    budget = None if reuse_prefix else 0
    case = Case(model, data, select_on, limit, device, batch_size, scaling, budget, name).anywhere()
    if not case.has(select_on):
        other = "test" if select_on == "val" else "val"
        raise OptionError("select_on", select_on, f"the data have no such split: try --split {other}")
    trial = case.open()
    if workers is None and backend in ("loky", "threading"):
        workers = 1 if trial.device.type == "cuda" else free_cores()
    if reuse_prefix and backend in ("loky", "threading") and trial.device.type == "cpu":
        case = replace(case, prefix_budget=_PREFIXES // max(2, workers or 1))
    store, jobs = Store(out), {"backend": backend, "workers": workers, "address": address}
    run = Scorer(case, CachedScores(trial, store, "search"), mass, jobs, progress)
    _check_target(goal, run.original)
    remarks = [*trial.remarks, *run.original.extra.get("remarks", ())]
    if not run.original.token_counts:
        compress(trial.model, ratio=asked[0])  # says which blocks it looked for
    chosen = _distinct(trial, asked, run.original.token_counts[0], remarks)
    expected = len(chosen) * run.settings(full)
    result = SearchResult(trial.task, run.metric, select_on, [], expected, run.original, target=goal, full=full)
    result.mass, result.remarks = mass, remarks
    run.total = result.expected
    try:
        for value in chosen:
            result.remarks += run.grid(value) if full else run.two_stages(value)
        result.ranking = ranked(run.entries)
        result.evaluated = run.evaluated
        _decide(result, run, time_budget)
        if result.winner is not None and select_on == "val" and case.has("test"):
            _score_on_test(result, run)
    except (JobsFailed, KeyboardInterrupt) as stop:
        result.ranking, result.evaluated = ranked(run.entries), run.evaluated
        why = str(stop) or "stopped"
        stored = f"{len(run.networks)} networks are stored in {store.path}"
        message = f"{why}: {len(result.ranking)} of {result.expected} results, {stored}; the same command goes on"
        raise SearchStopped(message, result) from None
    result.remarks += store.remarks
    return result


def _decide(result: SearchResult, run: Scorer, time_budget: float) -> None:
    """Find the winner: the best, or what the target asks for."""
    goal = result.target
    if math.isnan(result.ranking[0].score):
        result.remarks.append(f"{result.metric} is undefined for every setting: no winner")
        return
    if goal is None:
        result.winner = result.ranking[0]
    else:
        final = finalists(goal, result.ranking, result.original)
        result.latency = _timed(result, run, final, time_budget)
        result.winner = choose(goal, [(entry, result.latency[entry.result.key]) for entry in final])
        if result.winner is None:
            result.remarks.append(_out_of_reach(goal, result))
            return
        if min(result.latency.values()) >= 1:
            result.remarks.append("no finalist is faster than the uncompressed model on this machine")
    winner = result.winner
    result.best = replace(run.recipe(winner.point, winner.ratio), score=winner.score)


def _timed(result: SearchResult, run: Scorer, entries: list[Entry], budget: float) -> dict[str, float]:
    """Time of a batch over the uncompressed model's, by the key of a result, in one interleaved run."""
    networks, made = {}, 0
    for entry in entries:
        recipe = run.recipe(entry.point, entry.ratio)
        with run.trial.compressed(recipe) as model:
            networks[entry.result.key] = Candidate(copy_on_same_weights(model), recipe, entry.result.token_counts)
    if not networks:
        return {}

    ticks = count(1)

    def tick() -> None:
        run.tell(f"timing: {len(entries)} finalists", next(ticks), _WARMUP + _ROUNDS)

    def measure(calls: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        nonlocal made
        timed = interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP, tick=tick, budget=budget)
        made = len(next(iter(timed.values())).seconds)
        return timed

    found = latencies(run.trial, networks, measure, _BATCH)
    if made < _ROUNDS:
        short = f"finalists were timed in {made} of {_ROUNDS} rounds, for which there were {budget:g} s"
        result.remarks.append(f"{short}: a larger time budget (--time-budget) makes their times surer")
    return {key: times["to_original"] for key, times in found.items()}


def _out_of_reach(goal: Target, result: SearchResult) -> str:
    if goal.on_latency:
        fastest = min(result.latency.values())
        return f"no recipe meets {goal}: the fastest takes {fastest:.2f} of the uncompressed time"
    best = max(entry.result.value(goal.name) for entry in result.ranking)
    return f"no recipe meets {goal} ({goal.least(result.original):.4f}): the best {goal.name} is {best:.4f}"


def _score_on_test(result: SearchResult, run: Scorer) -> None:
    """Score the winner on the test split, once; what goes wrong there does not lose the ranking."""
    assert result.best is not None
    assert result.winner is not None
    try:
        test = replace(run.case, split="test")
        result.test, result.test_original = run.score_on(test, result.best, result.winner.ratio)
    except ZipbrainError as error:
        result.remarks.append(f"not scored on the test split: {error}")


def _check_target(goal: Target | None, original: Result) -> None:
    if goal is None or goal.on_latency:
        return
    value = original.value(goal.name)
    if math.isnan(value):
        known = ", ".join([*original.scores, "agreement"])
        raise OptionError("target", str(goal), f"the uncompressed model has no such score here: there are {known}")
    if goal.relative and value <= 0:
        found = f"the uncompressed model's {goal.name} is {value:.4f}"
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
        warnings.simplefilter("ignore")  # the caller says that nothing is removed
        try:
            counts = summary(compress(trial.model, ratio=ratio, tokens=tokens)).token_counts
        finally:
            restore(trial.model)
    assert counts is not None
    return tuple(counts)
