"""Confusion matrices of stored records, side by side: before and after compression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import OptionError
from zipbrain.evaluation.figures import confusion
from zipbrain.evaluation.plots.style import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    side = max(3.4, 0.72 * len(classes) + 1.7)
    figure = new_figure(2 * side, side * 0.98)
    for ax, counts, name in zip(figure.subplots(1, 2), (before, after), names, strict=True):
        confusion(*_cases(counts, len(classes)), classes, ax)
        ax.set_title(name, fontsize=10)
    return figure


def _cases(counts: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels and sure predictions that have this confusion matrix."""
    table = np.asarray(counts)
    if table.shape != (k, k) or table.min(initial=0) < 0 or table.sum() == 0:
        raise OptionError("confusion", table.shape, f"counts of {k} x {k} classes are needed")
    true, called = np.indices((k, k)).reshape(2, -1)
    times = table.ravel().astype(np.int64)
    return np.repeat(true, times), np.eye(k)[np.repeat(called, times)]
