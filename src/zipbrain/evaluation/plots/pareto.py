"""Score against cost, with the settings that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.reading import (
    METRICS,
    TOKEN_LOAD,
    Record,
    costs,
    is_original,
    known_costs,
    labels_of,
    main_metric,
    score,
)
from zipbrain.evaluation.plots.style import BLACK, GREY, looks, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTES: Final = {TOKEN_LOAD: "\n(tokens at attention and feed-forward, a stand-in for multiply-adds)"}


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
    records: Sequence[Record], metric: str | None = None, kind: str | None = None, title: str = ""
) -> Figure:
    """Draw every record of one task at its cost and score, and the front.

    Parameters
    ----------
    records : sequence of dict
        Of one task.
    metric : str, optional
        A key of `scores`; the paper's main metric for this number of classes if not given.
    kind : {"multiply-adds", "latency", "token load"}, optional
        The cost, relative to the uncompressed model; the one that most records have if not given, the
        first of these among equals. Records without it are left out, and the picture says how many.
    title : str
        Above the picture.
    """
    metric = metric or main_metric(records)
    known = known_costs(records)
    if not known or kind not in (None, *known):
        raise OptionError("kind", kind, f"the records have {', '.join(known) or 'no cost'}")
    kind = kind or max(known, key=lambda name: known[name])
    original = next((record for record in records if is_original(record)), None)
    scored = [record for record in records if score(record, metric) is not None]
    shares = [(record, costs(record, original).get(kind)) for record in scored]
    placed = [(record, share, score(record, metric) or 0.0) for record, share in shares if share is not None]
    without = len(scored) - len(placed)
    figure = new_figure(6.4, 4.0)
    ax = figure.subplots()
    best = front([(x, y) for _, x, y in placed])
    ax.plot(
        [placed[i][1] for i in best], [placed[i][2] for i in best], color=GREY, linewidth=1.0, drawstyle="steps-post",
        label="front", zorder=1,
    )  # fmt: skip
    for record, x, y in placed:
        if is_original(record):
            ax.plot(x, y, marker="*", markersize=11, color=BLACK, linestyle="", label=str(record.get("label")))
    for label, (colour, marker, line) in looks(labels_of(records)).items():
        own = [(x, y) for record, x, y in placed if str(record["label"]) == label and not is_original(record)]
        if own:
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "", "alpha": 0.85}
            look["markerfacecolor"] = colour if line == "-" else "white"
            ax.plot([x for x, _ in own], [y for _, y in own], label=label, **look)
    for i in best:
        record, x, y = placed[i]
        text = "" if is_original(record) or record.get("ratio") is None else str(record["ratio"])
        ax.annotate(text, (x, y), xytext=(0, 6), textcoords="offset points", fontsize=7, ha="center")
    ax.set_xlabel(f"{kind}, relative to the uncompressed model{_NOTES.get(kind, '')}")
    ax.set_ylabel(METRICS.get(metric, metric))
    ax.margins(0.08, 0.12)
    ax.grid()
    figure.legend(loc="outside lower center", ncols=5)
    told = f"left out, without {kind}: {without} of {len(scored)} results" if without else ""
    if title or told:
        ax.set_title("\n".join(filter(None, (title, told))), loc="left")
    return figure
