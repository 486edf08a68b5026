"""`compare`: methods and ratios side by side on one model and one set of windows, with the paper's values beside."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation import comparison_tables, timings
from zipbrain.evaluation.cached_scores import remarks, scored
from zipbrain.evaluation.options import (
    METHODS,
    RATIOS,
    Setting,
    read_mass,
    read_methods,
    read_ratios,
    zipbrain_setting,
)
from zipbrain.evaluation.paper_results import Reported, reported
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import Grid, csv_text, latex_of, markdown_of
from zipbrain.evaluation.trial import Trial
from zipbrain.profiling.flops import GraphCount, HandCount, hand_flops, onnx_tool_flops
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, restore, summary

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """One method at one ratio; the original has neither.

    Attributes
    ----------
    label, method : str
        Name in the tables, name in the registry (``"original"`` for the uncompressed model).
    ratio : float, "max" or None
        As asked.
    mass : bool
        Whether the tokens' masses were used beyond what belongs to the method.
    scores, intervals : dict
        By metric; NaN where undefined. Intervals are (low, high), and none if they were not asked for.
    token_counts : tuple of int
        True unprotected tokens before the first block, then after each.
    removed : float
        Share truly removed.
    fewer : bool
        Whether fewer tokens were removed than asked.
    agreement, logit_error : float
        Against the uncompressed model.
    hand : HandCount or None
        Multiply-adds of the blocks' matrix products, as compressed and originally.
    graph : GraphCount or None
        onnx-tool's count, if it was asked for.
    latency : dict or None
        See `side_by_side.latencies`.
    paper : dict of str to Reported
        What the paper prints for this model, dataset, method and ratio.
    recipe : dict or None
        JSON form of what was run.
    """

    label: str
    method: str
    ratio: float | str | None
    mass: bool
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    token_counts: tuple[int, ...]
    removed: float
    fewer: bool
    agreement: float
    logit_error: float
    hand: HandCount | None
    graph: GraphCount | None
    latency: dict[str, float] | None
    paper: dict[str, Reported]
    recipe: dict[str, Any] | None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    task : dict
        Model, dataset, split, windows, subjects, classes, fingerprints.
    rows : list of Row
        The original first.
    notes : list of str
        What must be read beside the tables.
    timing : dict
        Device, threads, batch and rounds of the latencies; empty without them.
    """

    task: dict[str, Any]
    rows: list[Row]
    notes: list[str]
    timing: dict[str, Any] = field(default_factory=dict)

    @property
    def original(self) -> Row:
        """The uncompressed model."""
        return self.rows[0]

    def grids(self) -> list[Grid]:
        """Accuracy, cost, and tokens per layer."""
        return comparison_tables.grids(self)

    def to_markdown(self) -> str:
        """The tables and the notes."""
        return markdown_of(self.grids(), self.notes)

    def to_latex(self) -> str:
        """The tables in the paper's layout (booktabs), with the notes as comments."""
        return latex_of(self.grids()[:2], self.notes)

    def to_csv(self) -> str:
        """One line per method, ratio and use of mass, with everything that is known about it."""
        return csv_text([comparison_tables.flat(self, row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON (NaN where a metric is undefined)."""
        rows = [comparison_tables.nested(self, row) for row in self.rows]
        return {"task": self.task, "timing": self.timing, "rows": rows, "notes": self.notes}


def compare(
    model: nn.Module,
    windows: Windows,
    *,
    methods: Iterable[object] = METHODS,
    ratios: Iterable[object] = RATIOS,
    setting: object = "auto",
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
    progress : callable, optional
        Called with what is done next, steps done, and steps in all.

    Returns
    -------
    comparison : Comparison
    """
    if latency_batch < 1 or latency_rounds < 1:
        raise OptionError("latency_batch, latency_rounds", (latency_batch, latency_rounds), "they must be at least 1")
    shares, masses = read_ratios(ratios), read_mass(mass)
    trial = Trial(
        model, windows, device=device, batch_size=batch_size, scaling=scaling, checkpoint=checkpoint, split=split
    )
    ours = zipbrain_setting(setting, trial.task["model"], trial.task["dataset"])
    chosen = read_methods(methods, ours, setting)
    plan = [(ratio, entry) for ratio in shares for entry in _entries(trial, chosen, ratio, masses)]
    steps = _Steps(1 + len(plan) + (len(shares) if latency else 0) + (1 + len(plan) if onnx_tool else 0), progress)
    timing = timings.surroundings(trial, latency_batch, latency_rounds) if latency else {}

    steps.next("original")
    found = scored(trial, None, kind="compare", label="Original", ratio=None, intervals=intervals, store=store)
    rows = [_row(trial, found, None, _Entry("Original", "original", None, False))]
    records = [found]
    for ratio, entry in plan:
        steps.next(f"{entry.label}{' + mass' * entry.mass} at {_percent(ratio)}")
        found = scored(
            trial, entry.recipe, kind="compare", label=entry.label, ratio=ratio, intervals=intervals, store=store,
            mass=entry.mass,
        )  # fmt: skip
        records.append(found)
        rows.append(_row(trial, found, ratio, entry))
    recipes = [None, *(entry.recipe for _, entry in plan)]
    times: dict[int, dict[str, float]] = {}
    if latency:
        for ratio in shares:
            steps.next(f"timing at {_percent(ratio)}")
            group = [place for place, row in enumerate(rows) if row.ratio == ratio]
            times |= _times(trial, rows, recipes, group, timing, store)
    graphs: dict[int, GraphCount] = {}
    if onnx_tool:
        for place, row in enumerate(rows):
            steps.next(f"onnx-tool: {row.label}{' + mass' * row.mass}")
            graphs[place] = _graph(trial, row, recipes[place], store)
    steps.end()
    complete = [
        Row(**{**vars(row), "latency": times.get(place), "graph": graphs.get(place)}) for place, row in enumerate(rows)
    ]
    bare = Comparison(trial.task, complete, [], timing)
    said = [*comparison_tables.notes(bare, chosen, masses), *_massive(chosen, complete, masses)]
    return Comparison(trial.task, complete, [*said, *remarks(trial, records)], timing)


@dataclass(frozen=True)
class _Entry:
    label: str
    method: str
    recipe: Recipe | None
    mass: bool


def _entries(trial: Trial, chosen: list[Setting], ratio: float | str, masses: tuple[bool, ...]) -> list[_Entry]:
    """What is run at one ratio: every method without and with mass, as asked; without, where it can't matter."""
    found = []
    for setting in chosen:
        plain = setting.recipe(trial.model, ratio, mass=False)
        weighed = setting.recipe(trial.model, ratio, mass=setting.mass or True)
        same = setting.drops_only or weighed.key() == plain.key()  # as with Twins, which uses all of it by itself
        for mass in (False,) if same else masses:
            found.append(_Entry(setting.label, setting.method.name, weighed if mass else plain, mass))
    return found


def _massive(chosen: list[Setting], rows: list[Row], masses: tuple[bool, ...]) -> list[str]:
    """A note where a row with mass would be the row without it."""
    with_mass = {row.label for row in rows if row.mass}
    labels = [one.label for one in chosen if not one.drops_only and one.label not in with_mass]
    if not labels or True not in masses:
        return []
    return [f"{' and '.join(labels)}: mass is used in attention, merge and readout anyway, so there is one row."]


def _row(trial: Trial, record: dict[str, Any], ratio: float | str | None, entry: _Entry) -> Row:
    counts = tuple(record["token_counts"])
    hand, fewer = _hand(trial, entry.recipe, counts)
    # The paper has no masses, and its values are those of its own methods.
    known = {} if entry.mass else reported(trial.task["model"], trial.task["dataset"], entry.method, ratio)
    intervals = {name: (pair[0], pair[1]) for name, pair in record.get("intervals", {}).items()}
    return Row(
        entry.label, entry.method, ratio, entry.mass, record["scores"], intervals, counts, record["removed"], fewer,
        record["agreement"], record["logit_error"], hand, None, None, known, record["recipe"],
    )  # fmt: skip


def _hand(trial: Trial, recipe: Recipe | None, counts: tuple[int, ...]) -> tuple[HandCount | None, bool]:
    """Multiply-adds counted by hand, and whether the method removes fewer tokens than asked."""
    if not counts:  # a model whose blocks were not found by themselves
        return None, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # r = 0 is seen in the counts
        try:
            if recipe is not None:
                compress(trial.model, recipe.method, **recipe.options())
            hand = hand_flops(trial.model, counts[0])
            return hand, recipe is not None and summary(trial.model, counts[0]).cut
        except ZipbrainError:
            return None, False
        finally:
            restore(trial.model)


def _times(
    trial: Trial, rows: list[Row], recipes: list[Recipe | None], group: list[int], timing: dict[str, Any],
    store: Store | None,
) -> dict[int, dict[str, float]]:  # fmt: skip
    """Latencies of the rows of one ratio; those that the store lacks are measured together."""
    where = json.dumps(timing, sort_keys=True)
    keys = {place: f"latency:{trial.key(recipes[place])}:{where}" for place in group}
    known = {place: store.get(key) if store is not None else None for place, key in keys.items()}
    found = {place: record["extra"]["latency"] for place, record in known.items() if record is not None}
    missing = {}
    for place in group:
        recipe = recipes[place]
        if place not in found and recipe is not None:
            missing[str(place)] = (recipe, rows[place].token_counts)
    if not missing:
        return found
    measured = timings.latencies(trial, missing, batch=timing["batch"], rounds=timing["rounds"])
    for name, latency in measured.items():
        place = int(name)
        found[place] = latency
        if store is not None:
            store.add(_record(trial, "latency", keys[place], rows[place], {"latency": latency, "timing": timing}))
    return found


def _graph(trial: Trial, row: Row, recipe: Recipe | None, store: Store | None) -> GraphCount:
    """onnx-tool's count of one row. A failure is told, and tried again by the next run."""
    key = f"onnx-tool:{trial.key(recipe)}:{_version('onnx-tool')}:{torch.__version__}"
    known = store.get(key) if store is not None else None
    if known is not None:
        return GraphCount(known["extra"]["macs"], tuple(known["extra"]["uncounted"]))
    model = copy.deepcopy(trial.model).cpu()
    if recipe is not None:
        compress(model, recipe.method, **recipe.options())
    count = onnx_tool_flops(model, timings.example(trial, 1).cpu())
    if store is not None and count.macs is not None:
        extra = {"macs": count.macs, "uncounted": list(count.uncounted)}
        store.add(_record(trial, "flops", key, row, extra))
    return count


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # what was counted elsewhere is not known here
        return "none"


def _record(trial: Trial, kind: str, key: str, row: Row, extra: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": key, "kind": kind, "label": row.label, "ratio": row.ratio, "task": trial.task, "recipe": row.recipe,
        "extra": extra,
    }  # fmt: skip


def _percent(ratio: float | str) -> str:
    return "maximum" if ratio == "max" else f"{float(ratio):.0%}"


class _Steps:
    """Counts what is done and tells whoever shows it."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = -1, total, progress

    def next(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, self.done, self.total)

    def end(self) -> None:
        self.next("done")
