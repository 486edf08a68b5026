"""Stacked bars of what became of event-carrying tokens, beside what chance would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import GREEN, ORANGE, PALE, SKY, new_figure, styled
from zipbrain.evaluation.purity import FATES, Purity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = dict(zip(FATES, (GREEN, SKY, ORANGE, PALE), strict=True))
_WORDS: Final = ("kept alone", "merged with carriers only", "merged with background", "dropped")


@styled
def purity_bars(results: Sequence[Purity], title: str = "") -> Figure:
    """Draw two bars per result: what happened, and (hatched) what random groups of the same sizes would give.

    Parameters
    ----------
    results : sequence of Purity
        Of one corpus, in the order in which they shall stand.
    title : str
        Above the picture.
    """
    from matplotlib.patches import Patch

    if not results:
        raise OptionError("results", "none", "at least one is needed")
    figure = new_figure(5.8, 1.9 + 0.46 * len(results))
    ax = figure.subplots()
    for row, result in enumerate(results):
        _bar(ax, result.shares, row - 0.17, 0.42)
        _bar(ax, result.random, row + 0.2, 0.2, "///")
    ax.set_yticks(range(len(results)), [f"{result.label}\n{100 * result.removed:.0f} % removed" for result in results])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(results) - 0.5, -0.6)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    ax.set_xlabel(f"share of the {results[0].carriers:,} event-carrying tokens of {results[0].windows} windows")
    handles = [Patch(facecolor=_COLOURS[name], label=words) for name, words in zip(FATES, _WORDS, strict=True)]
    handles.append(Patch(facecolor="white", edgecolor="#777777", hatch="///", label="by chance, same group sizes"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    if title:
        ax.set_title(title, loc="left")
    return figure


def _bar(ax: Axes, shares: dict[str, float], place: float, height: float, hatch: str = "") -> None:
    left = 0.0
    for name in FATES:
        share = shares[name]
        ax.barh(place, share, height, left, color=_COLOURS[name], hatch=hatch, edgecolor="white", linewidth=0.4)
        if not hatch and share > 0.06:
            ax.text(left + share / 2, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=7)
        left += share
