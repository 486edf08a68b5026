"""Tokens left after every block, per method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zipbrain.evaluation.comparison_tables import percent
from zipbrain.evaluation.plots.style import BLACK, new_figure, palette, styled
from zipbrain.evaluation.result import Result, ratio_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def token_counts(records: Sequence[Result | Mapping[str, Any]], title: str = "") -> Figure:
    """Draw one line per method and ratio; lines that are the same are drawn once, with all their names.

    Parameters
    ----------
    records : sequence of Result or dict
        Results or records of a store, of one task; `token_counts` holds N before the first block, then after each.
    title : str
        Above the picture.
    """
    figure = new_figure(5.4, 3.8)
    from matplotlib.ticker import MaxNLocator

    ax = figure.subplots()
    results = [Result.of(record) for record in records]
    lines: dict[tuple[int, ...], list[Result]] = {}
    for result in sorted(results, key=ratio_order):
        if result.token_counts:
            lines.setdefault(result.token_counts, []).append(result)
    looks = zip(palette(len(lines)), "osD^vPX" * len(lines), strict=False)
    for counts, same in lines.items():
        colour, marker = (BLACK, "*") if all(result.is_original for result in same) else next(looks)
        ax.plot(range(len(counts)), counts, color=colour, marker=marker, markersize=3.5, label=_names(same, results))
    ax.set_xlabel("block (0: before the first)")
    ax.set_ylabel("unprotected tokens")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    if title:
        ax.set_title(title, loc="left")
    return figure


def _names(same: Sequence[Result], results: Sequence[Result]) -> str:
    """Whose line it is: ``"20 %: all methods; 40 %: ToMe, ToFu"``. Mass changes no count, so it is not named."""
    found = []
    for ratio in dict.fromkeys(result.ratio for result in same):
        own = _methods(result for result in same if result.ratio == ratio)
        every = _methods(result for result in results if result.ratio == ratio)
        who = "all methods" if len(own) > 2 and own == every else ", ".join(own)
        found.append(who if ratio is None else f"{percent(ratio)}: {who}")
    return "; ".join(found)


def _methods(results: Iterable[Result]) -> list[str]:
    return sorted({result.label.removesuffix(" + mass") for result in results}, key=str.lower)
