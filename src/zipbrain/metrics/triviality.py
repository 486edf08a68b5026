"""Models with which agreement says nothing: those that answer one class nearly always, and those that guess."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.metrics.scoring import Array, main_metric

CHANCE: Final = {"auroc": 0.5, "kappa": 0.0}  # what guessing gives in the metrics by which models are ranked
MOST_OF_ONE_CLASS: Final = 0.95  # share of the windows in one class above which agreement with a model says nothing

_SURE: Final = 1.96  # standard errors above chance that count as better, one in 40 by luck


def commonest_class(counts: ArrayLike) -> tuple[int, float]:
    """The class of most windows and its share of them all, from the windows (K,) of every class."""
    each: NDArray[Any] = np.asarray(counts)
    return int(each.argmax()), float(each.max() / max(each.sum(), 1))


def is_one_sided(counts: ArrayLike) -> bool:
    """True if nearly all windows are put into one class, so that any model which does the same agrees."""
    return commonest_class(counts)[1] > MOST_OF_ONE_CLASS


def is_chance(value: float, table: ArrayLike, interval: tuple[float, float] | None = None) -> bool:
    """True if a score is no better than that of guessing; False where it is undefined.

    Parameters
    ----------
    value : float
        Of the metric by which so many classes are ranked, see `main_metric`.
    table : array (K, K)
        Confusion matrix: rows are true classes, columns predicted ones.
    interval : (float, float), optional
        95 % interval of the value; the standard error of guesses on as many windows decides if not given.
    """
    counts = np.asarray(table, dtype=np.float64)
    metric = main_metric(len(counts))
    if math.isnan(value):
        return False
    if interval is not None and not any(map(math.isnan, interval)):
        return interval[0] <= CHANCE[metric]
    error = _auroc_error(counts) if metric == "auroc" else _kappa_error(counts)
    return value <= CHANCE[metric] + _SURE * error


def _auroc_error(table: Array) -> float:
    """Standard error of the AUROC of guesses (Mann and Whitney)."""
    negative, positive = table.sum(axis=1)
    both = negative * positive
    return math.sqrt((negative + positive + 1) / (12 * both)) if both else 0.0


def _kappa_error(table: Array) -> float:
    """Standard error of the kappa of guesses with the same margins (Fleiss, Cohen and Everitt 1969)."""
    n = table.sum()
    true, called = table.sum(axis=1) / n, table.sum(axis=0) / n
    expected = float((true * called).sum())
    spread = expected + expected**2 - float((true * called * (true + called)).sum())
    return math.sqrt(max(spread, 0.0) / n) / (1 - expected) if expected < 1 else 0.0
