"""Where one forward spends its time: two networks on one time axis, pooling in a colour of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import BLUE, GREY, ORANGE, RED, SKY, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS: Final = {"embedding": GREY, "attention": BLUE, "pooling": RED, "feed-forward": SKY, "head": ORANGE}
_OPERATORS: Final = 10  # kinds that are shown, the longest first
_NARROW: Final = 0.012  # share of the axis below which a block's number does not fit


@styled
def profile_timeline(tracks: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Draw ONNX Runtime's timelines above each other, and under them the time by block and by operator.

    Parameters
    ----------
    tracks : sequence of mapping
        `Track.to_dict` of `zipbrain.profiling.timeline`: name, duration and events with operator, block, part, start
        and duration in microseconds. The first is the one that the others are compared with.
    title : str
        Above the picture.
    """
    if not tracks:
        raise OptionError("tracks", [], "at least one timeline is needed")
    figure = new_figure(10.0, 1.6 + 0.75 * len(tracks) + 2.7)
    panels: Any = figure.subfigures(2, 1, height_ratios=(0.95 + 0.75 * len(tracks), 3.0))
    above, below = panels
    _draw_axis(above.subplots(), tracks)
    left, right = below.subplots(1, 2, width_ratios=(3, 2))
    _draw_blocks(left, tracks)
    _draw_operators(right, tracks)
    _legend(above, tracks)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _draw_axis(ax: Any, tracks: Sequence[Mapping[str, Any]]) -> None:
    longest = max(track["duration"] for track in tracks)
    for row, track in enumerate(tracks):
        for part, colour in _PARTS.items():
            spans = [(e["start"] / 1e3, e["duration"] / 1e3) for e in track["events"] if e["part"] == part]
            ax.broken_barh(spans, (row - 0.3, 0.6), facecolor=colour, edgecolor="white", linewidth=0.15)
        for block, start, end in _stretches(track["events"]):
            ax.plot([start / 1e3] * 2, (row - 0.42, row - 0.3), color=GREY, linewidth=0.6)
            if end - start > _NARROW * longest:
                ax.text((start + end) / 2e3, row - 0.34, str(block), ha="center", va="bottom", fontsize=7)
        ax.text(track["duration"] / 1e3, row, f"  {track['duration'] / 1e3:.2f} ms", va="center", fontsize=8)
    ax.set_yticks(range(len(tracks)), [track["name"] for track in tracks])
    ax.set_ylim(len(tracks) - 0.5, -0.6)
    ax.set_xlim(0, longest / 1e3 * 1.08)
    ax.set_xlabel("ms from the beginning of the forward (numbers: blocks)")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def _stretches(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Number, start and end of every block, from its first operator to its last."""
    found: dict[int, list[float]] = {}
    for event in events:
        if event["block"]:
            end = event["start"] + event["duration"]
            ends = found.setdefault(event["block"], [event["start"], end])
            ends[0], ends[1] = min(ends[0], event["start"]), max(ends[1], end)
    return [(block, start, end) for block, (start, end) in sorted(found.items())]


def _draw_blocks(ax: Any, tracks: Sequence[Mapping[str, Any]]) -> None:
    """Bars of all networks for every block, each made of its parts."""
    blocks = sorted({event["block"] for track in tracks for event in track["events"] if event["block"]})
    wide = 0.8 / len(tracks)
    for number, track in enumerate(tracks):
        base = dict.fromkeys(blocks, 0.0)
        for part in ("attention", "pooling", "feed-forward"):
            heights = dict.fromkeys(blocks, 0.0)
            for event in track["events"]:
                if event["part"] == part and event["block"]:
                    heights[event["block"]] += event["duration"] / 1e3
            places = [block + (number - (len(tracks) - 1) / 2) * wide for block in blocks]
            ax.bar(places, list(heights.values()), wide * 0.9, bottom=list(base.values()), color=_PARTS[part])
            base = {block: base[block] + heights[block] for block in blocks}
    ax.set_xticks(blocks)
    ax.set_xlabel(f"block (each: {', '.join(track['name'] for track in tracks)})")
    ax.set_ylabel("ms")
    ax.set_title("Time by block", loc="left")


def _draw_operators(ax: Any, tracks: Sequence[Mapping[str, Any]]) -> None:
    """Bars of all networks for the operators that take longest; what pools is coloured."""
    totals: dict[str, float] = {}
    for track in tracks:
        for event in track["events"]:
            totals[event["operator"]] = totals.get(event["operator"], 0.0) + event["duration"]
    kinds = sorted(totals, key=lambda kind: -totals[kind])[:_OPERATORS]
    high = 0.8 / len(tracks)
    for number, track in enumerate(tracks):
        places = [row + (number - (len(tracks) - 1) / 2) * high for row in range(len(kinds))]
        plain, pooling = ([_total(track, kind, pools) for kind in kinds] for pools in (False, True))
        shade = "#5A5A5A" if number else "#B5B5B5"
        ax.barh(places, plain, high * 0.9, color=shade, label=track["name"])
        ax.barh(places, pooling, high * 0.9, left=plain, color=_PARTS["pooling"])
    ax.set_yticks(range(len(kinds)), kinds)
    ax.invert_yaxis()
    ax.set_xlabel("ms")
    ax.set_title("Time by operator (pooling coloured)", loc="left")
    ax.legend(loc="lower right")


def _total(track: Mapping[str, Any], kind: str, pools: bool) -> float:
    chosen = (e for e in track["events"] if e["operator"] == kind and (e["part"] == "pooling") == pools)
    return float(sum(event["duration"] for event in chosen)) / 1e3


def _legend(figure: Any, tracks: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.patches import Patch

    present = {event["part"] for track in tracks for event in track["events"]}
    patches = [Patch(color=colour, label=part) for part, colour in _PARTS.items() if part in present]
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches))
