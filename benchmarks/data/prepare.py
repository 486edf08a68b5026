"""What reading, filtering and resampling a long recording costs, against MNE's own way on the same file.

    python -m benchmarks.data.prepare            # a day for memory, two hours for the comparison; some 15 minutes
    python -m benchmarks.data.prepare --quick    # an hour and ten minutes, to see that it runs

A recording with 23 channels at 256 Hz is made up in a temporary folder (1 GB a day), filtered to 0.1-75 Hz with a notch
at 50 Hz, resampled to 200 Hz and written as float32 windows of 10 s. MNE loads a whole file (8 GB and more for a day),
so times are compared on two hours, in turns; each conversion runs in a fresh process with one thread, and its time
starts after the imports. Peak memory is that process's VmHWM, imports included. Writes CSV and JSON into
benchmarks/results. Linux only, for the peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, ROOT, cpu_name, write_csv, write_json
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import zipbrain

CHANNELS, RATE, TARGET, BAND, NOTCH, WINDOW = 23, 256, 200, (0.1, 75.0), 50.0, 10
CANDIDATES = ("zipbrain", "MNE", "MNE, polyphase")
BARS = {"peak_mb": 1000, "to_mne": 1.3}


def make(path: Path, hours: float) -> None:
    """Write an EDF file of one-second records, a minute at a time: noise that drifts, other in every minute."""
    import edfio

    signals = [
        edfio.EdfSignal(np.zeros(RATE), RATE, label=f"EEG {i}", physical_dimension="uV", physical_range=(-3277, 3277))
        for i in range(CHANNELS)
    ]
    edfio.Edf(signals, data_record_duration=1).write(path)
    header = bytearray(path.read_bytes()[: 256 * (CHANNELS + 1)])
    header[236:244] = str(round(hours * 3600)).ljust(8).encode()
    generator = np.random.default_rng(0)
    minute = generator.standard_normal((CHANNELS, 60 * RATE)).cumsum(axis=1)
    minute = 300 * (minute - np.linspace(minute[:, 0], minute[:, -1], 60 * RATE, axis=1)) / minute.std()
    with path.open("wb") as file:
        file.write(header)
        for _ in range(round(hours * 60)):
            x = np.roll(minute, generator.integers(60 * RATE), axis=1) + 200 * generator.standard_normal(60 * RATE)
            records = x.astype("<i2").reshape(CHANNELS, 60, RATE).transpose(1, 0, 2)  # (60, C, RATE)
            file.write(np.ascontiguousarray(records).data)


def by_zipbrain(path: Path) -> Iterator[np.ndarray]:
    """Blocks of the processed recording, (C, m) in microvolts."""
    from zipbrain.data import Processing, open_recording

    recording = open_recording(path)
    processing = Processing.design(recording.sfreq, TARGET, BAND, NOTCH)
    yield from processing.blocks(recording.read, recording.n_times)


def by_mne(path: Path, method: str) -> Iterator[np.ndarray]:
    """The processed recording in one piece."""
    import mne

    raw = mne.io.read_raw_edf(path, preload=True, verbose="ERROR")
    raw.filter(*BAND, verbose="ERROR").notch_filter(NOTCH, verbose="ERROR")
    raw.resample(TARGET, method=method, verbose="ERROR")
    yield raw.get_data(units="uV")


def convert(name: str, path: Path, out: Path) -> int:
    """Write windows as a .npy file of float32 that can be memory-mapped; return how many."""
    blocks = by_zipbrain(path) if name == "zipbrain" else by_mne(path, "polyphase" if "poly" in name else "fft")
    size, count, rest = WINDOW * TARGET, 0, np.empty((CHANNELS, 0), dtype=np.float32)
    with out.open("wb") as file:
        file.seek(128)  # the header's place
        for block in blocks:
            rest = np.concatenate((rest, block.astype(np.float32)), axis=1)
            whole = rest.shape[1] // size
            windows = rest[:, : whole * size].reshape(CHANNELS, whole, size).transpose(1, 0, 2)
            file.write(np.ascontiguousarray(windows).data)
            rest, count = rest[:, whole * size :].copy(), count + whole
        file.seek(0)
        layout = {"descr": "<f4", "fortran_order": False, "shape": (count, CHANNELS, size)}
        np.lib.format.write_array_header_1_0(file, layout)
        assert file.tell() == 128
    return count


def one(name: str, path: Path) -> None:
    """In a process of its own: seconds, windows and peak memory of one conversion."""
    import mne.filter  # both ways need these, and neither is to pay for them alone
    import scipy.signal

    _ = mne.io.read_raw_edf, scipy.signal.oaconvolve
    out = path.with_suffix(".npy")
    start = time.perf_counter()
    windows = convert(name, path, out)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    mapped = np.load(out, mmap_mode="r")
    assert mapped.shape == (windows, CHANNELS, WINDOW * TARGET)
    out.unlink()
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "windows": windows}))


def run(name: str, path: Path) -> dict[str, Any]:
    """One conversion in a fresh process with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.data.prepare", "--one", name, "--file", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if found.returncode:
        raise SystemExit(f"{name} on {path.name} failed:\n{found.stderr}")
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import mne
    import scipy

    return {
        "cpu": cpu_name(),
        "threads": 1, "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
        "mne": mne.__version__, "zipbrain": zipbrain.__version__, "channels": CHANNELS, "sfreq": RATE,
        "target": TARGET, "band": BAND, "notch": NOTCH,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short recordings, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", choices=CANDIDATES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.file)
        return
    long, short, rounds = (1.0, 1 / 6, 1) if options.quick else (24.0, 2.0, options.rounds)
    runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("preparing recordings", total=rounds * len(CANDIDATES) + 3)
        files = {hours: Path(folder) / f"{hours:g}h.edf" for hours in (short, long)}
        for hours, path in files.items():
            make(path, hours)
            progress.advance(task)
        for number in range(rounds):
            shift = number % len(CANDIDATES)
            for name in CANDIDATES[shift:] + CANDIDATES[:shift]:
                runs.setdefault((name, short), []).append(run(name, files[short]))
                progress.advance(task)
        runs["zipbrain", long] = [run("zipbrain", files[long])]
        progress.advance(task)
    rows = []
    for (name, hours), found in runs.items():
        seconds = [each["seconds"] for each in found]
        reference = [each["seconds"] for each in runs["MNE", hours]] if ("MNE", hours) in runs else []
        ratios = [a / b for a, b in zip(seconds, reference, strict=True)] if reference else []
        rows.append({
            "way": name,
            "hours": round(hours, 3),
            "rounds": len(found),
            "seconds": round(statistics.median(seconds), 2),
            "x_real_time": round(hours * 3600 / statistics.median(seconds)),
            "to_mne": round(statistics.median(ratios), 3) if ratios else "",
            "peak_mb": round(max(each["peak_mb"] for each in found)),
            "windows": found[0]["windows"],
        })  # fmt: skip
    write_csv("prepare", rows, options.out)
    write_json("prepare", {"machine": machine(), "bars": BARS, "rows": rows}, options.out)
    table = Table(title=f"{CHANNELS} channels, {RATE} -> {TARGET} Hz, {BAND[0]:g}-{BAND[1]:g} Hz, notch {NOTCH:g} Hz")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    Console().print(f"Stored in {options.out}")


if __name__ == "__main__":
    main()
