"""Confusion matrices, drawn with matplotlib: of labels and probabilities, and of stored results side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import matplotlib, new_figure, styled
from zipbrain.metrics import check, check_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def confusion(
    labels: ArrayLike,
    probabilities: ArrayLike,
    classes: Sequence[str],
    ax: Axes | None = None,
    *,
    threshold: float = 0.5,
) -> Axes:
    """Draw the confusion matrix: rows are the true classes, in per cent of the row, with the counts underneath.

    Parameters
    ----------
    labels, probabilities, threshold
        As for `zipbrain.metrics.scores`: probabilities, not logits.
    classes : sequence of str
        Names of the classes, in the order of the labels.
    ax : matplotlib Axes, optional
        Where to draw; a new figure of fitting size if not given.

    Returns
    -------
    ax : matplotlib Axes
        Save it with ``ax.figure.savefig("confusion.svg")`` (or .png, .pdf).
    """
    given = check(labels, probabilities, threshold=threshold)
    check_names(classes, given.n_classes)
    if ax is None:
        matplotlib()
        from matplotlib import pyplot

        side = max(3.2, 0.8 * given.n_classes + 1.6)
        ax = pyplot.subplots(figsize=(side, side * 0.95), layout="constrained")[1]
    return _draw(ax, given.table, classes)


@styled
def confusion_counts(counts: ArrayLike, classes: Sequence[str], title: str = "") -> Figure:
    """Draw one confusion matrix of counts (K, K): rows are true classes, columns predicted ones."""
    side = max(3.4, 0.62 * len(classes) + 1.5)
    figure = new_figure(side, side * 0.95)
    _draw_counts(figure.subplots(), counts, classes, title)
    return figure


@styled
def confusion_pair(
    before: ArrayLike, after: ArrayLike, classes: Sequence[str], names: tuple[str, str] = ("before", "after")
) -> Figure:
    """Draw two confusion matrices.

    Parameters
    ----------
    before, after : array (K, K) of int
        Counts: rows are true classes, columns predicted ones.
    classes : sequence of str
        Names of the classes.
    names : (str, str)
        Titles.
    """
    k = len(classes)
    side = max(3.4, 0.72 * k + 1.7)
    figure = new_figure(2 * side, side * 0.98)
    for ax, given, name in zip(figure.subplots(1, 2), (before, after), names, strict=True):
        _draw_counts(ax, given, classes, name)
    return figure


def _draw_counts(ax: Axes, given: ArrayLike, classes: Sequence[str], title: str) -> None:
    counts, k = np.asarray(given), len(classes)
    if counts.shape != (k, k) or counts.min(initial=0) < 0 or counts.sum() == 0:
        raise OptionError("confusion", counts.shape, f"counts of {k} x {k} classes are needed")
    _draw(ax, counts, classes).set_title(title, fontsize=10)


def _draw(ax: Axes, counts: ArrayLike, classes: Sequence[str]) -> Axes:
    table = np.asarray(counts).astype(np.int64)
    rows = table.sum(axis=1, keepdims=True)
    share = 100 * table / np.maximum(rows, 1)
    ax.imshow(share, cmap="Blues", vmin=0, vmax=100)
    for i, j in np.ndindex(*table.shape):
        text = f"{share[i, j]:.0f} %\n{table[i, j]:,}" if rows[i] else "–"
        colour = "white" if share[i, j] > 65 else "#222222"
        ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=9, linespacing=1.3)
    names = [str(name) for name in classes]
    slanted = max(map(len, names)) > 10
    ax.set_xticks(range(len(names)), names, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    ax.set_yticks(
        range(len(names)), [f"{name}\n(n = {total:,})" for name, total in zip(names, rows[:, 0], strict=True)]
    )
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax
