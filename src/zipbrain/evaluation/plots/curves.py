"""Score against the share of tokens removed, one curve per method, with the paper's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zipbrain.evaluation.plots.reading import (
    METRICS,
    Record,
    interval,
    is_original,
    labels_of,
    main_metric,
    paper_value,
    ratio_order,
    score,
)
from zipbrain.evaluation.plots.style import BLACK, GREY, looks, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def ratio_curves(records: Sequence[Record], metric: str | None = None, title: str = "", paper: bool = True) -> Figure:
    """Draw the curves of one task.

    Parameters
    ----------
    records : sequence of dict
        Of one task: the uncompressed model's and those of compressed ones. Records of one method and ratio (several
        seeds) are joined by their mean.
    metric : str, optional
        A key of `scores`; the paper's main metric for this number of classes if not given.
    title : str
        Above the picture.
    paper : bool
        Whether to draw the paper's values too, dashed, at the share that our record of the same ratio removes.

    Notes
    -----
    Bands are the records' intervals: 95 % over test subjects, unless their maker says otherwise.
    """
    metric = metric or main_metric(records)
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    published = _original(ax, records, metric, paper)
    labels = labels_of(records)
    banded = False
    for label, (colour, marker, line) in looks(labels).items():
        rows = _points([r for r in records if str(r["label"]) == label and not is_original(r)], metric)
        if not rows:
            continue
        x, y = [row[0] for row in rows], [row[1] for row in rows]
        ax.plot(x, y, color=colour, marker=marker, linestyle=line, markersize=5, label=label)
        bands = [(row[0], row[2]) for row in rows if row[2] is not None]
        if bands and line == "-":  # twice as many bands could not be told apart
            banded = True
            low, high = [b[1][0] for b in bands if b[1]], [b[1][1] for b in bands if b[1]]
            ax.fill_between([b[0] for b in bands], low, high, color=colour, alpha=0.10, linewidth=0)
        values = [(row[0], row[3]) for row in rows if paper and row[3] is not None]
        if values:
            published = True
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "--"}
            ax.plot([v[0] for v in values], [v[1] for v in values], linewidth=1.0, markerfacecolor="white", **look)
    ax.set_xlabel("share of tokens removed")
    ax.set_ylabel(METRICS.get(metric, metric))
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ax.grid(axis="y")
    if published:
        ax.plot([], [], color=GREY, linestyle="--", marker="o", markerfacecolor="white", label="paper (same colours)")
    if banded:
        ax.fill_between([], [], [], color=GREY, alpha=0.25, label="interval")
    figure.legend(loc="outside lower center", ncols=4)
    if title:
        ax.set_title(title, loc="left")
    return figure


_Point = tuple[float, float, tuple[float, float] | None, float | None]  # share removed, score, interval, paper's


def _points(records: list[Record], metric: str) -> list[_Point]:
    """One point per ratio, by falling number of tokens; the mean over records of the same ratio."""
    by_ratio: dict[str, list[Record]] = {}
    for record in sorted(records, key=ratio_order):
        if score(record, metric) is not None and record.get("removed") is not None:
            by_ratio.setdefault(str(record.get("ratio")), []).append(record)
    points = []
    for same in by_ratio.values():
        mean = sum(score(record, metric) or 0.0 for record in same) / len(same)
        band = interval(same[0], metric) if len(same) == 1 else None
        points.append((float(same[0]["removed"]), mean, band, paper_value(same[0], metric)))
    return sorted(points, key=lambda point: point[0])


def _original(ax: Axes, records: Sequence[Record], metric: str, paper: bool) -> bool:
    """Draw the uncompressed model as a level; say whether the paper has one too."""
    record = next((r for r in records if is_original(r) and score(r, metric) is not None), None)
    if record is None:
        return False
    ax.axhline(score(record, metric) or 0.0, color=BLACK, linewidth=1.0, label=str(record.get("label") or "Original"))
    band = interval(record, metric)
    if band is not None:
        ax.axhspan(*band, color=BLACK, alpha=0.05, linewidth=0)
    value = paper_value(record, metric) if paper else None
    if value is not None:
        ax.axhline(value, color=BLACK, linewidth=0.8, linestyle="--")
    return value is not None
