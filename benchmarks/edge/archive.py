"""A tree of 100,000 recordings through `predict --format parquet`: memory, a kill, and what one core does in a second.

    python -m benchmarks.edge.archive                # 100,000 hard links to a few short recordings; minutes
    python -m benchmarks.edge.archive --count 2000   # to see that it runs; stores nothing
    python -m benchmarks.edge.archive --table        # the table of docs/guides/archives.md from the stored rows

The tree is predicted with a tiny model, killed on its way (SIGKILL) and run again with the same command; the dataset
must then hold every recording once. Peak memory is VmHWM of the process, which walks, writes and, with one worker,
predicts. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, ROOT, cpu_name, fill, write_csv, write_json

COUNT, OF_FOLDER, SECONDS, KINDS = 100_000, 250, 8, 5
HOURS, CORES = 1_000_000, (2, 16, 64, 256)
# What `predict` did with LaBraM on two cores of a server, reading and filtering included (docs/guides/predict.md).
TIMES_REAL_TIME = {"nothing": 177, "80 %": 275}

ONE = """
import json, sys
from pathlib import Path
from zipbrain.edge import predict_archive
said = predict_archive([sys.argv[1]], sys.argv[2], sys.argv[3], backend="sequential", threads=1)
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
print(json.dumps({"done": said.done, "skipped": said.skipped, "failed": said.failed, "seconds": said.seconds,
                  "windows": said.windows, "hours": said.hours, "peak_mb": peak}))
"""


def plant(folder: Path, count: int) -> None:
    """A tree of hard links to a few short recordings."""
    from edge.test_predict import save_edf
    from edge.test_predict import signal as noise

    seeds = [save_edf(folder / "seeds" / f"{kind}.edf", (1 + kind) * noise(SECONDS)) for kind in range(KINDS)]
    for number in range(count):
        place = folder / "tree" / f"{number // OF_FOLDER:05d}"
        if number % OF_FOLDER == 0:
            place.mkdir(parents=True)
        os.link(seeds[number % KINDS], place / f"r{number:07d}.edf")


def run(tree: Path, model: Path, out: Path, kill_at: int = 0) -> dict[str, Any]:
    """One run in a fresh process, killed once its dataset has so many parts."""
    command = [sys.executable, "-c", ONE, str(tree), str(model), str(out)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while kill_at and process.poll() is None:
        if len(list(out.glob("zipbrain_predictions.parquet/part-*.parquet"))) >= kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return {"killed": True, "wall_s": round(time.perf_counter() - began, 1)}
        time.sleep(0.2)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return {"killed": False, "wall_s": round(time.perf_counter() - began, 1), **json.loads(said)}


def count_twice_and_lost(out: Path, count: int, windows: int) -> tuple[int, int]:
    """Recordings that are in the dataset with more windows than they have, and those with fewer."""
    import pyarrow.parquet as parquet

    names = parquet.read_table(out / "zipbrain_predictions.parquet", columns=["recording"])["recording"]
    _, found = np.unique(names.to_numpy(), return_counts=True)
    return int((found > windows).sum()), count - int((found == windows).sum())


def table() -> str:
    """What a million hours take, from what `predict` was measured to do on two cores."""
    lines = [f"| tokens removed | times real time, 2 cores | {' | '.join(f'{cores} cores' for cores in CORES)} |"]
    lines.append(f"|---|--:|{'--:|' * len(CORES)}")
    for removed, speed in TIMES_REAL_TIME.items():
        days = [f"{HOURS / speed / (cores / 2) / 24:,.1f} days" for cores in CORES]
        lines.append(f"| {removed} | {speed} | {' | '.join(days)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        fill({"a million hours": table})
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from edge import tiny_onnx

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        began = time.perf_counter()
        plant(folder, given.count)
        print(f"{given.count:,} recordings planted in {time.perf_counter() - began:.0f} s", flush=True)
        model = tiny_onnx.save(folder / "m.onnx")
        parts = max(1, given.count // 2000 // 3)
        rows = [run(folder / "tree", model, folder / "out", kill_at=parts)]
        print(rows[0], flush=True)
        rows += [run(folder / "tree", model, folder / "out") for _ in range(2)]
        twice, lost = count_twice_and_lost(folder / "out", given.count, 3)
        size = sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file()) / 1e6
    keys = ("killed", "wall_s", "done", "skipped", "failed", "windows", "peak_mb")
    stored = [{"recordings": given.count, **{key: row.get(key, "") for key in keys}} for row in rows]
    stored = [row | {"peak_mb": round(row["peak_mb"]) if row["peak_mb"] else ""} for row in stored]
    for row in stored:
        print(row)
    print(f"twice {twice}, lost {lost}, results of {size:.1f} MB")
    if given.count == COUNT:
        write_csv("archive", stored, RESULTS)
        about = {"cpu": cpu_name(), "seconds_of_a_recording": SECONDS, "twice": twice, "lost": lost}
        write_json("archive", {**about, "results_mb": round(size, 1)}, RESULTS)


if __name__ == "__main__":
    main()
