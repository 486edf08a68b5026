"""The picture of README and landing page: what pooling does to a window, and time against decisions that stay.

`python -m benchmarks.speed.front_picture` draws front.png and front_phone.png in benchmarks/results, from frontier.csv
and from a window of EEGMAT (see `zipbrain.data.example_recordings`) that the demo's LaBraM pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.shared.results import DEMO, RESULTS, read_csv
from numpy.typing import NDArray

import zipbrain
from zipbrain.data import example_windows
from zipbrain.evaluation.plots.merging import group_numbers
from zipbrain.evaluation.plots.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, new_figure, styled
from zipbrain.evaluation.token_fates import fates
from zipbrain.models import LaBraM
from zipbrain.pretrained import from_pretrained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW, SECONDS = 37, 5.0  # a window that ends in a burst of muscle
LINES = {
    "zipbrain": ("ZIPBrain", RED, "s"),
    "tome": ("ToMe", BLUE, "o"),
    "dart": ("DART", GREEN, "^"),
    "twins": ("Twins", ORANGE, "D"),
}  # others are drawn without a name
# Fourteen colours that differ from each other and leave black traces readable, for groups by falling size.
GROUPS = (
    *("#7FB3E6", "#FFC27A", "#8FD19E", "#F29BA0", "#C3A6E0", "#E3D26F", "#7ED0CE", "#F4B5DA"),
    *("#B7C98B", "#C9A58C", "#A9B8D9", "#FFE0A6", "#D0E8B0", "#BFBFBF"),
)


def pooled_window() -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """A window (C, T) in microvolts, the group (C, seconds) of each of its tokens (0: alone), and its channels."""
    windows = example_windows("labram", seconds=SECONDS).select([WINDOW])
    trained = from_pretrained(DEMO)
    model = LaBraM(**{**trained.config, "ch_names": list(windows.ch_names)}).eval()
    model.load_state_dict(trained.state_dict())
    zipbrain.compress(model, zipbrain.Recipe.load(DEMO / "recipe-0.8.json"))
    found = fates(model, windows, device="cpu")
    return windows.take([0])[0], group_numbers(found.owner[0]), windows.ch_names


def draw_window(axes: Axes, signal: NDArray[np.float32], groups: NDArray[np.int64] | None, names: Any) -> None:
    """Traces over one cell for each token, in the colour of its group."""
    from matplotlib.patches import Rectangle

    rows, columns = len(names), int(SECONDS)
    for row, column in np.ndindex(rows, columns):
        group = 0 if groups is None else int(groups[row, column])
        colour = "white" if groups is not None else "#EEF1F5"
        face = GROUPS[(group - 1) % len(GROUPS)] if group else colour
        look: dict[str, Any] = {"edgecolor": "#C8CDD4" if not group else "white", "linewidth": 0.7}
        axes.add_patch(Rectangle((column, row - 0.5), 1, 1, facecolor=face, **look))
    size = np.quantile(np.abs(signal), 0.99)
    times = np.arange(signal.shape[1]) / 200
    for row, trace in enumerate(signal):
        axes.plot(times, row - 0.46 * np.clip((trace - np.median(trace)) / size, -1, 1), color="#1F2937", linewidth=0.5)
    axes.set(xlim=(0, columns), ylim=(rows - 0.5, -0.5), xticks=range(columns + 1))
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)


def draw_frontier(axes: Axes) -> None:
    """How much faster each setting is, against the share of decisions that stay."""
    rows = read_csv("frontier")
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows[1:]:
        share = 100 * int(row["same_decisions"]) / int(row["windows"])
        points.setdefault(row["method"], []).append((1 / float(row["time"]), share))
    for method, found in points.items():
        if method == "tuned":
            continue
        line = [(1.0, 100.0), *found]
        name, colour, marker = LINES.get(method, ("", "#C3C7CD", "."))
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4}
        axes.plot(*zip(*line, strict=True), zorder=3 if name else 2, label=name or "_", **look)
    axes.plot([], [], color="#C3C7CD", marker=".", label="others")
    tuned = sorted(points["tuned"])
    axes.plot(*zip(*tuned, strict=True), color=BLACK, marker="*", markersize=11, linewidth=2, zorder=4, label="tuned")
    axes.plot(1, 100, marker="o", color=GREY, markersize=7, linestyle="")
    axes.annotate("uncompressed", (1, 100), (8, 6), textcoords="offset points", color="#555555")
    axes.set_ylim(top=102.5)
    axes.set_xlabel("times as fast (ONNX Runtime, one CPU thread)")
    axes.set_ylabel("decisions unchanged (%)")
    axes.grid()


@styled
def picture(wide: bool) -> Figure:
    """Two windows and a frontier, side by side or below each other."""
    signal, groups, names = pooled_window()
    left = int(groups.max()) + int((groups == 0).sum())
    figure = new_figure(*((12.6, 4.7) if wide else (5.8, 8.9)))
    from matplotlib import rcParams

    rcParams.update({"font.size": 12, "axes.labelsize": 12, "axes.titlesize": 13, "legend.fontsize": 11})
    rcParams.update({"xtick.labelsize": 10.5, "ytick.labelsize": 10.5})
    if wide:
        before, after, front = figure.subplots(1, 3, width_ratios=(1, 1, 1.75))
    else:
        axes = figure.subplot_mosaic([["before", "after"], ["front", "front"]], height_ratios=(1, 0.95))
        before, after, front = axes["before"], axes["after"], axes["front"]
    draw_window(before, signal, None, names)
    draw_window(after, signal, groups, names)
    before.set_yticks(range(len(names)), [name.capitalize() for name in names])
    after.set_yticks([])
    before.set_title(f"One window: {groups.size} tokens", loc="left", weight="bold")
    after.set_title(f"Pooled: {left} tokens", loc="left", weight="bold")
    before.set_xlabel("seconds")
    after.set_xlabel("one colour: one token" + ("; white: alone" if wide else ""))
    draw_frontier(front)
    front.set_title("Times as fast, and decisions unchanged", loc="left", weight="bold")
    front.legend(loc=(0.5, 0.24), ncols=2, handlelength=1.6, columnspacing=1.2)
    return figure


def main() -> None:
    for name, wide in (("front", True), ("front_phone", False)):
        picture(wide).savefig(RESULTS / f"{name}.png", dpi=160)


if __name__ == "__main__":
    main()
