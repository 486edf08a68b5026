"""What pooling itself costs on a CPU: every method against free slicing, and how time and memory grow with N.

    python -m benchmarks.speed.overhead                  # everything, some ten minutes on two cores
    python -m benchmarks.speed.overhead --part encoders  # only the encoders
    python -m benchmarks.speed.overhead --quick          # a few rounds, to see that it runs

Writes CSV, JSON and two figures into benchmarks/results. "Free slicing" is the same network whose reducing layers slice
tokens off instead of pooling: no method can be faster, so the ratio to it is a method's overhead. All candidates of a
row block are timed in one interleaved run, and a ratio is the median over rounds of times taken right after each other.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.shared.results import RESULTS, ROOT, cpu_name, write_csv, write_json
from linear_attention_transformer import LinearAttentionTransformer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import zipbrain
from zipbrain.models import TokenEncoder
from zipbrain.pooling import DART, EViT, FreeSlicing, Method, ToFu, ToMe, ZIPBrain, pool
from zipbrain.pooling.backends import cpu
from zipbrain.profiling import Timing, interleaved, peak_memory

RATIO = 0.8
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
SHAPES: dict[str, tuple[int, int]] = {"LaBraM": (230, 200), "BIOT": (304, 256)}  # tokens and width on TUAB

COLOURS = {  # Okabe and Ito's palette, safe for colour-blind readers
    "original": "#000000", "free slicing": "#999999", "ZIPBrain": "#0072B2", "ZIPBrain (paper's setting)": "#56B4E9",
    "ZIPBrain (plain operators)": "#CC79A7", "ToMe": "#D55E00", "ToFu": "#E69F00", "EViT": "#009E73", "DART": "#F0E442",
}  # fmt: skip


def build(shape: str) -> nn.Module:
    """A random encoder: LaBraM-base's (12 softmax blocks) or BIOT's (4 linear-attention blocks)."""
    if shape == "LaBraM":
        return TokenEncoder().eval()
    return LinearAttentionTransformer(dim=256, heads=8, depth=4, max_seq_len=1024).eval()


def methods(shape: str) -> dict[str, Method | None]:
    """Candidates by name; None is the original."""
    return {
        "original": None,
        "free slicing": FreeSlicing(),
        "ZIPBrain": ZIPBrain(),
        "ZIPBrain (paper's setting)": ZIPBrain.from_paper(shape, "TUAB"),
        "ZIPBrain (plain operators)": ZIPBrain(),
        "ToMe": ToMe(),
        "ToFu": ToFu(),
        "EViT": EViT(),
        "DART": DART(),
    }


def time_encoders(rounds: dict[int, int], console: Console) -> list[dict[str, Any]]:
    """Time all candidates on both encoders at batch 1 and 32."""
    rows: list[dict[str, Any]] = []
    with Progress(console=console) as progress:
        for shape, (n, width) in SHAPES.items():
            base = build(shape)
            models = {}
            for name, method in methods(shape).items():
                model = base if method is None else zipbrain.compress(copy.deepcopy(base), method, ratio=RATIO)
                models[name] = model
            for batch, count in rounds.items():
                x = torch.randn(batch, n, width)
                task = progress.add_task(f"{shape}, batch {batch}", total=count + 3)

                def call(name: str, models: dict[str, nn.Module] = models, x: torch.Tensor = x) -> None:
                    before = cpu.switch("plain" not in name)
                    models[name](x)
                    cpu.switch(before)

                with torch.inference_mode():
                    timings = interleaved(
                        {name: (lambda name=name, call=call: call(name)) for name in models},  # type: ignore[misc]
                        rounds=count, warmup=3, tick=lambda task=task: progress.advance(task),  # type: ignore[misc]
                    )  # fmt: skip
                rows += [row(shape, batch, name, timings) for name in models]
    return rows


def row(shape: str, batch: int, name: str, timings: dict[str, Timing]) -> dict[str, Any]:
    """One line of the result."""
    own = timings[name]
    against = {other: own.ratio(timings[other]) for other in ("original", "free slicing", "ToMe")}
    return {
        "encoder": shape,
        "batch": batch,
        "method": name,
        "ms": round(own.median * 1e3, 3),
        "ms_p95": round(own.quantile(0.95) * 1e3, 3),
        "to_original": round(against["original"], 4),
        "to_slicing": round(against["free slicing"], 4),
        "to_tome": round(against["ToMe"], 4),
        "rounds": len(own.seconds),
    }


def one_size(name: str, n: int) -> None:
    """In a process of its own: seconds and peak bytes of one pooling step that removes half of n tokens."""
    torch.set_num_threads(2)
    cpu.switch("plain" not in name)
    method = methods("LaBraM")[name]
    assert method is not None
    generator = torch.Generator().manual_seed(0)

    def inputs(count: int) -> list[torch.Tensor]:
        heads = [torch.randn(1, 10, count + 1, 20, generator=generator) for _ in range(3)]
        return [torch.randn(1, count + 1, 200, generator=generator), *heads]

    with torch.inference_mode():
        small, large = inputs(64), inputs(n)
        pool(*small, r=32, method=method, protected=1)  # whatever a first call loads
        peak = peak_memory(lambda: pool(*large, r=n // 2, method=method, protected=1))
        rounds = 15 if n <= 2048 else 3
        timing = interleaved(
            {name: lambda: pool(*large, r=n // 2, method=method, protected=1)}, rounds=rounds, warmup=1
        )
    print(json.dumps({"method": name, "tokens": n, "ms": timing[name].median * 1e3, "peak_mb": peak / 2**20}))


def time_sizes(sizes: tuple[int, ...], console: Console) -> list[dict[str, Any]]:
    """Time and peak memory of one pooling step per method, r = N / 2, batch 1."""
    names = [name for name, method in methods("LaBraM").items() if method is not None]
    names = [name for name in names if name not in ("free slicing", "ZIPBrain (paper's setting)")]
    rows = []
    with Progress(console=console) as progress:
        task = progress.add_task("time and memory over N", total=len(sizes) * len(names))
        for n in sizes:
            for name in names:
                command = [sys.executable, "-m", "benchmarks.speed.overhead", "--one", name, "--tokens", str(n)]
                found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
                if found.returncode:
                    raise SystemExit(f"{name} at N = {n} failed:\n{found.stderr}")
                result = json.loads(found.stdout)
                result["ms"], result["peak_mb"] = round(result["ms"], 3), round(result["peak_mb"], 1)
                rows.append(result)
                progress.advance(task)
    return rows


def machine(threads: int) -> dict[str, Any]:
    """Where this was measured."""
    return {
        "cpu": cpu_name(), "threads": threads, "dtype": "float32", "python": platform.python_version(),
        "torch": torch.__version__, "zipbrain": zipbrain.__version__, "cpu_kernel": cpu.available(),
        "ratio": RATIO,
    }  # fmt: skip


def write(name: str, rows: list[dict[str, Any]], about: dict[str, Any], folder: Path) -> None:
    """Store rows as CSV and JSON."""
    write_csv(name, rows, folder)
    write_json(name, {"machine": about, "rows": rows}, folder)


def show(rows: list[dict[str, Any]], about: dict[str, Any], console: Console) -> None:
    """Print the encoders' table."""
    columns = [(shape, batch) for shape in SHAPES for batch in sorted({r["batch"] for r in rows})]
    table = Table(title=f"Time relative to free slicing (to the original), {RATIO:.0%} of the tokens removed")
    table.add_column("method")
    for shape, batch in columns:
        table.add_column(f"{shape}\nbatch {batch}", justify="right")
    for name in dict.fromkeys(r["method"] for r in rows):
        found = {(r["encoder"], r["batch"]): r for r in rows if r["method"] == name}
        table.add_row(name, *(f"{found[c]['to_slicing']:.2f} ({found[c]['to_original']:.2f})" for c in columns))
    console.print(table)
    console.print(
        f"{about['cpu']}, {about['threads']} threads, float32, torch {about['torch']}; medians of "
        f"{' and '.join(str(n) for n in dict.fromkeys(r['rounds'] for r in rows))} interleaved rounds; random weights."
    )


def draw_encoders(rows: list[dict[str, Any]], folder: Path) -> None:
    """Bars: time relative to free slicing."""
    import matplotlib.pyplot as plt

    groups = list(dict.fromkeys((r["encoder"], r["batch"]) for r in rows))
    names = [name for name in dict.fromkeys(r["method"] for r in rows) if name != "free slicing"]
    figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
    wide = 0.8 / len(names)
    for i, name in enumerate(names):
        heights = [
            next(r["to_slicing"] for r in rows if (r["encoder"], r["batch"], r["method"]) == (*g, name)) for g in groups
        ]
        places = [j + (i - (len(names) - 1) / 2) * wide for j in range(len(groups))]
        above = [height - 1 for height in heights]
        axis.bar(
            places, above, wide * 0.92, bottom=1, label=name, color=COLOURS[name], edgecolor="black", linewidth=0.4
        )
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xlim(-0.5, len(groups) - 0.5)
    axis.set_xticks(range(len(groups)), [f"{shape}, batch {batch}" for shape, batch in groups])
    axis.set_ylabel("time / time of free slicing\n(1.0: no method can be faster)")
    axis.set_title(f"What pooling costs on a CPU ({RATIO:.0%} of the tokens removed, float32, 2 threads)")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(folder / "overhead.png", dpi=150)


def draw_sizes(rows: list[dict[str, Any]], folder: Path) -> None:
    """Lines on log axes: time and peak memory over N."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    styles = ["-", "--", "-.", ":"]
    for i, name in enumerate(dict.fromkeys(r["method"] for r in rows)):
        mine = [r for r in rows if r["method"] == name]
        for axis, field in zip(axes, ("ms", "peak_mb"), strict=True):
            axis.plot(
                [r["tokens"] for r in mine], [max(r[field], 0.1) for r in mine], styles[i % 4], marker="os^Dv*"[i % 6],
                markersize=4, label=name, color=COLOURS[name],
            )  # fmt: skip
    for axis, label in zip(axes, ("time of one pooling step (ms)", "peak memory beyond the inputs (MiB)"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("tokens N (half of them removed)")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, which="both")
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].axhline(1024, color="black", linewidth=0.8, linestyle="--")
    axes[1].annotate("1 GiB", (256, 1024), xytext=(0, 3), textcoords="offset points", fontsize="small")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    figure.suptitle("One window of width 200 with 10 heads, CPU, 2 threads, float32", fontsize="medium")
    figure.savefig(folder / "scaling.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["encoders", "sizes", "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="few rounds and sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--draw", action="store_true", help="draw the figures anew from the stored results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=256, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_size(options.one, options.tokens)
        return
    if options.draw:
        draw_encoders(json.loads((options.out / "overhead.json").read_text())["rows"], options.out)
        draw_sizes(json.loads((options.out / "scaling.json").read_text())["rows"], options.out)
        return
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    console, about = Console(), machine(options.threads)
    if options.part in ("encoders", "all"):
        rows = time_encoders({1: 5, 32: 2} if options.quick else {1: 100, 32: 24}, Console(stderr=True))
        write("overhead", rows, about, options.out)
        draw_encoders(rows, options.out)
        show(rows, about, console)
    if options.part in ("sizes", "all"):
        rows = time_sizes(SIZES[:2] if options.quick else SIZES, Console(stderr=True))
        write("scaling", rows, about, options.out)
        draw_sizes(rows, options.out)
        largest = max(r["tokens"] for r in rows)
        for r in rows:
            if r["tokens"] == largest:
                console.print(f"{r['method']:28s} N = {largest}: {r['ms']:9.1f} ms, peak {r['peak_mb']:7.1f} MiB")
    console.print(f"Stored in {options.out}")


if __name__ == "__main__":
    main()
