"""Tables and pictures of docs/benchmarks/gpu.md from what benchmarks/speed/gpu.py has stored.

python -m benchmarks.speed.gpu_report    # fills the page, draws gpu_overhead.png and gpu_waterfall.png
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from typing import Any

from benchmarks.shared.results import RESULTS, fill

DTYPES = {"float32": "float32 (TF32)", "bfloat16": "bfloat16", "float16": "float16"}
SHOWN = ("float32", "bfloat16")  # in tables; float16 is like bfloat16
BATCHES = ("1", "32", "256")
BARS = {"1": 1.10, "32": 1.05, "256": 1.02}  # T_zip / T_slice
TIMED = {"LaBraM": ("15", "19"), "BIOT": ("61", "75")}  # shapes with bars, and how many tokens go
PLAIN, ALONE = "ZIPBrain x v x 0.4, plain operators", "ZIPBrain k k k 0.9, one stream"


def rows(name: str) -> list[dict[str, str]]:
    """A stored CSV."""
    with (RESULTS / f"gpu_{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def captured(shape: str, method: str, batch: str, dtype: str, r: str) -> dict[str, str] | None:
    """The row of one encoder in a CUDA graph."""
    wanted = {"shape": shape, "method": method, "batch": batch, "dtype": dtype, "r": r, "mode": "graph"}
    found = [row for row in rows("encoders") if all(row[key] == value for key, value in wanted.items())]
    return found[0] if found else None


def settings(shape: str) -> list[str]:
    """Names of the ZIPBrain settings with kernels that were timed on a shape."""
    names = dict.fromkeys(row["method"] for row in rows("encoders") if row["shape"] == shape)
    return [name for name in names if name.startswith("ZIPBrain") and name not in (PLAIN, ALONE)]


def markdown(head: list[str], body: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first columns are text."""
    rule = [":--"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *body])


def judged(value: float, bar: float | None) -> str:
    """A ratio, bold where it misses its bar."""
    text = f"{value:.3f}" if value < 10 else f"{value:.1f}"
    return f"**{text}**" if bar is not None and value > bar else text


def originals() -> str:
    """T / T_original of LaBraM at 80 %."""
    body = []
    for dtype in SHOWN:
        for name in ["free slicing", *settings("LaBraM"), PLAIN, "ToMe", "ToFu", "EViT", "DART", "Twins"]:
            found = [captured("LaBraM", name, batch, dtype, "15") for batch in BATCHES]
            cells = ["" if row is None else judged(float(row["to_original"]), None) for row in found]
            body.append([DTYPES[dtype], name, *cells])
    return markdown(["precision", "method", *(f"batch {batch}" for batch in BATCHES)], body, 2)


def others() -> str:
    """EEGPT, TFM and long recordings."""
    body = []
    names = [("EEGPT", "4", "ZIPBrain kh x x 0"), ("TFM", "61", "ZIPBrain qh qh qh 1")]
    for shape, r in (("long 2049", "137"), ("long 8193", "546")):
        names += [(shape, r, name) for name in settings(shape)]
    for shape, r, name in names:
        for dtype in SHOWN:
            found = [captured(shape, name, batch, dtype, r) for batch in BATCHES]
            if any(found):
                cells = ["" if row is None else _both(row) for row in found]
                body.append([f"{shape}, r = {r}", name.removeprefix("ZIPBrain "), DTYPES[dtype], *cells])
    return markdown(["shape", "setting", "precision", *(f"batch {b}" for b in BATCHES)], body, 3)


def _both(row: dict[str, str]) -> str:
    return f"{float(row['to_slicing']):.2f} / {float(row['to_original']):.2f}"


def waterfall() -> str:
    """Switch after switch."""
    decided = {row["step"]: row for row in rows("decisions")}
    body = []
    for row in rows("waterfall"):
        told = decided.get(row["step"])
        cells = ["", ""] if told is None else [told["same_decisions"], told["balanced_accuracy"]]
        body.append([row["step"], f"{float(row['ms']):.2f}", f"{float(row['to_eager']):.3f}", *cells])
    return markdown(["step", "ms", "/ eager float32", "same decisions", "balanced accuracy"], body)


def training() -> str:
    """One training step over the original's, both launched from Python, and both captured."""
    ways = "launched from Python", "captured"
    found: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for row in rows("training"):  # older files know the first way only
        found.setdefault((row["shape"], row["precision"], row["method"]), {})[row.get("how", ways[0])] = row
    body = []
    for (shape, precision, method), steps in found.items():
        cells = []
        for row in (steps.get(way) for way in ways):
            bar = 1.0 if method.startswith("ZIPBrain") else None
            cells += ["", ""] if row is None else [f"{float(row['ms']):.1f}", judged(float(row["to_original"]), bar)]
        body.append([shape, precision, method, *cells])
    head = ["shape", "precision", "method", *(title for way in ways for title in (f"{way}, ms", "/ original"))]
    return markdown(head, body, 3)


def memory() -> str:
    """Peak of one forward with 8,193 tokens."""
    return markdown(["precision", "method", "MB"], [[r["dtype"], r["method"], r["peak_mb"]] for r in rows("memory")], 2)


TABLES: dict[str, Callable[[], str]] = {
    "originals": originals,
    "others": others,
    "waterfall": waterfall,
    "training": training,
    "memory": memory,
}


def judgements() -> list[tuple[tuple[str, str], bool]]:
    """Shape and setting of every ratio with a bar, and whether it is within that."""
    found = []
    for shape, removals in TIMED.items():
        for r, name, dtype, batch in itertools.product(removals, settings(shape), DTYPES, BATCHES):
            row = captured(shape, name, batch, dtype, r)
            if row is not None:
                found.append(((shape, name.removeprefix("ZIPBrain ")), float(row["to_slicing"]) <= BARS[batch]))
    return found


def count_bars() -> tuple[int, int]:
    """How many of the ratios with a bar are within it, and how many there are."""
    held = [one for _, one in judgements()]
    return sum(held), len(held)


def draw_overhead() -> Any:
    """T_zip / T_slice by batch, one panel for each shape, with the bars."""
    from zipbrain.evaluation.plots.style import BLACK, BLUE, GREEN, GREY, ORANGE, RED, new_figure, styled

    @styled
    def draw() -> Any:
        figure = new_figure(8.4, 3.4)
        panels = figure.subplots(1, 2, sharey=True)
        marks = {"float32": "o", "bfloat16": "s", "float16": "^"}
        for panel, (shape, r) in zip(panels, (("LaBraM", "15"), ("BIOT", "61")), strict=True):
            for name, colour in zip(settings(shape), (RED, BLUE, GREEN, ORANGE), strict=False):
                for number, (dtype, mark) in enumerate(marks.items()):
                    found = [captured(shape, name, batch, dtype, r) for batch in BATCHES]
                    heights = [float(row["to_slicing"]) if row else float("nan") for row in found]
                    label = name.removeprefix("ZIPBrain ") if number == 0 else None
                    panel.plot(range(3), heights, color=colour, marker=mark, markersize=5, linewidth=1.2, label=label)
            panel.plot(range(3), [BARS[b] for b in BATCHES], color=BLACK, linestyle=":", linewidth=1.4, label="bar")
            panel.axhline(1, color=GREY, linewidth=0.8)
            panel.set_xticks(range(3), BATCHES)
            panel.set_xlabel("windows in a batch")
            panel.set_title(f"{shape}, {r} tokens go in each block")
            panel.legend(title="setting (z1 z2 z3 rho)")
        panels[0].set_ylabel("time over free slicing")
        panels[1].text(0.02, 0.02, "circle float32, square bfloat16, triangle float16", transform=panels[1].transAxes,
                       fontsize=7.5, color=GREY)  # fmt: skip
        return figure

    return draw()


def draw_waterfall() -> Any:
    """The waterfall as bars."""
    from zipbrain.evaluation.plots.style import BLUE, GREY, RED, new_figure, styled

    @styled
    def draw() -> Any:
        found = rows("waterfall")
        figure = new_figure(6.6, 2.9)
        panel = figure.subplots()
        times = [float(row["ms"]) for row in found]
        colours = [RED if "ZIPBrain" in row["step"] or "without" in row["step"] else BLUE for row in found]
        places = range(len(found))[::-1]
        panel.barh(places, times, color=colours, height=0.66)
        for place, time, row in zip(places, times, found, strict=True):
            panel.text(time + 0.1, place, f"{time:.2f} ms  ({float(row['to_eager']):.2f})", va="center", fontsize=8)
        panel.set_yticks(places, [row["step"] for row in found])
        panel.set_xlim(0, max(times) * 1.22)
        panel.set_xlabel("milliseconds for 32 windows (in brackets: over the first row)", color=GREY)
        return figure

    return draw()


def main() -> None:
    fill(TABLES)
    draw_overhead().savefig(RESULTS / "gpu_overhead.png", dpi=150)
    draw_waterfall().savefig(RESULTS / "gpu_waterfall.png", dpi=150)
    held, all_of_them = count_bars()
    print(f"{held} of {all_of_them} ratios to free slicing are within their bars; tables filled, two pictures drawn")


if __name__ == "__main__":
    main()
