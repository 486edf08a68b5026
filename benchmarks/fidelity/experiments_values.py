"""Reading the CSVs of the experiments: what the tables and the figure show, by task, model, method and ratio."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import mean

from benchmarks.fidelity.experiments_intervals import FAMILIES, FIXED
from benchmarks.shared.results import RESULTS

RATIOS = ("0.2", "0.4", "0.6", "0.8", "max")
MODELS = {"labram": "LaBraM", "eegpt": "EEGPT", "biot": "BIOT", "tfm": "TFM-Tokenizer"}
TASKS = {
    "eyes": "Eyes open or closed (AUROC)", "imagery": "Imagined movement (kappa)",
    "eegmat": "EEGMAT, six folds (AUROC)", "events": "Synthetic events (kappa)", "sleep": "Synthetic sleep (kappa)",
}  # fmt: skip
SHOWN = {"0.8": "80 %", "max": "maximum"}
GROUPS = ("softmax", "linear")
# kind, label and mass of every method, as a reader sees them
METHODS = {
    "ZIPBrain": ("compare", "ZIPBrain", 0), "ZIPBrain, searched": ("compare", "ZIPBrain (searched)", 0),
    "random grouping": ("ablate", "default: random grouping #0", 0), "ZIPBrain + mass": ("compare", "ZIPBrain", 1),
    "ZIPBrain, searched + mass": ("compare", "ZIPBrain (searched)", 1), "ToMe": ("compare", "ToMe", 0),
    "ToMe + mass": ("compare", "ToMe", 1), "ToFu": ("compare", "ToFu", 0), "ToFu + mass": ("compare", "ToFu", 1),
    "EViT": ("compare", "EViT", 0), "DART": ("compare", "DART", 0), "Twins": ("compare", "Twins", 0),
}  # fmt: skip
VARIANTS = (
    "full", "random grouping", "random matching", "simple merge", "pruning", "pivots as regular tokens"
)  # fmt: skip

Row = dict[str, str]


@cache
def stored(name: str) -> tuple[Row, ...]:
    """The rows of a CSV."""
    with (RESULTS / f"{name}.csv").open(newline="") as lines:
        return tuple(csv.DictReader(lines))


@cache
def intervals(name: str = "experiments_intervals") -> dict[tuple[str, str, str, str, str, int], Row]:
    """Rows of a CSV of intervals by task, model, kind, label, ratio and mass."""
    return {
        (row["task"], row["model"], row["kind"], row["label"], row["ratio"], int(row["mass"] == "True")): row
        for row in stored(name)
    }


def found(task: str, model: str, method: str, ratio: str) -> Row | None:
    """The row of one method as a reader names it."""
    kind, label, mass = METHODS[method]
    return intervals().get((task, model, kind, label, ratio, mass))


def over_cells(rows: Iterable[Row], names: Sequence[str]) -> dict[str, float]:
    """Mean over the runs of each task and model, then over these; the paper's split is left out."""
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["task"] != FIXED:
            cells[row["task"], row["model"]].append(row)
    return {name: mean(mean(float(row[name]) for row in cell) for cell in cells.values()) for name in names}


@cache
def sweep_values() -> dict[tuple[str, str, int, str], dict[str, float]]:
    """By family ("all" too), label, mass and ratio: mean change, agreement and logit error over cells."""
    rows: dict[tuple[str, str, int, str], list[Row]] = defaultdict(list)
    for row in stored("experiments"):
        if row["kind"] == "compare":
            for family in ("all", FAMILIES[row["model"]]):
                rows[family, row["label"], int(row["mass"]), row["ratio"]].append(row)
    return {
        key: over_cells(own, ("change", "agreement", "logit_error"))
        for key, own in rows.items()
        if "(paper)" not in key[1]
    }


def run_of(row: Row) -> tuple[str, ...]:
    """Which run a row belongs to."""
    return row["task"], row["model"], row["seed"], row["fold"]


@cache
def compared() -> frozenset[tuple[str, ...]]:
    """Runs in which nothing of the comparison failed."""
    return frozenset(run_of(row) for row in stored("experiments_runs") if row["compare"] == "True")
