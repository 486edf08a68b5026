"""Figure: decisions over time as a hypnogram or a strip of classes, and the probabilities below them."""

from __future__ import annotations

import io
import threading
import warnings
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain._lazy import import_extra
from zipbrain.edge.formats.base import MARK, Format
from zipbrain.edge.prediction import NO_DECISION, Prediction
from zipbrain.edge.sleep_stages import ORDER, sleep_stages

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
_NOTHING: Final = "#d9d9d9"
_LINE: Final = 0.30  # inches per class
_COLUMNS: Final = 1500  # of a map of probabilities
_LONGEST: Final = 60  # characters of a name
_UNDECIDED, _NOT_SEEN = -1, -2  # in place of a class
_one_at_a_time = threading.Lock()  # matplotlib is not made for threads

Times = NDArray[np.float64]
Spans = dict[int, list[tuple[float, float]]]


class Figure(Format):
    """The same picture as PNG and as SVG."""

    name, package, extra = "figure", "matplotlib", "report"

    def file_names(self, stem: str) -> dict[str, str]:
        return {"figure": f"{stem}{MARK}.png", "figure_svg": f"{stem}{MARK}.svg"}

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        return {"figure": draw(prediction, "png"), "figure_svg": draw(prediction, "svg")}


def draw(prediction: Prediction, kind: str = "png") -> bytes:
    """Draw a prediction as the content of a "png" or "svg" file."""
    mpl = import_extra("matplotlib", "matplotlib", "report", "a figure")
    from matplotlib.figure import Figure as Canvas

    count, stages = len(prediction.classes), sleep_stages(prediction.classes)
    rows = list(range(count))  # classes from top to bottom
    if stages is not None:
        rows.sort(key=lambda index: ORDER.index(stages[index]))
    heights = (max(1.1, _LINE * count), max(1.3, _LINE * count))
    with _one_at_a_time, mpl.rc_context({"font.size": 9, "svg.hashsalt": "zipbrain", "svg.fonttype": "none"}):
        figure = Canvas(figsize=(10, sum(heights) + 1.6), layout="constrained")
        grid = figure.subplots(2, 2, sharex="col", height_ratios=heights, width_ratios=(60, 1))
        (above, corner), (below, bar) = grid
        corner.axis("off")
        edges, decisions, shares = _stretches(prediction)
        minutes = edges[-1] / 60
        factor, unit = (1, "s") if minutes <= 5 else (60, "min") if minutes <= 180 else (3600, "h")
        edges = edges / factor
        spans = _spans(decisions, edges)
        _draw_decisions(above, prediction, rows, edges, decisions, spans)
        below.broken_barh(spans.get(_UNDECIDED, []), (-0.5, max(count, 2)), color=_NOTHING, linewidth=0)
        if count == 2:
            bar.axis("off")
            _draw_line(below, prediction, edges, shares[:, 1])
        else:
            _draw_map(figure, below, bar, prediction, rows, edges, shares)
        below.set_xlabel(f"time from the start of the recording ({unit})")
        below.set_xlim(edges[0], edges[-1])
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # of a script that the font does not have
            figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()


def _draw_decisions(
    ax: Any, prediction: Prediction, rows: list[int], edges: Times, decisions: NDArray[np.int64], spans: Spans
) -> None:
    from matplotlib.patches import Patch

    count = len(rows)
    place = {decision: line for line, decision in enumerate(rows)}
    ax.broken_barh(spans.get(_UNDECIDED, []), (-0.5, count), color=_NOTHING, linewidth=0)
    for decision, line in place.items():
        colour = _COLOURS[line % len(_COLOURS)]
        ax.broken_barh(spans.get(decision, []), (line - 0.3, 0.6), color=colour, linewidth=0.3)
    if sleep_stages(prediction.classes) is not None:
        steps = np.array([place.get(int(decision), np.nan) for decision in decisions], dtype=float)
        ax.step(edges, np.append(steps, steps[-1]), where="post", color="black", linewidth=0.8)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_yticks(range(count), [_short(prediction.classes[decision], 20) for decision in rows])
    ax.set_ylabel("decision")
    ax.set_title(_short(prediction.path.name, _LONGEST), loc="left", fontsize=10)
    if undecided := int((prediction.decisions < 0).sum()):
        patch = Patch(color=_NOTHING, label=f"{NO_DECISION}: {undecided} of {len(prediction.starts)} windows")
        ax.legend(handles=[patch], loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderpad=0.1)


def _draw_line(ax: Any, prediction: Prediction, edges: Times, shares: NDArray[np.float32]) -> None:
    """Draw the probability of the second of two classes."""
    ax.step(edges, np.append(shares, shares[-1]), where="post", color=_COLOURS[1], linewidth=0.9)
    ax.axhline(0.5, color="black", linewidth=0.7, linestyle="--")
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel(f"probability of\n{_short(prediction.classes[1], 20)}")


def _draw_map(
    figure: Any, ax: Any, bar: Any, prediction: Prediction, rows: list[int], edges: Times, shares: NDArray[np.float32]
) -> None:
    from matplotlib import colormaps

    step = -(-len(shares) // _COLUMNS)
    times = np.append(edges[:-1:step], edges[-1])
    lines = np.arange(len(rows) + 1) - 0.5
    seen = np.ma.masked_invalid(_thinned(shares[:, rows], step).T)
    image = ax.pcolormesh(times, lines, seen, cmap=colormaps["cividis"], vmin=0, vmax=1, rasterized=True)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [_short(prediction.classes[decision], 20) for decision in rows])
    ax.set_ylabel("probability")
    figure.colorbar(image, cax=bar)


def _thinned(shares: NDArray[np.float32], step: int) -> NDArray[np.float64]:
    """Means of `step` neighbours (m, classes), as many as a picture can show; what is not decided does not count."""
    groups = np.arange(0, len(shares), step)
    decided = np.isfinite(shares)
    sums = np.add.reduceat(np.where(decided, shares, 0.0), groups, axis=0)
    counts = np.add.reduceat(decided.astype(np.float64), groups, axis=0)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def _stretches(prediction: Prediction) -> tuple[Times, NDArray[np.int64], NDArray[np.float32]]:
    """Stretches of time: their ends (m + 1,) in seconds, decisions (m,) and probabilities (m, K).

    A window stands for the time until the next one, but never for more than it saw: what lies between windows that are
    far apart is a stretch of its own, without a decision and without a reason for that.
    """
    starts, decisions, shares = prediction.starts, prediction.decisions, prediction.probabilities
    if prediction.hop_s <= prediction.window_s:
        return np.append(starts, starts[-1] + prediction.hop_s), decisions, shares
    edges = np.stack((starts, starts + prediction.window_s), axis=1).ravel()
    between = np.full_like(decisions, _NOT_SEEN)
    drawn = np.stack((decisions, between), axis=1).ravel()[:-1]
    return edges, drawn, np.stack((shares, np.full_like(shares, np.nan)), axis=1).reshape(-1, shares.shape[1])[:-1]


def _spans(decisions: NDArray[np.int64], edges: Times) -> Spans:
    """Beginning and length of every stretch of equal decisions, by decision."""
    cuts = [0, *(np.flatnonzero(np.diff(decisions)) + 1).tolist(), len(decisions)]
    found: Spans = {}
    for first, last in pairwise(cuts):
        found.setdefault(int(decisions[first]), []).append((edges[first], edges[last] - edges[first]))
    return found


def _short(text: str, most: int) -> str:
    text = "".join(c if c.isprintable() and c != "$" else "_" for c in text)  # a pair of $ would be set as a formula
    return text if len(text) <= most else f"{text[: most - 1]}…"
