"""The merge map of one window: a grid of channels and seconds, every token in the colour of the group it ended in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import ORANGE, PALE, halo, new_figure, palette, styled
from zipbrain.evaluation.token_fates import Fates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUMBERED: Final = 600  # cells: with more, numbers could not be read


@styled
def merge_map(
    fates: Fates, window: int = 0, signal: NDArray[np.float32] | None = None, sfreq: float = 200.0, title: str = ""
) -> Figure:
    """Draw who ended in whose company.

    Parameters
    ----------
    fates : Fates
        Of `zipbrain.evaluation.token_fates.fates`.
    window : int
        Which of its windows.
    signal : ndarray (C, T), optional
        The window's EEG in microvolt, drawn over the cells; left out where the model's tokens are mixtures of channels.
    sfreq : float
        Its sampling rate.
    title : str
        First line above the map.

    Notes
    -----
    Groups are numbered by falling size. EEGPT's tokens only meet inside their column, so its groups are columnwise.
    """
    if not 0 <= window < len(fates.owner):
        raise OptionError("window", window, f"there are {len(fates.owner)} windows, counted from 0")
    layout, owner = fates.layout, fates.owner[window]
    channels, columns = layout.shape
    numbers = group_numbers(owner)
    wide = min(12.0, max(5.4, 1.7 + 0.42 * columns))
    figure = new_figure(wide, 1.8 + 0.23 * channels)
    ax = figure.subplots()
    _cells(ax, fates, window, numbers)
    with_signal = signal is not None and not layout.projected
    if with_signal:
        assert signal is not None
        _traces(ax, signal, sfreq)
    ax.set_yticks(range(channels), layout.ch_names, fontsize=7)
    ax.set_ylim(channels - 0.5, -0.5)
    end = layout.starts[-1] + layout.length if signal is None else signal.shape[1] / sfreq
    ax.set_xlim(0, end)
    overlapping = layout.length > layout.step + 1e-9
    seen = f"; a token sees {layout.length:g} s and is drawn at its middle {layout.step:g} s" if overlapping else ""
    ax.set_xlabel(f"time (s){seen}")
    ax.set_ylabel("place of the model's projection" if layout.projected else "channel")
    ax.tick_params(length=2)
    _legend(ax, fates, window, with_signal)
    groups = int(numbers.max(initial=0))
    dropped, alone = int((owner < 0).sum()), int((numbers == 0).sum())
    where = " inside each column" if layout.folded else ""
    note = (
        f"{owner.size} tokens: {groups} groups of two or more{where},\nnumbered from the largest, "
        f"{alone} alone, {dropped} dropped"
    )
    ax.set_title(f"{title}\n{note}" if title else note, fontsize=9, loc="left")
    return figure


def group_numbers(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of every token's group, largest first from 1; 0 for a token alone, -1 for a dropped one."""
    names, place, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    joined = (names >= 0) & (sizes > 1)
    order = sorted(np.flatnonzero(joined), key=lambda i: (-sizes[i], names[i]))
    number = np.where(names < 0, -1, 0)
    number[order] = np.arange(1, len(order) + 1)
    return number[place].reshape(owner.shape).astype(np.int64)


def _cells(ax: Axes, fates: Fates, window: int, numbers: NDArray[np.int64]) -> None:
    from matplotlib.patches import Rectangle

    layout, kept = fates.layout, fates.kept[window]
    pivots = None if fates.pivots is None else fates.pivots[window]
    edges, step = layout.edges.tolist(), layout.step
    colours = palette(int(numbers.max(initial=0)))
    for row, column in np.ndindex(*layout.shape):
        number, corner = int(numbers[row, column]), (edges[column], row - 0.5)
        if number < 0:
            look: dict[str, Any] = {"facecolor": "white", "edgecolor": "#999999", "hatch": "////", "linewidth": 0.3}
        else:
            colour = "white" if number == 0 else colours[number - 1]
            look = {"facecolor": colour, "edgecolor": PALE, "linewidth": 0.5, "alpha": 1.0 if number == 0 else 0.55}
        ax.add_patch(Rectangle(corner, step, 1, **look))
        if number > 0 and numbers.size <= _NUMBERED:
            place = edges[column] + 0.07 * step, row - 0.40
            ax.text(*place, str(number), fontsize=6, va="top", zorder=4, path_effects=[halo()])
        if kept[row, column]:
            inner = (edges[column] + 0.04 * step, row - 0.44)
            ax.add_patch(Rectangle(inner, 0.92 * step, 0.88, fill=False, edgecolor="black", linewidth=1.1, zorder=3))
        if pivots is not None and pivots[row, column]:
            dot: dict[str, Any] = {
                "color": "black",
                "markersize": 4,
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
            }
            ax.plot(edges[column] + 0.86 * step, row - 0.25, marker="o", zorder=5, **dot)


def _traces(ax: Axes, signal: NDArray[np.float32], sfreq: float) -> None:
    centred = signal - np.median(signal, axis=1, keepdims=True)
    size = float(np.quantile(np.abs(centred), 0.99)) or 1.0
    time = np.arange(signal.shape[1]) / sfreq
    for row, trace in enumerate(centred):
        line = row - 0.45 * np.clip(trace / size, -1, 1)  # rows run downwards, voltage upwards
        ax.plot(time, line, color="#222222", linewidth=0.45, zorder=2)


def _legend(ax: Axes, fates: Fates, window: int, with_signal: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    numbers = group_numbers(fates.owner[window])
    handles: list[Any] = [Patch(facecolor="white", edgecolor="black", linewidth=1.1, label="kept to the end")]
    if (numbers > 0).any():
        named = "same number" if numbers.size <= _NUMBERED else "same colour"
        handles.insert(0, Patch(facecolor=ORANGE, alpha=0.55, label=f"{named}: one group"))
    if (numbers == 0).any():
        handles.append(Patch(facecolor="white", edgecolor="#BBBBBB", label="white: alone"))
    if fates.pivots is not None:
        dot: dict[str, Any] = {"color": "black", "markersize": 4, "linestyle": ""}
        handles.append(Line2D([], [], marker="o", label="pivot of the last reducing block", **dot))
    if (numbers < 0).any():
        handles.append(Patch(facecolor="white", edgecolor="#999999", hatch="////", label="dropped"))
    if with_signal:
        handles.append(Line2D([], [], color="#222222", linewidth=0.6, label="EEG (one scale, clipped)"))
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7)
