"""Confidence intervals by resampling subjects: windows of one subject are no independent evidence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import OptionError
from zipbrain.metrics import Checked, check, metrics_of

_BLOCK = 1 << 16  # windows times resamples counted at once, so that they fit a processor's cache


@dataclass(frozen=True)
class Resamples:
    """Metrics of every resample."""

    scores: dict[str, NDArray[np.float64]]  # (n,) each, nan where a metric is undefined
    undefined: dict[str, int]  # in how many resamples each metric is: their labels are of one class
    short: int  # resamples that lack a class; their balanced accuracy is over the classes they have

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Percentile interval of every metric, over the resamples in which it is defined."""
        edges = (50 - 50 * level, 50 + 50 * level)
        found = {}
        for name, values in self.scores.items():
            defined = values[~np.isnan(values)]
            low, high = np.percentile(defined, edges) if len(defined) else (np.nan, np.nan)
            found[name] = float(low), float(high)
        return found


def intervals(
    labels: ArrayLike,
    probabilities: ArrayLike,
    subjects: ArrayLike,
    *,
    n: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    threshold: float = 0.5,
) -> dict[str, tuple[float, float]]:
    """Confidence interval of every metric of `metrics.scores`, by resampling subjects with replacement.

    Parameters
    ----------
    labels, probabilities, threshold
        As for `metrics.scores`: probabilities, not logits.
    subjects : array (n_windows,)
        Whose window it is: numbers or names, at least two different ones.
    n : int
        Resamples.
    level : float
        Share of the resamples inside the interval.
    seed : int
        Equal seeds give equal intervals.

    Returns
    -------
    intervals : dict of str to (low, high)
        Percentile intervals. Resamples in which a metric is undefined are left out and counted in a warning;
        `resample` gives the counts.
    """
    if not 0 < level < 1:
        raise OptionError("level", level, "it must lie between 0 and 1")
    drawn = resample(labels, probabilities, subjects, n=n, seed=seed, threshold=threshold)
    lost = {name: count for name, count in drawn.undefined.items() if count}
    if lost:
        what = ", ".join(f"{name} in {count}" for name, count in lost.items())
        warnings.warn(f"of {n} resamples some hold one class only and were left out: {what}", stacklevel=2)
    return drawn.intervals(level)


def resample(
    labels: ArrayLike,
    probabilities: ArrayLike,
    subjects: ArrayLike,
    *,
    n: int = 2000,
    seed: int = 0,
    threshold: float = 0.5,
) -> Resamples:
    """Draw as many subjects as there are, with replacement, `n` times, and compute the metrics of every draw."""
    given = check(labels, probabilities, threshold=threshold)
    whose = np.asarray(subjects)
    if whose.shape != given.labels.shape:
        raise OptionError("subjects", whose.shape, f"their shape must be {given.labels.shape}, one for every label")
    names, place = np.unique(whose, return_inverse=True)
    if len(names) < 2:
        raise OptionError("subjects", f"{len(names)} subject", "two or more are needed to resample them")
    if n < 1:
        raise OptionError("n", n, "at least one resample is needed")
    random = np.random.default_rng(seed)
    times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=n)  # (n, subjects)

    tables = np.zeros((len(names), given.n_classes, given.n_classes))  # a confusion matrix for every subject
    np.add.at(tables, (place, given.labels, given.predictions), 1)
    summed = np.tensordot(times, tables, axes=1)  # (n, K, K)
    wanted = metrics_of(given.n_classes)
    found = {metric.name: np.empty(n) for metric in wanted}
    for metric in wanted:
        if metric.kind == "table":
            found[metric.name] = metric.function(summed)
        elif metric.kind == "windows":
            found[metric.name] = np.array([metric(_drawn(given, row[place])) for row in times])
    ranking = [metric for metric in wanted if metric.kind == "ranking"]
    for part, hits, misses in _rankings(given, times, place) if ranking else ():
        for metric in ranking:
            found[metric.name][part] = metric.function(hits, misses)
    held = tables.sum(axis=(0, 2)) > 0  # (K,) classes that the labels hold
    short = int((summed.sum(axis=2)[:, held] == 0).any(axis=1).sum())
    undefined = {name: int(np.isnan(values).sum()) for name, values in found.items()}
    return Resamples(found, undefined, short)


def _drawn(given: Checked, times: NDArray[np.int64]) -> Checked:
    """Every window as often as it was drawn."""
    places = np.repeat(np.arange(len(times)), times)
    return Checked(given.labels[places], given.probabilities[places], given.predictions[places], given.n_classes)


def _rankings(
    given: Checked, times: NDArray[np.int64], place: NDArray[np.intp]
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64]]]:
    """Blocks of resamples with their positives and negatives from the largest probability down to every smaller one.

    The windows are sorted once and counted as often as they were drawn.
    """
    order = np.argsort(-given.probabilities, kind="stable")
    value, positive, owner = given.probabilities[order], given.labels[order] == 1, place[order]
    last = np.append(np.flatnonzero(np.diff(value)), len(value) - 1)  # the last window of every tie
    step = max(1, _BLOCK // len(value))
    for start in range(0, len(times), step):
        weight = times[start : start + step, owner].astype(np.float64)  # (resamples, windows)
        hits = np.cumsum(weight * positive, axis=1)[:, last]
        yield slice(start, start + step), hits, np.cumsum(weight, axis=1)[:, last] - hits
