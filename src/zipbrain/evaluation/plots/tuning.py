"""What could be had: time against the share of decisions that stay, as a tuning found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zipbrain.evaluation.plots.style import BLACK, GREY, RED, new_figure, styled
from zipbrain.tuning.tuned import Tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def plot_options(tuned: Tuned) -> Figure:
    """Draw the options of a tuning and its certified choice: how many times as fast as the original they are.

    Parameters
    ----------
    tuned : Tuned
        From `zipbrain.tune`.
    """
    figure = new_figure(6.4, 3.4)
    ax = figure.subplots()
    options = sorted(tuned.options, key=lambda one: one.agree)
    places = range(len(options))
    speeds = [1 / one.time for one in options]
    ax.plot(speeds, places, color=GREY, marker="o", markersize=7, label="expected")
    for place, one in zip(places, options, strict=True):
        words = f"{100 * one.second_look_share:.0f} % look twice, {100 * one.operations:.0f} % of the operations"
        ax.annotate(words, (speeds[place], place), xytext=(9, -3), textcoords="offset points", fontsize=7)
    word = "promised" if tuned.certificate.is_promise else "estimated"
    asked = next((place for place, one in zip(places, options, strict=True) if one.agree == tuned.agree), None)
    if asked is not None and tuned.chosen.removes:
        label = f"measured; {100 * tuned.certificate.agree:.1f} % {word}"
        ax.plot(1 / tuned.time, asked, color=RED, marker="D", markersize=8, linestyle="", label=label)
    ax.axvline(1.0, color=BLACK, linewidth=1.0)
    ax.set_yticks([*places], [f"{100 * one.agree:g} %" for one in options])
    ax.set_ylabel("decisions unchanged")
    ax.set_xlabel(f"times as fast as the original ({tuned.runtime}, batch {tuned.batch})")
    ax.set_xlim(0, 1.8 * max(1.0, *speeds))
    ax.margins(y=0.15)
    ax.grid(axis="x")
    figure.legend(loc="outside lower center", ncols=3)
    ax.set_title(f"{tuned.anatomy.model}, {tuned.anatomy.tokens} tokens a window: what could be had", loc="left")
    return figure
