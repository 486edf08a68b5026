"""Score against cost, with the settings that no other one beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.curves import AXES, axis_value
from zipbrain.evaluation.plots.style import BLACK, GREY, looks, new_figure, styled
from zipbrain.evaluation.result import TOKEN_LOAD, Result, known_costs, labels_of, main_metric_of
from zipbrain.metrics import metric_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTES: Final = {TOKEN_LOAD: "\n(tokens at attention and feed-forward, a stand-in for multiply-adds)"}


def score_title(metric: str) -> str:
    """Title of a metric, or of the share of decisions that stay unchanged."""
    return "decisions unchanged" if metric == "agreement" else metric_title(metric)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points (cost, score) that no other point beats, by rising cost.

    A point is beaten by one that costs no more and scores no less, and is better in one of the two.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best = float("-inf")
    found: list[int] = []
    for i in order:
        equal = found and points[found[-1]] == points[i]
        if points[i][1] > best or equal:
            found.append(i)
            best = points[i][1]
    return found


@styled
def pareto_front(
    records: Sequence[Result | Mapping[str, Any]], metric: str | None = None, kind: str | None = None, title: str = ""
) -> Figure:
    """Draw every result of one task at its cost and score, and the front.

    Parameters
    ----------
    records : sequence of Result or dict
        Results or records of a store, of one task.
    metric : str, optional
        A key of `scores`, or ``"agreement"``; the paper's main metric for this number of classes if not given.
    kind : {"latency", "operations", "multiply-adds", "token load"}, optional
        The cost, relative to the uncompressed model; the one that most records have if not given, the
        first of these among equals. Records without it are left out, and the picture says how many. A latency is drawn
        as how many times as fast, so the best is on the right.
    title : str
        Above the picture.
    """
    results = [Result.of(record) for record in records]
    metric = metric or main_metric_of(results)
    known = known_costs(results)
    if not known or kind not in (None, *known):
        raise OptionError("kind", kind, f"the records have {', '.join(known) or 'no cost'}")
    kind = kind or max(known, key=lambda name: known[name])
    original = next((result for result in results if result.is_original), None)
    scored = [result for result in results if result.has(metric)]
    shares = [(result, result.costs(original).get(kind)) for result in scored]
    placed = [(result, share, result.value(metric)) for result, share in shares if share is not None]
    without = len(scored) - len(placed)
    figure = new_figure(5.4, 4.4)
    ax = figure.subplots()
    best = front([(x, y) for _, x, y in placed])
    placed = [(result, axis_value(kind, x), y) for result, x, y in placed]
    drawn = "steps-pre" if kind == "latency" else "steps-post"
    steps: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "drawstyle": drawn, "zorder": 1}
    line_up = sorted(best, key=lambda i: placed[i][1])
    ax.plot([placed[i][1] for i in line_up], [placed[i][2] for i in line_up], label="front", **steps)
    for result, x, y in placed:
        if result.is_original:
            ax.plot(x, y, marker="*", markersize=11, color=BLACK, linestyle="", label=result.label)
    for label, (colour, marker, line) in looks(labels_of(results)).items():
        own = [(x, y) for result, x, y in placed if result.label == label and not result.is_original]
        if own:
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "", "alpha": 0.85}
            look["markerfacecolor"] = colour if line == "-" else "white"
            look["zorder"] = 3 if label == "Tuned" else 2
            ax.plot([x for x, _ in own], [y for _, y in own], label=label, **look)
    marked = {placed[i][0].ratio: i for i in best if placed[i][0].ratio is not None}  # the best of a ratio comes last
    several = len({result.ratio for result, _, _ in placed if result.ratio is not None}) > 1
    for ratio, i in marked.items() if several else ():
        _, x, y = placed[i]
        text = f"{100 * ratio:g} %" if isinstance(ratio, int | float) else str(ratio)
        ax.annotate(text, (x, y), xytext=(0, 6), textcoords="offset points", fontsize=7, ha="center")
    ax.set_xlabel(AXES.get(kind, f"{kind}, share of the original's{_NOTES.get(kind, '')}"))
    ax.set_ylabel(score_title(metric))
    if kind != "latency":
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if metric == "agreement":
        ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.margins(0.08, 0.12)
    ax.grid()
    figure.legend(loc="outside lower center", ncols=3)
    lacking = "times" if kind == "latency" else kind
    omitted = f"left out, without {lacking}: {without} of {len(scored)} results" if without else ""
    if title or omitted:
        ax.set_title("\n".join(filter(None, (title, omitted))), loc="left")
    return figure
