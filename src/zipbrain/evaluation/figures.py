"""Figures of an evaluation, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from zipbrain.errors import MissingExtra
from zipbrain.evaluation.metrics import check, check_names, sklearn_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        As for `metrics.scores`: probabilities, not logits.
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
    k = given.n_classes
    counts = sklearn_metrics().confusion_matrix(given.labels, given.predictions, labels=range(k))
    rows = counts.sum(axis=1, keepdims=True)
    share = 100 * counts / np.maximum(rows, 1)
    if ax is None:
        side = max(3.2, 0.8 * k + 1.6)
        ax = _pyplot().subplots(figsize=(side, side * 0.95), layout="constrained")[1]
    ax.imshow(share, cmap="Blues", vmin=0, vmax=100)
    for i in range(k):
        for j in range(k):
            text = f"{share[i, j]:.0f} %\n{counts[i, j]:,}" if rows[i] else "–"
            colour = "white" if share[i, j] > 65 else "#222222"
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=9, linespacing=1.3)
    names = [str(name) for name in classes]
    slanted = max(map(len, names)) > 10
    ax.set_xticks(range(k), names, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    ax.set_yticks(range(k), [f"{name}\n(n = {total:,})" for name, total in zip(names, rows[:, 0], strict=True)])
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ModuleNotFoundError as missing:
        if missing.name != "matplotlib":
            raise
        raise MissingExtra("matplotlib", "report", "zipbrain.evaluation.figures") from None
    return matplotlib.pyplot
