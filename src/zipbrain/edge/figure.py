"""A prediction over time as a picture: a hypnogram or a strip of classes, and the probabilities below it."""

from __future__ import annotations

import io
import threading
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.result import Prediction
from zipbrain.edge.stages import ORDER, sleep_stages
from zipbrain.errors import MissingExtra

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
_NOTHING: Final = "#d9d9d9"
_LINE: Final = 0.30  # inches per class
_COLUMNS: Final = 1500  # of a map of probabilities
_LONGEST: Final = 60  # characters of a name
_one_at_a_time = threading.Lock()  # matplotlib is not made for threads


def draw(prediction: Prediction, kind: str = "png") -> bytes:
    """Draw a prediction.

    Parameters
    ----------
    prediction : Prediction
    kind : {"png", "svg"}

    Returns
    -------
    content : bytes
        Of the picture's file.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtra("matplotlib", "plot", "a figure") from None
    rows = _rows_of_classes(prediction)
    count = len(rows)
    heights = (max(1.1, _LINE * count), max(1.3, _LINE * count))
    with _one_at_a_time, mpl.rc_context({"font.size": 9, "svg.hashsalt": "zipbrain", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, sum(heights) + 1.6), layout="constrained")
        grid = figure.subplots(2, 2, sharex="col", height_ratios=heights, width_ratios=(60, 1))
        (above, corner), (below, bar) = grid
        corner.axis("off")
        edges, unit = _edges(prediction)
        runs = _runs(prediction.decisions)
        _draw_decisions(above, prediction, rows, edges, runs)
        if count == 2:
            bar.axis("off")
            _draw_line(below, prediction, edges, runs)
        else:
            _draw_map(figure, below, bar, prediction, rows, edges)
        below.set_xlabel(f"time from the start of the recording ({unit})")
        below.set_xlim(edges[0], edges[-1])
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()


def _draw_decisions(ax: Any, prediction: Prediction, rows: list[int], edges: NDArray[Any], runs: Any) -> None:
    from matplotlib.patches import Patch

    count = len(rows)
    place = {decision: line for line, decision in enumerate(rows)}
    spans: dict[int, list[tuple[float, float]]] = {}
    for first, last, decision in runs:
        spans.setdefault(decision, []).append((edges[first], edges[last] - edges[first]))
    for decision, where in spans.items():
        if decision < 0:
            ax.broken_barh(where, (-0.5, count), color=_NOTHING, linewidth=0)
        else:
            ax.broken_barh(where, (place[decision] - 0.3, 0.6), color=_colour(place[decision]), linewidth=0.3)
    if sleep_stages(prediction.classes) is not None:
        steps = np.array([place.get(int(decision), np.nan) for decision in prediction.decisions], dtype=float)
        ax.step(edges, np.append(steps, steps[-1]), where="post", color="black", linewidth=0.8)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_yticks(range(count), [_short(prediction.classes[decision], 20) for decision in rows])
    ax.set_ylabel("decision")
    ax.set_title(_short(prediction.path.name, _LONGEST), loc="left", fontsize=10)
    if undecided := int((prediction.decisions < 0).sum()):
        patch = Patch(color=_NOTHING, label=f"no decision: {undecided} of {len(prediction.starts)} windows")
        ax.legend(handles=[patch], loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderpad=0.1)


def _draw_line(ax: Any, prediction: Prediction, edges: NDArray[Any], runs: Any) -> None:
    """With two classes, the probability of the second says it all."""
    nothing = [(edges[first], edges[last] - edges[first]) for first, last, decision in runs if decision < 0]
    ax.broken_barh(nothing, (-0.03, 1.06), color=_NOTHING, linewidth=0)
    shares = prediction.probabilities[:, 1]
    ax.step(edges, np.append(shares, shares[-1]), where="post", color=_COLOURS[1], linewidth=0.9)
    ax.axhline(0.5, color="black", linewidth=0.7, linestyle="--")
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel(f"probability of\n{_short(prediction.classes[1], 20)}")


def _draw_map(figure: Any, ax: Any, bar: Any, prediction: Prediction, rows: list[int], edges: NDArray[Any]) -> None:
    from matplotlib import colormaps

    colours = colormaps["cividis"].with_extremes(bad=_NOTHING)
    shares = np.ma.masked_invalid(_thinned(prediction.probabilities[:, rows]).T)
    extent = (edges[0], edges[-1], len(rows) - 0.5, -0.5)
    image = ax.imshow(shares, aspect="auto", interpolation="nearest", extent=extent, cmap=colours, vmin=0, vmax=1)
    ax.set_yticks(range(len(rows)), [_short(prediction.classes[decision], 20) for decision in rows])
    ax.set_ylabel("probability")
    figure.colorbar(image, cax=bar)


def _thinned(shares: NDArray[np.float32]) -> NDArray[np.float64]:
    """Means of neighbours (m, classes), as many as a picture can show; what is not decided does not count."""
    step = -(-len(shares) // _COLUMNS)
    groups = np.arange(0, len(shares), step)
    decided = np.isfinite(shares)
    sums = np.add.reduceat(np.where(decided, shares, 0.0), groups, axis=0)
    counts = np.add.reduceat(decided.astype(np.float64), groups, axis=0)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def _rows_of_classes(prediction: Prediction) -> list[int]:
    """Classes from top to bottom: as the model has them, sleep stages as in a hypnogram."""
    stages = sleep_stages(prediction.classes)
    order = range(len(prediction.classes))
    return list(order) if stages is None else sorted(order, key=lambda index: ORDER.index(stages[index]))


def _edges(prediction: Prediction) -> tuple[NDArray[np.float64], str]:
    """Where each window's stretch begins, and where the last one's ends."""
    last = prediction.starts[-1] + min(prediction.hop_s, prediction.window_s)
    edges = np.append(prediction.starts, last)
    if last <= 300:
        return edges, "s"
    return (edges / 60, "min") if last <= 3 * 3600 else (edges / 3600, "h")


def _runs(decisions: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Stretches of equal decisions: first window, the one after the last, decision."""
    cuts = [0, *(np.flatnonzero(np.diff(decisions)) + 1).tolist(), len(decisions)]
    return [(first, last, int(decisions[first])) for first, last in pairwise(cuts)]


def _colour(line: int) -> str:
    return _COLOURS[line % len(_COLOURS)]


def _short(text: str, most: int) -> str:
    text = "".join(c if c.isprintable() and c != "$" else "_" for c in text)  # a pair of $ would be set as a formula
    return text if len(text) <= most else f"{text[: most - 1]}…"
