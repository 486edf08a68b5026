"""Time of REVE at 128 channels on a CPU, compressed in several ways: random weights, so time and operations only.

`python -m benchmarks.speed.reve` (in `.venv-zoo`) writes benchmarks/results/reve.csv and the table of
docs/benchmarks/faster.md; `--fill` takes the stored figures. braindecode's REVE in its own size: 22 blocks of width
512, 10 s at 200 Hz, electrodes of a BioSemi cap of 128.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.shared.results import cpu_name, fill, read_csv, write_csv
from torch import Tensor, nn

import zipbrain
from zipbrain.cores import available_cores
from zipbrain.profiling import interleaved
from zipbrain.tuning.candidates import Anatomy, MethodSchedule, usual_schedules

CHANNELS, SAMPLES, RATE = 128, 2000, 200.0
SCHEDULES = ("constant 80%", "early 60%", "early 80%")
METHODS = ("twins", "ward_pairs", "tome")
ROUNDS, WARMUP, BUDGET = 4, 1, 220.0  # BUDGET in seconds


def network() -> nn.Module:
    """REVE with random weights."""
    import mne
    from braindecode.models import REVE

    montage = mne.channels.make_standard_montage("biosemi128")
    info = mne.create_info(montage.ch_names, RATE, "eeg")
    info.set_montage(montage)
    channels = list(info["chs"])
    with tempfile.TemporaryDirectory() as folder:  # where REVE looks before it downloads electrodes
        places = {channel["ch_name"]: [float(value) for value in channel["loc"][:3]] for channel in channels}
        (Path(folder) / "reve_positions.json").write_text(json.dumps(places))
        os.environ["REVE_POSITIONS_PATH"] = folder
        torch.manual_seed(0)
        model = REVE(n_outputs=3, chs_info=channels, n_times=SAMPLES, sfreq=RATE)
    return model.eval()


def measure() -> list[dict[str, Any]]:
    """A row for every method and schedule, all timed in turn."""
    model, x = network(), torch.randn(1, CHANNELS, SAMPLES, generator=torch.Generator().manual_seed(0))
    anatomy = Anatomy.of(model, x)
    networks: dict[tuple[str, str], nn.Module] = {("original", ""): model}
    operations = {("original", ""): 1.0}
    left = {("original", ""): anatomy.tokens}
    for name in METHODS:
        schedules = usual_schedules(anatomy, zipbrain.pooling.as_method(name), (0.6, 0.8))
        for title in SCHEDULES:
            removed = schedules[title]
            one = MethodSchedule({"name": name}, {"attention": True, "merge": True, "readout": True}, removed, title)
            networks[name, title] = zipbrain.compress(copy.deepcopy(model), one.recipe(anatomy))
            operations[name, title] = anatomy.operations(one)
            left[name, title] = anatomy.tokens - sum(removed)
    threads = available_cores()
    torch.set_num_threads(threads)
    calls = {" ".join(key): partial(_run, made, x) for key, made in networks.items()}
    timed = interleaved(calls, rounds=ROUNDS, warmup=WARMUP, budget=BUDGET)
    return [
        {
            "method": name,
            "schedule": title,
            "tokens": anatomy.tokens,
            "left": left[name, title],
            "operations": round(operations[name, title], 4),
            "time": round(timed[f"{name} {title}"].ratio(timed["original "]), 4),
            "threads": threads,
            "torch": torch.__version__,
            "processor": cpu_name(),
        }
        for name, title in networks
    ]


def _run(model: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        model(x)


def table() -> str:
    """A line for every method and schedule."""
    lines = ["| method, schedule | tokens left | operations | time |", "|---|---|---|---|"]
    for row in read_csv("reve"):
        title = f"{row['method']}, {row['schedule']}" if row["schedule"] else row["method"]
        lines.append(f"| {title} | {row['left']} | {float(row['operations']):.2f} | {float(row['time']):.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and fill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    if not parser.parse_args().fill:
        write_csv("reve", measure())
    fill({"reve": table})


if __name__ == "__main__":
    main()
