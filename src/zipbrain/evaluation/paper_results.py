"""What the ZIPBrain paper reports: its result tables as facts, to be shown beside figures of your own (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.paper import DATASETS, MODELS, TWO_CLASSES, canonical_name

RATIOS: Final = (0.2, 0.4, 0.6, 0.8)  # of the ratio sweep; every pair has "max"
SAVED_FLOPS: Final = {("LaBraM", "TUAB", 0.8): 0.4230, ("LaBraM", "TUEV", 0.8): 0.4236}  # counted by onnx-tool

COPY_ERROR: Final = "the paper prints EEGPT's row here, so BIOT's own value is unknown"

_BINARY: Final = ("auroc", "pr_auc", "accuracy", "balanced_accuracy")
_MULTICLASS: Final = ("kappa", "weighted_f1", "accuracy", "balanced_accuracy")

# Main metric; the ratio is not stated. "full" is what the paper's table calls Original.
_ABLATION: Final = {
    ("LaBraM", "TUAB"): {"full": 0.8903, "random grouping": 0.8883, "random matching": 0.8790, "simple merge": 0.8895},
    ("BIOT", "TUEV"): {"full": 0.5103, "random grouping": 0.5073, "random matching": 0.4927, "simple merge": 0.5043},
}


@dataclass(frozen=True)
class Reported:
    """One printed value."""

    value: float  # as printed, with four digits
    # Why it can't be what it claims to be; empty for an ordinary value. Never show the value without this.
    doubt: str = ""


def reported(model: str, dataset: str, method: str, ratio: float | str | None = None) -> dict[str, Reported]:
    """The paper's values of one method on one pair, by metric; nothing where its tables have none.

    Any usual spelling of model and dataset; `ratio` is a share of tokens or "max", and not looked at for "original".
    The metrics are auroc and pr_auc (two classes) or kappa and weighted_f1, then accuracy and balanced_accuracy.
    """
    pair = known_pair(model, dataset)
    numbers = pair and _table().get((*pair, "max" if method == "original" else str(ratio), method))
    if pair is None or numbers is None:
        return {}
    copied = pair[0] == "BIOT" and method == "zipbrain" and ratio == "max"
    return {
        metric: Reported(value, COPY_ERROR if copied and metric.endswith("accuracy") else "")
        for metric, value in zip(metrics_of(pair[1]), numbers, strict=True)
    }


@cache
def _table() -> dict[tuple[str, ...], tuple[float, ...]]:
    """Four printed values by model, dataset, ratio and method: main and second metric, accuracy, balanced accuracy."""
    lines = (files("zipbrain") / "evaluation" / "paper_results.csv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split(",") for line in lines]
    return {tuple(row[:4]): tuple(map(float, row[4:])) for row in rows}


def reported_ablation(model: str, dataset: str) -> dict[str, float]:
    """The paper's ablation of a pair, by variant as `zipbrain.pooling.ablations` names them, in its main metric."""
    pair = known_pair(model, dataset)
    return {} if pair is None else dict(_ABLATION.get(pair, {}))


def metrics_of(dataset: str) -> tuple[str, str, str, str]:
    """The four metrics that the paper reports of one of its datasets, the main one first."""
    return _BINARY if canonical_name("dataset", dataset, DATASETS) in TWO_CLASSES else _MULTICLASS


def known_pair(model: str, dataset: str) -> tuple[str, str] | None:
    """Model and dataset in the paper's spelling, or None where it has no such pair."""
    try:
        return canonical_name("model", model, MODELS), canonical_name("dataset", dataset, DATASETS)
    except OptionError:
        return None
