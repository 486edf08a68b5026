"""`ablate`: the paper's ablation of ZIPBrain on one model and one set of windows, random variants over many seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation import ablation_tables
from zipbrain.evaluation.cached_scores import CachedScores, remarks_of
from zipbrain.evaluation.options import read_ratio, zipbrain_setting
from zipbrain.evaluation.paper_results import reported_ablation
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import Table, Tabled
from zipbrain.evaluation.trial import Trial
from zipbrain.pooling import Method, ZIPBrain, ablations
from zipbrain.progress import Progress, silent
from zipbrain.recipe import Recipe

RANDOM: Final = ("random grouping", "random matching")
FULL: Final = "full"


@dataclass(frozen=True)
class Spread:
    """One number over the runs of a variant: one run, or one per seed.

    The deviation is that of a sample (n - 1), NaN for one run. All are NaN if one of the values is.
    """

    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of the values of all runs."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(statistics.fmean(values), deviation, float(np.min(values)), float(np.max(values)))


@dataclass(frozen=True)
class AblationRow:
    """One variant of the ablation over all its runs."""

    name: str  # as `zipbrain.pooling.ablations` has it, or "uncompressed"
    runs: int  # seeds of a random variant, else 1
    scores: dict[str, Spread]
    intervals: dict[str, tuple[float, float]]  # 95 %, by resampling subjects; none of a mean over seeds
    to_full: dict[str, float]  # mean minus the full method's score; empty for the uncompressed model
    operations: float  # over the uncompressed model's, pooling included
    token_counts: tuple[int, ...]
    removed: float
    agreement: Spread  # with the uncompressed model, as the logit error
    logit_error: Spread
    paper: float | None  # its value of the main metric
    recipes: list[dict[str, Any]]  # JSON form of what was run


@dataclass(frozen=True)
class Ablation(Tabled):
    """What `ablate` found."""

    task: dict[str, Any]  # see `Trial.task`
    ratio: float | str
    rows: list[AblationRow]  # the uncompressed model, the full method, then its variants
    notes: list[str]

    def tables(self) -> list[Table]:
        """Accuracy, and agreement with the uncompressed model."""
        return ablation_tables.tables(self)

    def flat_rows(self) -> list[dict[str, Any]]:
        """One line per variant."""
        return [ablation_tables.flat(self, row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON (NaN where a number is undefined)."""
        rows = [asdict(row) for row in self.rows]
        return {"task": self.task, "ratio": self.ratio, "rows": rows, "notes": self.notes}


def ablate(
    model: nn.Module,
    windows: Windows,
    *,
    ratio: object = "max",
    setting: object = "auto",
    seeds: int = 10,
    intervals: bool = True,
    store: Store | None = None,
    device: str | torch.device = "auto",
    batch_size: int = 128,
    scaling: str | None = None,
    checkpoint: str = "",
    split: str = "test",
    progress: Progress | None = None,
) -> Ablation:
    """Take ZIPBrain apart: random grouping, random matching, simple merge, pruning, pivots as regular tokens.

    Parameters
    ----------
    model : nn.Module
        Any model that `zipbrain.compress` takes; stays as it is.
    windows : Windows
        The split, unscaled.
    ratio : float or "max"
        Share of the tokens to remove.
    setting : {"auto", "paper", "default"}, Recipe, path of a recipe, or ZIPBrain
        The setting that is taken apart, as in `compare`. A recipe must be one of ZIPBrain.
    seeds : int
        Runs of each random variant, with seeds 0, 1, ...
    intervals : bool
        95 % bootstrap intervals over subjects, of the variants without chance.
    store, device, batch_size, scaling, checkpoint, split, progress
        As in `compare`.

    Returns
    -------
    ablation : Ablation
    """
    share = read_ratio(ratio, "ratio")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise OptionError("seeds", seeds, "it must be at least 1")
    trial = Trial(
        model, windows, device=device, batch_size=batch_size, scaling=scaling, checkpoint=checkpoint, split=split
    )
    task = trial.task
    chosen = zipbrain_setting(setting, task["model"], task["dataset"])
    full = chosen.method
    if not isinstance(full, ZIPBrain):
        raise OptionError("setting", full.name, "the ablation takes ZIPBrain apart: give a recipe of zipbrain")

    def recipe(method: Method) -> Recipe:
        return chosen.recipe(trial.model, share, mass=chosen.mass or False, method=method)

    runs: dict[str, list[tuple[Recipe | None, int | None]]] = {"uncompressed": [(None, None)]}
    for name, method in ablations(full).items():
        runs[name] = [(recipe(method), None)]
    for name in RANDOM:
        runs[name] = [(recipe(ablations(full, seed)[name]), seed) for seed in range(seeds)]
    of, scores = recipe(full).key(), CachedScores(trial, store, "ablate", intervals)
    total = sum(map(len, runs.values()))
    found: dict[str, list[Result]] = {name: [] for name in runs}
    for name, each in runs.items():
        for one, seed in each:
            what = f"scoring: {name}" if seed is None else f"scoring: {name}, seed {seed}"
            (progress or silent)(what, sum(map(len, found.values())), total)
            kept = {"ratio": None} if one is None else {"ratio": share, "of": of}
            found[name].append(scores.score(one, name, **kept, seed=seed))
    paper = reported_ablation(task["model"], task["dataset"])
    best = found[FULL][0].scores
    rows = [_summarised(name, found[name], best, paper.get(name)) for name in runs]
    bare = Ablation(task, share, rows, [])
    remarks = remarks_of(trial, [one for each in found.values() for one in each], store)
    return replace(bare, notes=[*ablation_tables.notes(bare, chosen, seeds), *remarks])


def _summarised(name: str, results: list[Result], full: dict[str, float], paper: float | None) -> AblationRow:
    first = results[0]
    scores = {metric: Spread.of([one.value(metric) for one in results]) for metric in first.scores}
    changes = {metric: spread.mean - full[metric] for metric, spread in scores.items() if metric in full}
    return AblationRow(
        name=name,
        runs=len(results),
        scores=scores,
        intervals={} if name in RANDOM else first.intervals,
        to_full={} if first.is_original else changes,
        operations=statistics.fmean(one.operations for one in results),
        token_counts=first.token_counts,
        removed=first.removed,
        agreement=Spread.of([one.agreement for one in results]),
        logit_error=Spread.of([one.logit_error for one in results]),
        paper=paper,
        recipes=[one.recipe for one in results if one.recipe is not None],
    )
