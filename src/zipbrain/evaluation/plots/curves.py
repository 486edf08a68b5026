"""Score against cost, a panel per method: its ratios, its intervals, the original and, in grey, the other methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.plots.style import BLACK, GREY, looks, new_figure, styled
from zipbrain.evaluation.result import Result, known_costs, labels_of, main_metric_of, ratio_order
from zipbrain.metrics import metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REMOVED: Final = "removed"
AXES: Final = {
    "latency": "times as fast as the original",
    "operations": "share of the original's operations",
    REMOVED: "share of tokens removed",
}
_COLUMNS: Final = 3
_MASS: Final = " + mass"


@dataclass(frozen=True)
class _Point:
    """Results of one ratio."""

    cost: float
    score: float
    paper: float | None
    interval: tuple[float, float] | None  # of a single result


@styled
def ratio_curves(
    records: Sequence[Result | Mapping[str, Any]],
    metric: str | None = None,
    title: str = "",
    paper: bool = True,
    kind: str | None = None,
) -> Figure:
    """Draw the curves of one task, a panel per method.

    Parameters
    ----------
    records : sequence of Result or dict
        Results or records of a store, of one task: the uncompressed model's and those of compressed ones. Those of one
        method and ratio (several seeds) are joined by their mean.
    metric : str, optional
        A key of `scores`; the paper's main metric for this number of classes if not given.
    title : str
        Above the picture.
    paper : bool
        Draw the paper's values too, dashed, at the cost of our result of the same ratio.
    kind : {"latency", "operations", "removed"}, optional
        What stands below: how many times as fast as the original, the share of its operations, or the share of tokens
        removed. If not given, the first of these that every record has.

    Notes
    -----
    Bars are intervals of the panel's method (95 % over test subjects, unless their maker says otherwise), the grey band
    is that of the original. Scores of the same windows are compared, so bars that overlap may still differ.
    """
    results = [Result.of(record) for record in records]
    metric, kind = metric or main_metric_of(results), kind or curve_kind(results)
    original = next((result for result in results if result.is_original and result.has(metric)), None)
    curves = _curves(results, metric, kind)
    methods = list(dict.fromkeys(label.removesuffix(_MASS) for label in curves)) or [""]
    columns = min(_COLUMNS, len(methods))
    rows = math.ceil(len(methods) / columns)
    figure = new_figure(max(3.6, 2.1 * columns + 0.4), 1.75 * rows + 1.0)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    is_published = False
    for method, ax in zip(methods, axes, strict=False):
        own = [label for label in curves if label.removesuffix(_MASS) == method]
        for label, points in curves.items():
            if label not in own:
                ax.plot([p.cost for p in points], [p.score for p in points], color=GREY, alpha=0.3, linewidth=0.8)
        if original is not None:
            is_published |= _draw_original(ax, original, metric, paper)
        for label in own:
            is_published |= _draw_method(ax, label, curves[label], looks(curves)[label], paper)
        ax.set_title(method, fontsize=9, loc="left")
        if kind in ("operations", REMOVED):
            ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        ax.grid(axis="y")
    for ax in axes[len(methods) :]:
        ax.set_visible(False)
    for ax in axes[max(0, len(methods) - columns) : len(methods)]:
        ax.tick_params(labelbottom=True)
    figure.supxlabel(AXES[kind], fontsize=9)
    figure.supylabel(metric_title(metric), fontsize=9)
    _add_legend(figure, curves, original is not None, is_published)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def curve_kind(results: Sequence[Result]) -> str:
    """The cost against which curves are drawn: time or operations where every compressed result has it."""
    known, compressed = known_costs(results), sum(not result.is_original for result in results)
    return next((kind for kind in AXES if known.get(kind) == compressed), REMOVED)


def axis_value(kind: str, cost: float) -> float:
    """Where a cost stands: a time as how many times as fast, anything else as it is."""
    return 1 / cost if kind == "latency" else cost


def _curves(results: Sequence[Result], metric: str, kind: str) -> dict[str, list[_Point]]:
    """One point per ratio of every label, by rising place on the axis; the mean over results of the same ratio."""
    original = next((result for result in results if result.is_original), None)
    curves = {}
    for label in labels_of(results):
        by_ratio: dict[str, list[tuple[float, Result]]] = {}
        for result in sorted((r for r in results if r.label == label and not r.is_original), key=ratio_order):
            cost = result.removed if kind == REMOVED else result.costs(original).get(kind, math.nan)
            if result.has(metric) and not math.isnan(cost):
                by_ratio.setdefault(str(result.ratio), []).append((axis_value(kind, cost), result))
        points = []
        for same in by_ratio.values():
            cost = sum(place for place, _ in same) / len(same)
            score, first = sum(r.value(metric) for _, r in same) / len(same), same[0][1]
            band = first.interval(metric) if len(same) == 1 else None
            points.append(_Point(cost, score, first.paper_value(metric), band))
        if points:
            curves[label] = sorted(points, key=lambda point: point.cost)
    return curves


def _draw_method(ax: Axes, label: str, points: list[_Point], look: tuple[str, str, str], paper: bool) -> bool:
    """Draw a method's points with their intervals; True if the paper's values are drawn too."""
    colour, marker, line = look
    x, y = [point.cost for point in points], [point.score for point in points]
    face = colour if line == "-" else "white"
    ax.plot(x, y, color=colour, marker=marker, markerfacecolor=face, linestyle=line, markersize=5, label=label)
    for point in points:
        if point.interval is not None and line == "-":  # with mass, bars would lie over those without
            ax.plot([point.cost] * 2, point.interval, color=colour, alpha=0.5, linewidth=1.2, label="_interval")
    values = [(point.cost, point.paper) for point in points if paper and point.paper is not None]
    if values:
        dashed: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "--"}
        ax.plot([v[0] for v in values], [v[1] for v in values], linewidth=1.0, markerfacecolor="white", **dashed)
    return bool(values)


def _draw_original(ax: Axes, original: Result, metric: str, paper: bool) -> bool:
    """Draw the original as a level with its interval; True if the paper's is drawn too."""
    ax.axhline(original.value(metric), color=BLACK, linewidth=1.0, label=original.label)
    band = original.interval(metric)
    if band is not None:
        ax.axhspan(*band, color=BLACK, alpha=0.06, linewidth=0)
    value = original.paper_value(metric) if paper else None
    if value is not None:
        ax.axhline(value, color=BLACK, linewidth=0.8, linestyle="--")
    return value is not None


def _add_legend(figure: Figure, curves: Mapping[str, object], has_original: bool, is_published: bool) -> None:
    """Say once for all panels what lines mean; a panel's title names its method."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=BLACK, linewidth=1.0, label="original, with its interval")] * has_original
    if len({label.removesuffix(_MASS) for label in curves}) > 1:
        handles.append(Line2D([], [], color=GREY, alpha=0.5, linewidth=0.8, label="the other methods"))
    dark: dict[str, Any] = {"color": "#444444", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
    if any(label.endswith(_MASS) for label in curves):
        handles.append(Line2D([], [], linestyle=":", label="with mass", **dark))
    if is_published:
        handles.append(Line2D([], [], linestyle="--", label="paper", **dark))
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
