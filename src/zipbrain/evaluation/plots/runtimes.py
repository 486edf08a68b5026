"""How fast each network is in each runtime: one bar for every pair, relative to one reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import BLACK, GREY, PALE, halo, looks, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HIGH: Final = 0.17  # inches of a bar
_GAP: Final = 1.4  # bars between two runtimes


@styled
def waterfall(rows: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Draw the times of networks in runtimes, one panel for every batch.

    Parameters
    ----------
    rows : sequence of mapping
        Rows of `zipbrain.profiling.profile.Profile`: batch, title (of the runtime), variant, p50_ms, and to_reference
        (the time over that of the float32 original in ONNX Runtime) or None where that was not run; then milliseconds
        are drawn.
    title : str
        Above the picture.
    """
    if not rows:
        raise OptionError("rows", [], "at least one is needed")
    relative = all(row["to_reference"] is not None for row in rows)
    batches = sorted({row["batch"] for row in rows})
    places = _places(rows)
    last = max(places.values())
    figure = new_figure(2.6 + 3.6 * len(batches), 1.3 + _HIGH * (last + 1))
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    colours = {name: look[0] for name, look in looks(name for name in variants if name != "free slicing").items()}
    colours["free slicing"] = PALE
    for ax, batch in zip(panels, batches, strict=True):
        _draw(ax, [row for row in rows if row["batch"] == batch], places, colours, relative)
        ax.set_title(f"batch {batch}", loc="left")
    runtimes = list(dict.fromkeys(str(row["title"]) for row in rows))
    middles = [_middle(places, runtime) for runtime in runtimes]
    panels[0].set_yticks(middles, [runtime.replace(", ", "\n") for runtime in runtimes])
    panels[0].set_ylim(last + 1, -1)
    _legend(figure, {name: colours[name] for name in variants})
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _places(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Where the bar of a runtime and a network stands, with a gap between runtimes."""
    found: dict[tuple[str, str], float] = {}
    place, before = -1.0, None
    for runtime in dict.fromkeys(str(row["title"]) for row in rows):
        for variant in dict.fromkeys(str(row["variant"]) for row in rows if row["title"] == runtime):
            place += 1 if before in (None, runtime) else 1 + _GAP
            before = runtime
            found[runtime, variant] = place
    return found


def _middle(places: Mapping[tuple[str, str], float], runtime: str) -> float:
    own = [place for (name, _), place in places.items() if name == runtime]
    return (min(own) + max(own)) / 2


def _draw(
    ax: Any,
    rows: Sequence[Mapping[str, Any]],
    places: Mapping[tuple[str, str], float],
    colours: Mapping[str, str],
    relative: bool,
) -> None:
    longest = max(_value(row, relative) for row in rows)
    for row in rows:
        place, value = places[str(row["title"]), str(row["variant"])], _value(row, relative)
        ax.barh(place, value, 0.85, color=colours[str(row["variant"])], edgecolor=GREY, linewidth=0.4)
        words = f"{value:.2f}" if relative else f"{value:.1f} ms"
        ax.text(value + 0.01 * longest, place, words, va="center", fontsize=7, path_effects=[halo()])
    if relative:
        ax.axvline(1, color=BLACK, linewidth=0.8, linestyle="--", zorder=0)
    ax.set_xlim(0, longest * 1.14)
    ax.set_xlabel("time / float32 original in ONNX Runtime" if relative else "median ms per call")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def _value(row: Mapping[str, Any], relative: bool) -> float:
    return float(row["to_reference"] if relative else row["p50_ms"])


def _legend(figure: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=colour, edgecolor=GREY, label=name) for name, colour in colours.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=4)
