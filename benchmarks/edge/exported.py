"""How fast exported models are on a CPU, in ONNX Runtime and OpenVINO, float32 and int8, against bars.

    python -m benchmarks.edge.exported           # LaBraM and BIOT at the shape of TUAB; half an hour on two cores
    python -m benchmarks.edge.exported --quick   # two blocks of each and few rounds, to see that it runs

Writes benchmarks/results/edge.csv and edge.json and prints every bar, met or missed. All networks and runtimes of a
model and a batch are timed in one interleaved run on two threads (the rivals in ONNX Runtime float32 only), and a ratio
is the median over rounds of two calls of the same round. Weights are random: what a network costs does not depend on
them.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.shared.results import RESULTS
from rich.console import Console
from rich.progress import Progress
from torch import nn

import zipbrain
from zipbrain.data import convention
from zipbrain.evaluation.tables import csv_text
from zipbrain.models import create
from zipbrain.profiling import hand_flops
from zipbrain.profiling.profile import ORIGINAL, Profile, profile
from zipbrain.profiling.runners import RUNNERS

RATIO, THREADS, BATCHES = 0.8, 2, (1, 32)
RUNTIMES = ("ort", "ort-int8", "openvino", "openvino-int8", "openvino-nncf")
OURS, RIVALS = "ZIPBrain", ("tome", "tofu", "evit", "dart", "twins")
PAPER = 0.4230  # saved FLOPs of LaBraM on TUAB at 80 %


@dataclass(frozen=True)
class Bar:
    """One thing that must be shown."""

    what: str
    found: float | None
    wanted: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        value = "" if self.found is None else f"{self.found:.4f}"
        return f"{verdict:12s} {value:>8s}  {self.wanted:16s} {self.what}"


def build(name: str, quick: bool) -> tuple[nn.Module, tuple[int, int]]:
    """A model with random weights for TUAB's windows, and their shape."""
    how = convention(name, "tuab")
    channels = {"ch_names": list(how.ch_names)} if name == "labram" else {"n_chans": len(how.ch_names)}
    torch.manual_seed(0)
    model: Any = create(name, n_outputs=1, n_times=how.n_times, **channels).eval()
    if quick:
        owner, _, last = model.encoder_path.rpartition(".")
        inside = model.get_submodule(owner)
        setattr(inside, last, getattr(inside, last)[:2])
    return model, (len(how.ch_names), how.n_times)


def ratio_bars(name: str, found: Profile) -> list[Bar]:
    """Time against free slicing and against the original."""
    speeds = {(speed.runtime, speed.variant, speed.batch): speed for speed in found.speeds}
    bars = []
    for runtime, title in ((name, one.title) for name, one in RUNNERS.items()):
        for batch in BATCHES:
            speed = speeds.get((runtime, OURS, batch))
            if speed is None:
                continue
            limit = 1.15 if "float32" not in title else (1.10 if batch == 1 else 1.05)
            words = f"{name}, {title}, batch {batch}: {OURS} / free slicing"
            bars.append(Bar(words, speed.to_slicing, f"<= {limit:.2f}", speed.to_slicing <= limit))
            if name == "labram" and batch == 32 and runtime in ("ort", "openvino"):
                words = f"{name}, {title}, batch {batch}: {OURS} / original"
                bars.append(Bar(words, speed.to_original, "<= 0.62", speed.to_original <= 0.62))
    return bars


def flop_bars(found: Profile, model: nn.Module) -> list[Bar]:
    """Multiply-adds saved, by hand and by onnx-tool."""
    base, ours = (next(v.counts for v in found.variants if v.name == name) for name in (ORIGINAL, OURS))
    saved = 1 - ours.hand / base.hand
    again = hand_flops(zipbrain.compress(copy.deepcopy(model), "zipbrain", ratio=RATIO)).macs
    bars = [
        Bar("labram: multiply-adds saved, by hand", saved, "0.422 +- 0.001", abs(saved - 0.422) <= 0.001),
        Bar(
            "labram: sum over layers of the true token counts / hand count of the schedule",
            ours.hand / again, "= 1", ours.hand == again,
        ),
    ]  # fmt: skip
    seen = ours.graph.saved(base.graph)
    words = f"labram: saved by onnx-tool, pooling nodes included (the paper: {PAPER:.4f})"
    if seen is None:
        slicing = found.variants[1].counts.graph.saved(base.graph)
        reason = ours.graph.failure or base.graph.failure
        words = f"labram: saved by onnx-tool without the pooling nodes (free slicing), since {reason}"
        seen = slicing
    bars.append(Bar(words, seen, "0.423 +- 0.02", None if seen is None else abs(seen - PAPER) <= 0.02))
    return bars


def headline(name: str, found: Profile) -> list[str]:
    """The fastest combination of all."""
    return [
        f"{name}, batch {batch}: {best.variant} in {RUNNERS[best.runtime].title} takes {best.to_reference:.2f} of the "
        f"float32 original in ONNX Runtime ({1 / (best.to_reference or 1):.1f} x faster, {1e3 * best.p50:.1f} ms)"
        for batch, best in found.fastest.items()
    ]


def write(found: dict[str, Profile], bars: list[Bar], heads: list[str], folder: Path) -> None:
    """Store what there is."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for one in found.values() for row in one.rows()]
    (folder / "edge.csv").write_text(csv_text(rows))
    content = {
        "about": {name: one.about for name, one in found.items()},
        "bars": [vars(bar) for bar in bars],
        "headline": heads,
        "notes": {name: one.notes for name, one in found.items()},
    }
    (folder / "edge.json").write_text(json.dumps(content, indent=1) + "\n")


def table(folder: Path) -> str:
    """The stored rows as one Markdown table for each model, then the bars."""
    with (folder / "edge.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    stored = json.loads((folder / "edge.json").read_text())
    lines = []
    for model, about in stored["about"].items():
        own = [row for row in rows if row["model"] == model]
        batches = sorted({int(row["batch"]) for row in own})
        heads = ["runtime", "network"]
        for batch in batches:
            heads += [f"ms, batch {batch}", "/ original", "/ slicing", "/ float32 original in ORT"]
        lines += [
            f"**{about['model']}**: {about['channels']} channels, {about['samples']} samples, "
            f"{about['threads']} threads, {about['rounds']} rounds, {about['cpu']}, load {about['load']} at the end",
            "", "| " + " | ".join(heads) + " |", "|" + " :-- |" * 2 + " --: |" * (len(heads) - 2),
        ]  # fmt: skip
        for title, variant in dict.fromkeys((row["title"], row["variant"]) for row in own):
            cells = [title, variant]
            for batch in batches:
                row = next(r for r in own if (r["title"], r["variant"], int(r["batch"])) == (title, variant, batch))
                cells.append(f"{float(row['p50_ms']):.1f}")
                cells += [f"{float(row[key]):.2f}" for key in ("to_original", "to_slicing", "to_reference")]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["| bar | found | wanted | |", "| :-- | --: | --: | :-- |"]
    for bar in stored["bars"]:
        verdict = {True: "met", False: "**missed**", None: "not measured"}[bar["met"]]
        found = "" if bar["found"] is None else f"{bar['found']:.3f}"
        lines.append(f"| {bar['what']} | {found} | {bar['wanted']} | {verdict} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in stored["headline"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two blocks, few rounds")
    parser.add_argument("--models", default="labram,biot")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the stored rows as Markdown and leave")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    runtimes = [name for name in RUNTIMES if not RUNNERS[name].find_missing()]
    console = Console()
    for name in RUNTIMES:
        if name not in runtimes:
            console.print(f"{RUNNERS[name].title} is left out: {RUNNERS[name].find_missing()}")
    found: dict[str, Profile] = {}
    bars: list[Bar] = []
    heads: list[str] = []
    for name in options.models.split(","):
        model, shape = build(name, options.quick)
        generator = torch.Generator().manual_seed(0)
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task(name, total=None)
            found[name] = profile(
                model, torch.randn(32, *shape, generator=generator), ratio=RATIO, methods=["zipbrain"],
                in_first_only=[] if options.quick else RIVALS,
                batches=(1, 2) if options.quick else BATCHES, threads=THREADS, runtimes=runtimes,
                rounds=2 if options.quick else options.rounds, warmup=1 if options.quick else options.warmup,
                memory=False, timeline=False,
                progress=lambda what, done, total, name=name, task=task: progress.update(  # type: ignore[misc]
                    task, description=f"{name}: {what}", completed=done, total=total
                ),
            )  # fmt: skip
        bars += ratio_bars(name, found[name])
        if name == "labram" and not options.quick:
            bars += flop_bars(found[name], model)
        heads += headline(name, found[name])
        write(found, bars, heads, options.out)
    for bar in bars:
        console.print(str(bar), highlight=False, soft_wrap=True)
    for line in heads:
        console.print(line, highlight=False, soft_wrap=True)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    console.print(f"{THREADS} threads, load {load:.1f} at the end; stored in {options.out}", highlight=False)


if __name__ == "__main__":
    main()
