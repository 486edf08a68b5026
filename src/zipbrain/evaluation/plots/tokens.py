"""Tokens left after every block, per method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Final

from zipbrain.evaluation.plots.reading import Record, is_original, ratio_order
from zipbrain.evaluation.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS: Final = (ORANGE, SKY, GREEN, BLUE, RED, PINK, GREY)


@styled
def token_counts(records: Sequence[Record], title: str = "") -> Figure:
    """Draw one line per method and ratio; lines that are the same are drawn once, with all their names.

    Parameters
    ----------
    records : sequence of dict
        Of one task; `token_counts` holds N before the first block, then after each.
    title : str
        Above the picture.
    """
    figure = new_figure(6.4, 3.6)
    from matplotlib.ticker import MaxNLocator

    ax = figure.subplots()
    lines: dict[tuple[int, ...], list[Record]] = {}
    for record in sorted(records, key=ratio_order):
        if record.get("token_counts"):
            lines.setdefault(tuple(record["token_counts"]), []).append(record)
    looks = cycle(zip(_COLOURS, "osD^vPX", strict=True))
    for counts, same in lines.items():
        colour, marker = (BLACK, "*") if all(map(is_original, same)) else next(looks)
        ax.plot(range(len(counts)), counts, color=colour, marker=marker, markersize=3.5, label=_names(same, records))
    ax.set_xlabel("block (0: before the first)")
    ax.set_ylabel("unprotected tokens")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    if title:
        ax.set_title(title, loc="left")
    return figure


def _names(same: Sequence[Record], records: Sequence[Record]) -> str:
    """Whose line it is: ``"0.2: all methods; 0.4: ToMe, ToFu"``. Mass changes no count, so it is not named."""
    found = []
    for ratio in dict.fromkeys(str(record.get("ratio")) for record in same):
        own = _methods(record for record in same if str(record.get("ratio")) == ratio)
        every = _methods(record for record in records if str(record.get("ratio")) == ratio)
        who = "all methods" if len(own) > 2 and own == every else ", ".join(own)
        found.append(who if ratio == "None" else f"{ratio}: {who}")
    return "; ".join(found)


def _methods(records: Iterable[Record]) -> list[str]:
    return sorted({str(record["label"]).removesuffix(" + mass") for record in records}, key=str.lower)
