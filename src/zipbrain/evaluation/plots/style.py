"""One look for all pictures: colours that colour-blind people can tell apart and that repeat in no picture."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from zipbrain._lazy import import_extra
from zipbrain.paper import COMPARED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PINK = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
INDIGO: Final = "#332288"
WINE: Final = "#882255"
GREY: Final = "#8A8A8A"
PALE: Final = "#E6E6E6"
# After Okabe and Ito's colours those of Paul Tol that stand apart from them.
_MORE: Final = ("#44AA99", "#999933", "#AA4499", "#661100", "#88CCEE", "#117733", "#DDCC77")
_GOLDEN: Final = 0.381966  # of a turn around the hues: the next colour lies far from all before

# A method has the same colour and marker in every picture.
_METHODS: Final = dict(
    zip(
        ("original", *COMPARED, "tuned"),
        zip((BLACK, RED, BLUE, SKY, GREEN, ORANGE, YELLOW, WINE, PINK, INDIGO), "*osD^vp8PX", strict=True),
        strict=True,
    )
)
_OTHER_MARKERS: Final = "dh<>H*"

_SETTINGS: Final = (
    {"font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False}
    | dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.grid", "text.parse_math"), False)
    | dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "white")
    | dict.fromkeys(("text.color", "axes.labelcolor"), "#222222")
    | {"axes.axisbelow": True, "grid.color": PALE, "lines.linewidth": 1.6, "hatch.linewidth": 0.6}
    | {"svg.hashsalt": "zipbrain"}
)

_P = ParamSpec("_P")


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Decorator of every picture: drawn with our settings, whatever the user's matplotlib is set to."""

    @wraps(draw)
    def inside(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with matplotlib().rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return inside


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, outside pyplot: nothing opens a window and nothing has to be closed."""
    matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def looks(labels: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line of every label: a method's own, the next free ones for others; dotted with mass."""
    found, free = {}, 0
    for label in labels:
        method, _, mass = label.partition(" + ")
        key = "".join(c for c in method.lower() if c.isalnum())
        if key in _METHODS:
            colour, marker = _METHODS[key]
        else:
            colour, marker = other_colour(free), _OTHER_MARKERS[free % len(_OTHER_MARKERS)]
            free += 1
        found[label] = colour, marker, ":" if mass else "-"
    return found


def other_colour(number: int) -> str:
    """The colour of a thing without one of its own, by its number; no two are the same."""
    if number < len(_MORE):
        return _MORE[number]
    place = number - len(_MORE)
    red, green, blue = colorsys.hls_to_rgb(_GOLDEN * place % 1.0, 0.35 + 0.1 * (place % 4), 0.55 + 0.1 * (place % 3))
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


def palette(count: int) -> list[str]:
    """So many colours, all different."""
    first = (ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK, GREY)
    return [*first[:count], *(other_colour(number) for number in range(count - len(first)))]


def halo() -> Any:
    """A white border for text that stands on colours and lines."""
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=1.6, foreground="white")


def matplotlib() -> Any:
    """The package matplotlib, or a refusal that names the extra."""
    return import_extra("matplotlib", "matplotlib", "report", "zipbrain.evaluation.plots")
