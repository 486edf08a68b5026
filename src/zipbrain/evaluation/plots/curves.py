"""Score against cost, one curve per method through its ratios, with the paper's values beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.plots.style import BLACK, GREY, looks, new_figure, styled
from zipbrain.evaluation.result import Result, known_costs, labels_of, main_metric_of, ratio_order
from zipbrain.metrics import metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REMOVED: Final = "removed"
AXES: Final = {
    "latency": "time, relative to the uncompressed model",
    "operations": "operations, pooling included, relative to the uncompressed model",
    REMOVED: "share of tokens removed",
}


@styled
def ratio_curves(
    records: Sequence[Result | Mapping[str, Any]],
    metric: str | None = None,
    title: str = "",
    paper: bool = True,
    kind: str | None = None,
) -> Figure:
    """Draw the curves of one task.

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
        What stands below: time or operations over the uncompressed model's, or the share of tokens removed. If not
        given, the first of these that every record has.

    Notes
    -----
    The band is the interval of the uncompressed model: 95 % over test subjects, unless its maker says otherwise. Those
    of the methods would hide each other; they stand in the tables.
    """
    results = [Result.of(record) for record in records]
    metric, kind = metric or main_metric_of(results), kind or curve_kind(results)
    original = next((result for result in results if result.is_original), None)
    costs = {id(r): r.removed if kind == REMOVED else r.costs(original).get(kind, math.nan) for r in results}
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    published = _original(ax, results, metric, paper)
    for label, (colour, marker, line) in looks(labels_of(results)).items():
        rows = _points([(costs[id(r)], r) for r in results if r.label == label and not r.is_original], metric)
        if not rows:
            continue
        x, y = [row[0] for row in rows], [row[1] for row in rows]
        face = colour if line == "-" else "white"
        ax.plot(x, y, color=colour, marker=marker, markerfacecolor=face, linestyle=line, markersize=5, label=label)
        values = [(row[0], row[2]) for row in rows if paper and row[2] is not None]
        if values:
            published = True
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "--"}
            ax.plot([v[0] for v in values], [v[1] for v in values], linewidth=1.0, markerfacecolor="white", **look)
    ax.set_xlabel(AXES[kind])
    ax.set_ylabel(metric_title(metric))
    if kind == REMOVED:
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ax.grid(axis="y")
    if published:
        ax.plot([], [], color=GREY, linestyle="--", marker="o", markerfacecolor="white", label="paper (same colours)")
    figure.legend(loc="outside lower center", ncols=4)
    if title:
        ax.set_title(title, loc="left")
    return figure


def curve_kind(results: Sequence[Result]) -> str:
    """The cost against which curves are drawn: time or operations where every compressed result has it."""
    known, compressed = known_costs(results), sum(not result.is_original for result in results)
    return next((kind for kind in AXES if known.get(kind) == compressed), REMOVED)


_Point = tuple[float, float, float | None]  # cost, score, paper's


def _points(results: list[tuple[float, Result]], metric: str) -> list[_Point]:
    """One point per ratio, by rising cost; the mean over results of the same ratio."""
    by_ratio: dict[str, list[tuple[float, Result]]] = {}
    for cost, result in sorted(results, key=lambda pair: ratio_order(pair[1])):
        if result.has(metric) and not math.isnan(cost):
            by_ratio.setdefault(str(result.ratio), []).append((cost, result))
    points = []
    for same in by_ratio.values():
        cost, score = (sum(values) / len(same) for values in ((c for c, _ in same), (r.value(metric) for _, r in same)))
        points.append((cost, score, same[0][1].paper_value(metric)))
    return sorted(points, key=lambda point: point[0])


def _original(ax: Axes, results: Sequence[Result], metric: str, paper: bool) -> bool:
    """Draw the uncompressed model as a level; True if the paper's is drawn too."""
    original = next((result for result in results if result.is_original and result.has(metric)), None)
    if original is None:
        return False
    ax.axhline(original.value(metric), color=BLACK, linewidth=1.0, label=original.label)
    band = original.interval(metric)
    if band is not None:
        ax.axhspan(*band, color=BLACK, alpha=0.07, linewidth=0, label=f"interval of {original.label}")
    value = original.paper_value(metric) if paper else None
    if value is not None:
        ax.axhline(value, color=BLACK, linewidth=0.8, linestyle="--")
    return value is not None
