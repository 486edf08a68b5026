"""What could be had: time against the share of decisions that stay, as a tuning found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zipbrain.evaluation.plots.style import BLACK, GREY, RED, new_figure, styled
from zipbrain.tuning.tuned import Tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def plot_options(tuned: Tuned) -> Figure:
    """Draw the options of a tuning and its certified choice, relative to the original's time.

    Parameters
    ----------
    tuned : Tuned
        From `zipbrain.tune`.
    """
    figure = new_figure(6.4, 4.0)
    ax = figure.subplots()
    options = sorted(tuned.options, key=lambda one: one.time)
    times, levels = [one.time for one in options], [one.agree for one in options]
    ax.plot(times, levels, color=GREY, marker="o", markersize=6, label="expected, for other promises")
    for one in options:
        text = f"{one.agree:g}: {one.share:.0%} look twice"
        ax.annotate(text, (one.time, one.agree), xytext=(7, -3), textcoords="offset points", fontsize=7)
    word = "promised" if tuned.certificate.is_promise else "estimated"
    ax.plot(tuned.time, tuned.certificate.agree, color=RED, marker="D", markersize=8, linestyle="", label=word)
    ax.plot(1.0, 1.0, color=BLACK, marker="*", markersize=11, linestyle="", label="original")
    ax.set_xlabel(f"time relative to the original, {tuned.runtime}, batch {tuned.batch}")
    ax.set_ylabel("share of decisions unchanged")
    ax.set_xlim(left=0, right=max(1.15, *times))
    ax.margins(y=0.12)
    ax.grid()
    figure.legend(loc="outside lower center", ncols=3)
    ax.set_title(f"{tuned.anatomy.model}: {tuned.anatomy.tokens} tokens a window", loc="left")
    return figure
