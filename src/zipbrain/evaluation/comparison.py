"""`compare`: methods and ratios side by side on one model and one set of windows, with the paper's values beside."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.defaults import KEPT_AGREEMENT
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation import comparison_notes, comparison_tables, timings
from zipbrain.evaluation.cached_scores import CachedScores, remarks_of
from zipbrain.evaluation.comparison_tables import percent
from zipbrain.evaluation.costs import Costs, RowSpec
from zipbrain.evaluation.options import (
    RATIOS,
    Setting,
    is_tuned,
    read_mass,
    read_methods,
    read_ratios,
    tuned_setting,
    zipbrain_setting,
)
from zipbrain.evaluation.recommendation import check_agree, recommend
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.rounds import TimingRounds, check_budget
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import Table, Tabled
from zipbrain.evaluation.trial import Trial
from zipbrain.paper import COMPARED
from zipbrain.profiling.flops import hand_flops
from zipbrain.profiling.machine import torch_threads
from zipbrain.progress import Progress, silent
from zipbrain.seams import summary


@dataclass(frozen=True)
class Comparison(Tabled):
    """What `compare` found."""

    task: dict[str, Any]  # see `Trial.task`
    rows: list[Result]  # the original first
    notes: list[str]  # what must be read beside the tables
    timing: dict[str, Any] = field(default_factory=dict)  # device, threads, batch and rounds of the latencies
    untimed: tuple[float | str | None, ...] = ()  # ratios (None: the tuned recipe) that the time budget did not reach
    recommendation: str = ""  # which row to use; see `zipbrain.evaluation.recommendation`

    @property
    def original(self) -> Result:
        """The uncompressed model."""
        return self.rows[0]

    def tables(self) -> list[Table]:
        """Accuracy, cost, and tokens per layer."""
        return comparison_tables.tables(self)

    def flat_rows(self) -> list[dict[str, Any]]:
        """One line per method, ratio and use of mass."""
        return [comparison_tables.flat(self, row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON (NaN where a metric is undefined)."""
        rows = [comparison_tables.nested(self, row) for row in self.rows]
        about = {
            "task": self.task,
            "timing": self.timing,
            "untimed": list(self.untimed),
            "recommendation": self.recommendation,
        }
        return {**about, "rows": rows, "notes": self.notes}


def compare(
    model: nn.Module,
    windows: Windows,
    *,
    methods: Iterable[object] = COMPARED,
    ratios: Iterable[object] = RATIOS,
    setting: object = "auto",
    tuned: object = None,
    mass: str = "both",
    intervals: bool = True,
    latency: bool = True,
    onnx_tool: bool = False,
    store: Store | None = None,
    device: str | torch.device = "auto",
    batch_size: int = 128,
    scaling: str | None = None,
    checkpoint: str = "",
    split: str = "test",
    latency_batch: int = 8,
    latency_rounds: int = 10,
    threads: int | None = None,
    time_budget: float = math.inf,
    agree: float = KEPT_AGREEMENT,
    on_table: Callable[[Comparison], None] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run methods at ratios on one model and one set of windows.

    Parameters
    ----------
    model : nn.Module
        Any model that `zipbrain.compress` takes; stays as it is.
    windows : Windows
        The split, unscaled.
    methods : iterable of str or Method
        Names such as ``"tome"``; ``"zipbrain"`` is run in `setting`.
    ratios : iterable of float or "max"
        Shares of the tokens to remove.
    setting : {"auto", "paper", "default"}, Recipe, path of a recipe, or ZIPBrain
        ZIPBrain's options: the paper's for this pair, the default ones, or a recipe's; ``"auto"`` is the paper's where
        it has the pair.
    tuned : Recipe or path of a recipe, optional
        Of `zipbrain.tune`, run as it is: a row of its own, whatever the ratios.
    mass : {"both", "off", "on"}
        Rows without mass (as in the paper), with it, or both.
    intervals : bool
        95 % bootstrap intervals over subjects.
    latency : bool
        Time all rows of a ratio with the original and with free slicing, in one interleaved run.
    onnx_tool : bool
        Export every row and let onnx-tool count it (needs ``zipbrain[export]``; tens of seconds a row).
    store : Store, optional
        What it holds is not computed again; what is new is added at once.
    device, batch_size, scaling, checkpoint, split
        As for `Trial`.
    latency_batch, latency_rounds : int
        Windows per timed call, timed calls.
    threads : int, optional
        CPU threads of timed calls. If not given: those of an earlier run whose times the store holds, else as many as
        cores are free, of those that torch uses.
    time_budget : float
        Seconds for all timing. Ratios that it does not reach are `untimed`; with a store, another call goes on there.
    agree : float
        Share of the windows whose answer must stay, for the recommendation which row to use.
    on_table : callable, optional
        Called with the comparison as soon as all scores are there, and again whenever a ratio was timed.
    progress : callable, optional
        See `zipbrain.progress`.

    Returns
    -------
    comparison : Comparison
    """
    if latency_batch < 1 or latency_rounds < 1:
        raise OptionError("latency_batch, latency_rounds", (latency_batch, latency_rounds), "they must be at least 1")
    check_budget(time_budget)
    check_agree(agree)
    shares, masses = read_ratios(ratios), read_mass(mass)
    tell = progress or silent
    trial = Trial(
        model, windows, device=device, batch_size=batch_size, scaling=scaling, checkpoint=checkpoint, split=split
    )
    ours = zipbrain_setting(setting, trial.task["model"], trial.task["dataset"])
    if ours.origin is not None and is_tuned(ours.origin):
        raise OptionError("setting", "a tuned recipe", "it is more than a setting of ZIPBrain: give it as tuned")
    chosen = read_methods(methods, ours, setting)
    own = None if tuned is None else tuned_setting(tuned, trial.task["model"])
    specs = [RowSpec("Original"), *(one for ratio in shares for one in _at_ratio(trial, chosen, ratio, masses))]
    specs += [] if own is None else [RowSpec(own.label, None, own.origin)]
    timing = timings.surroundings(trial, store, latency_batch, latency_rounds, threads) if latency else {}
    costs = Costs(trial, store, timing, onnx_tool)
    scores = CachedScores(trial, store, "compare", intervals)
    rows: list[Result] = []
    for place, spec in enumerate(specs):
        tell(f"scoring: {spec.name}{f' at {percent(spec.ratio)}' if spec.ratio else ''}", place, len(specs))
        rows.append(_measured(scores, spec, costs))
    tell("scoring: done", len(specs), len(specs))

    def finished() -> Comparison:
        missing = dict.fromkeys(row.ratio for row in rows if row.latency is None and not row.is_original)
        untimed = tuple(missing) if latency else ()
        bare = Comparison(trial.task, list(rows), [], timing, untimed)
        bare = replace(bare, recommendation=recommend(rows[0], rows[1:], agree))
        notes = [bare.recommendation] if bare.recommendation else []
        return replace(
            bare, notes=[*notes, *comparison_notes.notes(bare, chosen, masses, own), *remarks_of(trial, rows, store)]
        )

    if on_table is not None:
        on_table(finished())
    if latency:
        rounds = TimingRounds(None if store is None else store.folder, latency_rounds, time_budget)
        with torch_threads(timing["threads"]):
            for _ in _time_ratios(specs, rows, costs, rounds, tell):
                if on_table is not None:
                    on_table(finished())
    for place, spec in enumerate(specs) if onnx_tool else ():
        tell(f"counting with onnx-tool: {spec.name}", place, len(specs))
        rows[place] = replace(rows[place], graph=costs.graph(spec, rows[place]))
    return finished()


def _at_ratio(trial: Trial, chosen: list[Setting], ratio: float | str, masses: tuple[bool, ...]) -> list[RowSpec]:
    """What is run at one ratio: every method without and with mass, as asked; without, where it can't matter."""
    found = []
    for setting in chosen:
        plain = setting.recipe(trial.model, ratio, mass=False)
        weighed = setting.recipe(trial.model, ratio, mass=setting.mass or True)
        same = not setting.method.merges or weighed.key() == plain.key()  # as with Twins, which uses all of it
        for mass in (False,) if same else masses:
            found.append(RowSpec(setting.label, ratio, weighed if mass else plain, mass))
    return found


def _measured(scores: CachedScores, spec: RowSpec, costs: Costs) -> Result:
    """Scores and hand-counted costs of one row; its model is compressed once, and kept where costs are missing."""
    trial = scores.trial
    extra: dict[str, Any] = {} if spec.recipe is None else {"mass": spec.mass}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is removed is seen in the counts
        with trial.compressed(spec.recipe) as model:
            result = scores.score(spec.recipe, spec.label, spec.ratio, **extra)
            costs.keep(spec, model)
            if not result.token_counts:  # a model whose blocks were not found by themselves
                return result
            tokens = result.token_counts[0]
            if spec.recipe is not None and spec.ratio is None:  # one stored earlier may have another promise
                result = replace(result, recipe=spec.recipe.to_dict())
            try:
                fewer = spec.recipe is not None and summary(model, tokens).cut
                hand = hand_flops(model, tokens)
                operations = hand.operations(0.0 if math.isnan(result.looked) else result.looked)
                return replace(result, hand=hand, operations=operations, fewer=fewer)
            except ZipbrainError:
                return result


def _time_ratios(
    specs: Sequence[RowSpec],
    rows: list[Result],
    costs: Costs,
    rounds: TimingRounds,
    tell: Progress,
) -> Iterator[float | str | None]:
    """Put latencies into the rows, ratio by ratio, and yield each ratio that has them; None for a tuned recipe."""
    places: dict[float | str | None, list[int]] = {}
    for place, spec in enumerate(specs[1:], 1):
        places.setdefault(spec.ratio, []).append(place)
    for number, (ratio, group) in enumerate(places.items()):

        def tick(done: int, ratio: float | str | None = ratio, number: int = number) -> None:
            what = f"timing: {percent(ratio)}, round {done} of {rounds.rounds}"
            tell(what, number * rounds.rounds + done, len(places) * rounds.rounds)

        times = costs.latencies([(specs[place], rows[place]) for place in group], rounds, tick)
        for place, found in zip(group, times, strict=True):
            rows[place] = replace(rows[place], latency=found)
        if None not in times:
            yield ratio
