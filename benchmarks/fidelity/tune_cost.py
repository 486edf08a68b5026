"""Seconds and peak memory of `zipbrain tune` on 600 windows, every case in a process of its own.

`python -m benchmarks.fidelity.tune_cost OUT` measures the cases that have no file in OUT yet, and writes
benchmarks/results/tune_cost.csv and the table of docs/guides/tune.md; `--fill` takes the stored figures. LaBraM is the
demo's; BIOT has random weights, so only its cost means something.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv
from torch import nn

import zipbrain
from zipbrain.data.windows import Windows
from zipbrain.models import Task, remember
from zipbrain.pretrained import from_pretrained
from zipbrain.signal.scaling import scale
from zipbrain.training import scratch_settings
from zipbrain.training.loader import scaling_of
from zipbrain.training.model_setup import build_model
from zipbrain.training.window_sources import new_people

CASES = [(model, runtime, batch) for model in ("LaBraM", "BIOT") for runtime, batch in (("torch", 1), ("ort", 32))]
WINDOWS, PEOPLE = 600, 30

_KINDS = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def network(model: str, windows: Windows) -> nn.Module:
    """The demo's LaBraM, or a BIOT with random weights whose head is moved so that it answers every class."""
    if model == "LaBraM":
        return from_pretrained(DEMO)
    made = build_model(scratch_settings("biot"), windows).eval()
    x = torch.from_numpy(np.asarray(scale(windows.take(slice(None)), scaling_of(model, windows)), dtype=np.float32))
    with torch.inference_mode():
        logits = torch.cat([made(part) for part in x.split(32)])
    head = [layer for layer in made.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        head.bias.copy_((head.bias - logits.mean(0)) * (3 / logits.std(0)))
        head.weight.mul_((3 / logits.std(0))[:, None])
    remember(made, Task(windows.classes, windows.name, windows.ch_names, windows.sfreq, scaling_of(model, windows)))
    return made


def run(model: str, runtime: str, batch: int) -> dict[str, Any]:
    """One tuning, with what it took."""
    windows = new_people("synthetic-events", model, PEOPLE, WINDOWS)
    made = network(model, windows)
    before = _used()
    began = time.perf_counter()
    tuned = zipbrain.tune(made, windows, runtime=runtime, batch=batch)
    seconds = time.perf_counter() - began
    print(tuned, file=sys.stderr)
    return {
        "model": model,
        "runtime": runtime,
        "batch": batch,
        "windows": len(windows),
        "seconds": round(seconds),
        "processor_seconds": round(_used() - before),
        "peak_mb": round(max(resource.getrusage(kind).ru_maxrss for kind in _KINDS) / 1024),
        "agree": tuned.certificate.agree,
        "load": round(os.getloadavg()[1], 1),
    }


def _used() -> float:
    """Seconds of processors that this process and its finished workers took."""
    spent = [resource.getrusage(kind) for kind in _KINDS]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def table() -> str:
    """A line per model and runtime."""
    names = "model", "runtime", "batch", "seconds", "load", "seconds of processors", "peak memory"
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in read_csv("tune_cost"):
        lines.append(
            "| {model} | {runtime} | {batch} | {seconds} | {load} | {processor_seconds} | {peak_mb} MB |".format(**row)
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder of finished cases")
    parser.add_argument("--case", nargs=3, metavar=("MODEL", "RUNTIME", "BATCH"), help="one case only, in this process")
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    given = parser.parse_args()
    if given.fill:
        fill({"tune_cost": table})
        return
    if given.out is None:
        parser.error("name a folder for finished cases")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.case:
        model, runtime, batch = given.case
        row = run(model, runtime, int(batch))
        (given.out / f"{model}-{runtime}-{batch}.json").write_text(json.dumps(row))
        return
    files = [given.out / f"{model}-{runtime}-{batch}.json" for model, runtime, batch in CASES]
    for case, file in zip(CASES, files, strict=True):
        if not file.exists():
            command = [sys.executable, "-m", "benchmarks.fidelity.tune_cost", str(given.out), "--case", *map(str, case)]
            subprocess.run(command, check=True)
        print(file.read_text())
    write_csv("tune_cost", [json.loads(file.read_text()) for file in files])
    fill({"tune_cost": table})


if __name__ == "__main__":
    main()
