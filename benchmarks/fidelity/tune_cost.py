"""Seconds and peak memory of `zipbrain tune` on 600 windows, every case in a process of its own.

`python -m benchmarks.fidelity.tune_cost` writes benchmarks/results/tune_cost.csv and the table of docs/guides/tune.md;
`--fill` takes the stored figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.shared.results import DEMO, fill, read_csv, write_csv

import zipbrain
from zipbrain.data.synthetic import Synthetic
from zipbrain.pretrained import from_pretrained
from zipbrain.training import finetune, scratch_settings
from zipbrain.training.window_sources import new_people

CASES = [(model, runtime, batch) for model in ("LaBraM", "BIOT") for runtime, batch in (("torch", 1), ("ort", 32))]
WINDOWS, PEOPLE, EPOCHS = 600, 30, 3

_KINDS = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def network(model: str) -> Any:
    """The demo's LaBraM, or a BIOT that was trained for a few epochs."""
    if model == "LaBraM":
        return from_pretrained(DEMO)
    corpus = Synthetic("events", n_subjects=20, montage="bipolar")
    settings = scratch_settings("biot").override(epochs=EPOCHS)
    return finetune("biot", corpus.split("train"), corpus.split("val"), settings=settings).model


def run(model: str, runtime: str, batch: int) -> dict[str, Any]:
    """One tuning, with what it took."""
    made = network(model)
    windows = new_people("synthetic-events", model, PEOPLE, WINDOWS)
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
    names = "model", "runtime", "batch", "seconds", "of processors", "peak memory of its largest process"
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in read_csv("tune_cost"):
        lines.append("| {model} | {runtime} | {batch} | {seconds} | {processor_seconds} | {peak_mb} MB |".format(**row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=3, metavar=("MODEL", "RUNTIME", "BATCH"), help="one case, as JSON")
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    given = parser.parse_args()
    if given.case:
        model, runtime, batch = given.case
        print(json.dumps(run(model, runtime, int(batch))))
        return
    if not given.fill:
        rows = []
        for case in CASES:
            command = [sys.executable, "-m", "benchmarks.fidelity.tune_cost", "--case", *map(str, case)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1])
        write_csv("tune_cost", rows)
    fill({"tune_cost": table})


if __name__ == "__main__":
    main()
