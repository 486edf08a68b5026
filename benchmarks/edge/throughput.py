"""Hours of EEG that `predict --format parquet` decides in a second on two cores, reading and filtering included.

    python -m benchmarks.edge.throughput            # an archive of 20-minute recordings, LaBraM; six minutes when quiet
    python -m benchmarks.edge.throughput --quick    # a few short ones, to see that it runs; stores nothing
    python -m benchmarks.edge.throughput --table    # the table of docs/guides/archives.md from the stored rows

The archive is hard links to a few made-up EDFs with TUAB's 23 channels at 256 Hz. LaBraM has random weights: what it
costs does not depend on them. Files take turns, in rounds; the median of the rounds counts. Two workers with a thread
each. Writes throughput.csv and .json into benchmarks/results.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import ROOT, cpu_name, fill, read_csv, write_csv, write_json

import zipbrain
from zipbrain.data import convention
from zipbrain.data.windows import Windows
from zipbrain.edge import predict_archive
from zipbrain.export import export
from zipbrain.models import LaBraM
from zipbrain.pooling import ToMe, ZIPBrain

RECORDINGS, SECONDS, SEEDS, RATE, ROUNDS, WORKERS = 12, 1200, 4, 256, 3, 2
DEPTH, EARLY = 12, 4  # blocks of LaBraM, and those of the first third
HOURS, CORES = 1_000_000, (2, 16, 64, 256)
ORIGINAL = "nothing"
COMPRESSED: dict[str, dict[str, Any]] = {
    "80 % in all blocks alike, ZIPBrain": {"method": ZIPBrain(), "ratio": 0.8},
    "80 % in the first third, ToMe": {"method": ToMe(), "ratio": 0.8, "layers": list(range(1, EARLY + 1))},
}


def plant(folder: Path, recordings: int, seconds: int) -> Path:
    """The archive: hard links to a few made-up recordings."""
    from edge.test_predict import save_edf

    rng, names = np.random.default_rng(0), convention("labram", "tuab").ch_names
    seeds = [
        save_edf(folder / f"{number}.edf", 30 * rng.normal(size=(len(names), RATE * seconds)), names, RATE)
        for number in range(min(SEEDS, recordings))
    ]
    archive = folder / "archive"
    archive.mkdir()
    for number in range(recordings):
        os.link(seeds[number % len(seeds)], archive / f"r{number:04d}.edf")
    return archive


def write_models(folder: Path) -> dict[str, Path]:
    """An exported file of LaBraM for everything that is removed."""
    how = convention("labram", "tuab")
    torch.manual_seed(0)
    shape = {"ch_names": how.ch_names, "n_times": round(how.window_s * how.sfreq)}
    model = LaBraM(n_outputs=2, **shape).eval()
    x = 30 * np.random.default_rng(1).normal(size=(16, len(how.ch_names), shape["n_times"])).astype(np.float32)
    windows = Windows.from_arrays(
        x, np.arange(16) % 2, ch_names=how.ch_names, sfreq=how.sfreq, classes=("a", "b"), name="tuab"
    )
    files = {}
    for number, (removed, options) in enumerate({ORIGINAL: {}, **COMPRESSED}.items()):
        network = zipbrain.compress(copy.deepcopy(model), **options) if options else model
        files[removed] = folder / f"{number}.onnx"
        export(network, windows, files[removed], convention=how, force=True)
    return files


def measure(folder: Path, recordings: int, seconds: int, rounds: int) -> list[dict[str, Any]]:
    """A row for every file: hours of EEG in a second."""
    archive, files = plant(folder, recordings, seconds), write_models(folder)
    speeds: dict[str, list[float]] = {removed: [] for removed in files}
    for number in range(rounds):
        for removed, file in files.items():
            out = folder / f"{file.stem}-{number}"
            report = predict_archive([archive], file, out, backend="loky", workers=WORKERS, threads=1)
            if report.failed or report.done != recordings:
                raise SystemExit(f"{removed}: {report.failed} of {recordings} recordings failed: {report.reasons}")
            speeds[removed].append(report.hours_per_second)
            print(f"{removed}: {report.hours_per_second:.4f} hours in a second", flush=True)
    hours = recordings * seconds / 3600
    return [
        {
            "removed": removed,
            "recordings": recordings,
            "hours": round(hours, 2),
            "workers": WORKERS,
            "rounds": rounds,
            "hours_per_second": round(median(found), 5),
            "slowest": round(min(found), 5),
            "fastest": round(max(found), 5),
        }
        for removed, found in speeds.items()
    ]


def table() -> str:
    """What a million hours take, if a recording more on another core costs nothing."""
    lines = [f"| tokens removed | hours in a second, 2 cores | {' | '.join(f'{cores} cores' for cores in CORES)} |"]
    lines.append(f"|---|--:|{'--:|' * len(CORES)}")
    for row in read_csv("throughput"):
        speed = float(row["hours_per_second"])
        days = [f"{HOURS / speed / (cores / int(row['workers'])) / 86_400:,.1f} days" for cores in CORES]
        lines.append(f"| {row['removed']} | {speed:.3f} | {' | '.join(days)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        sys.path.insert(0, str(ROOT / "tests"))
        size = (4, 60, 1) if given.quick else (RECORDINGS, SECONDS, ROUNDS)
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Path(folder), *size)
        if given.quick:
            return
        write_csv("throughput", rows)
        write_json("throughput", {"cpu": cpu_name(), "model": "LaBraM, 230 tokens", "seconds_of_a_recording": SECONDS})
    fill({"a million hours": table})


if __name__ == "__main__":
    main()
