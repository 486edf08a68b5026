"""Ablation bars: how much each variant gains or loses against the full method, with its spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import BLUE, GREY, RED, new_figure, styled
from zipbrain.evaluation.result import Result, labels_of, main_metric_of
from zipbrain.metrics import metric_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bar:
    """Mean score of a variant over its results (seeds), with the lowest and the highest, or one result's interval."""

    label: str
    mean: float
    low: float | None
    high: float | None
    count: int
    operations: float = math.nan  # over the uncompressed model's, pooling included


def settings_of(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Compressed results by ratio and by the key of the full method of which they are variants, where it is stored."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if not result.is_original:
            found.setdefault((str(result.ratio), str(result.extra.get("of") or "")), []).append(result)
    return found


def bars(results: Sequence[Result], metric: str) -> list[Bar]:
    """One entry per label, full method first."""
    found = []
    for label in labels_of(results):
        own = [r for r in results if r.label == label and not r.is_original and r.has(metric)]
        values = [result.value(metric) for result in own]
        if values:
            low, high = (min(values), max(values)) if len(values) > 1 else own[0].interval(metric) or (None, None)
            operations = sum(result.operations for result in own) / len(own)
            found.append(Bar(label, sum(values) / len(values), low, high, len(values), operations))
    return found


@styled
def ablation_bars(records: Sequence[Result | Mapping[str, Any]], metric: str | None = None, title: str = "") -> Figure:
    """Draw the difference of every variant to the first one (``full``).

    Parameters
    ----------
    records : sequence of Result or dict
        Results or records of a store, of one task, one ratio and one full method; several of a label are its seeds.
    metric : str, optional
        A key of `scores`; the paper's main metric for this number of classes if not given.
    title : str
        Above the picture.

    Notes
    -----
    Bars begin at zero because they are differences. Whiskers: lowest to highest over seeds, or, of a single record, the
    interval of its own score, moved by the full method's score; that is no interval of the difference.
    """
    results = [Result.of(record) for record in records]
    found = len(settings_of(results))
    if found > 1:
        raise OptionError("records", f"{found} settings", "an ablation has one ratio and one full method")
    metric = metric or main_metric_of(results)
    rows = bars(results, metric)
    if len(rows) < 2:
        raise OptionError("records", f"{len(rows)} variants", "an ablation needs the full method and one more")
    base, others = rows[0], rows[1:]
    figure = new_figure(6.4, 1.5 + 0.42 * len(others))
    ax = figure.subplots()
    for place, row in enumerate(others):
        change = row.mean - base.mean
        ax.barh(place, change, color=RED if change < 0 else BLUE, alpha=0.75, height=0.62)
        if row.low is not None and row.high is not None:
            lengths = [[max(0.0, row.mean - row.low)], [max(0.0, row.high - row.mean)]]
            colour = "black" if row.count > 1 else GREY
            ax.errorbar(change, place, xerr=lengths, color=colour, capsize=3, linewidth=1.2)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(others)), [_label(row, base) for row in others])
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.12)
    ax.grid(axis="x")
    ax.set_xlabel(f"difference of {metric_title(metric)} to {base.label!r} ({base.mean:.4f}{_cost(base)})")
    spread = _spread(others)
    ax.set_title("\n".join(filter(None, (title, spread))), loc="left", fontsize=9)
    return figure


def _label(row: Bar, base: Bar) -> str:
    return f"{row.label}\n{row.mean:.4f} ({row.mean - base.mean:+.4f}){_cost(row)}"


def _cost(row: Bar) -> str:
    return "" if math.isnan(row.operations) else f", operations {row.operations:.2f}"


def _spread(rows: list[Bar]) -> str:
    seeds = max(row.count for row in rows)
    black = f"black whiskers: lowest to highest of {seeds} seeds" if seeds > 1 else ""
    alone = any(row.low is not None and row.count == 1 for row in rows)
    return "\n".join(filter(None, (black, "grey whiskers: interval of the variant's own score" if alone else "")))
