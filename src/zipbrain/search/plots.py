"""Figures of a search: scores over pairs and rho, and over latency, in colours that colour-blind people can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zipbrain.evaluation.plots.pareto import front
from zipbrain.evaluation.plots.style import BLACK, BLUE, GREY, RED, new_figure, styled
from zipbrain.metrics import metric_title
from zipbrain.pooling.spaces import SPACES
from zipbrain.search.result import Entry, SearchResult
from zipbrain.search.space import LEADERS, PAIRS, RHOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def heatmap(result: SearchResult) -> Figure:
    """Score of every pair (rows) and rho (columns): the best over z3; the winner is framed, leaders have a dot."""
    entries = result.ranking
    ratio = result.winner.ratio if result.winner else entries[0].ratio
    entries = [entry for entry in entries if entry.ratio == ratio]
    pairs = _in_order({(entry.point.z1, entry.point.z2) for entry in entries})
    grid = np.full((len(pairs), len(RHOS)), np.nan)
    for entry in reversed(entries):  # the best comes last and stays
        grid[_cell(entry, pairs)] = entry.score
    figure = new_figure(7.2, 1.9 + 0.26 * len(pairs))
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="cividis", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value < middle else "#222222"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=6.5)
    for entry in [entry for entry in entries if entry.stage == 1][:LEADERS]:
        row, column = _cell(entry, pairs)
        axes.plot(column + 0.36, row - 0.25, "o", color="white", markeredgecolor=BLACK, markersize=4, zorder=5)
    winner = result.winner
    if winner is not None:
        from matplotlib.patches import Rectangle

        row, column = _cell(winner, pairs)
        frame = (column - 0.5, row - 0.5), 1, 1
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor="white", linewidth=4, zorder=3))
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=RED, linewidth=2.2, zorder=4))
    axes.set_xticks(range(len(RHOS)), [f"{rho:.1f}" for rho in RHOS])
    axes.set_yticks(range(len(pairs)), [f"{z1}, {z2}" for z1, z2 in pairs], fontsize=8)
    axes.set_xlabel("share of pivots ρ (at ρ = 1 the redundancy space z2 is idle)")
    axes.set_ylabel("pivot space z1, redundancy space z2")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    original = result.original.value(result.metric)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
    bar.set_label(f"{metric_title(result.metric)} ({_split(result.select_on)}; uncompressed {original:.4f})")
    bar.outline.set_visible(False)
    task = result.task
    removed = entries[0].result.removed
    title = f"{task['model']} on {task['dataset']}, ratio {ratio}: {removed:.0%} of the tokens removed"
    if winner is not None:
        title += (
            f"\nframed: the winner, z1, z2, z3, ρ = {winner.point}, {metric_title(result.metric)} {winner.score:.4f}"
        )
    if not result.full:
        title += f"\ndots: the {LEADERS} leaders of stage 1, whose cells show their best z3"
    axes.set_title(title, fontsize=9, loc="left")
    return figure


@styled
def pareto(result: SearchResult) -> Figure:
    """Score over latency of the finalists, with the front, the target and the winner."""
    goal = result.target
    assert goal is not None
    name = result.metric if goal.on_latency else goal.name
    timed: dict[str, Entry] = {}
    for entry in result.ranking:
        if entry.result.key in result.latency:
            timed.setdefault(entry.result.key, entry)
    spots = [(result.latency[key], entry.result.value(name), entry) for key, entry in timed.items()]
    original = result.original.value(name)
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    places = [(time, value) for time, value, _ in spots] + [(1.0, original)]
    best = [places[number] for number in front(places)]
    axes.step(*zip(*best, strict=True), where="post", color=GREY, linewidth=1, zorder=1, label="nothing beats these")
    axes.scatter([s[0] for s in spots], [s[1] for s in spots], color=BLUE, s=28, zorder=2, label="finalists")
    axes.scatter([1.0], [original], marker="s", color=BLACK, s=34, zorder=2, label="uncompressed")
    for ratio in dict.fromkeys(entry.ratio for _, _, entry in spots):
        time, value, _ = max((s for s in spots if s[2].ratio == ratio), key=lambda s: s[1])
        axes.annotate(_share(ratio), (time, value), xytext=(4, 5), textcoords="offset points", fontsize=8)
    if goal.on_latency:
        axes.axvline(goal.bound, color=GREY, linestyle="--", linewidth=1, label=f"target: {goal}")
    else:
        axes.axhline(goal.least(result.original), color=GREY, linestyle="--", linewidth=1, label=f"target: {goal}")
    winner = result.winner
    if winner is not None:
        at = result.latency[winner.result.key], winner.result.value(name)
        axes.scatter(*at, marker="*", color=RED, edgecolor="black", s=190, zorder=3, label=f"winner: {winner.point}")
    axes.set_xlabel("time of a batch over the uncompressed model's, measured in turns")
    axes.set_ylabel(f"{metric_title(name)} ({_split(result.select_on)})")
    axes.set_title(
        f"{result.task['model']} on {result.task['dataset']}: accuracy against speed", fontsize=10, loc="left"
    )
    axes.margins(0.08, 0.15)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _in_order(present: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs in the paper's order; those that only the whole grid has follow."""
    every = [*PAIRS, *((z1, z2) for z1 in SPACES for z2 in SPACES if (z1, z2) not in PAIRS)]
    return [pair for pair in every if pair in present]


def _cell(entry: Entry, pairs: list[tuple[str, str]]) -> tuple[int, int]:
    return pairs.index((entry.point.z1, entry.point.z2)), RHOS.index(entry.point.rho)


def _split(name: str) -> str:
    return "validation" if name == "val" else name


def _share(ratio: float | str) -> str:
    return ratio if isinstance(ratio, str) else f"{ratio:.0%}"
