"""A tree of 100,000 recordings through `predict --format parquet`: memory, kills, and what is in the dataset.

    python -m benchmarks.edge.archive FOLDER                # 100,000 hard links to a few short recordings
    python -m benchmarks.edge.archive FOLDER --count 2000   # to see that it runs; stores nothing
    python -m benchmarks.edge.archive --table               # the first table of docs/guides/archives.md

The tree is listed, then predicted with a tiny model, killed twice on its way (SIGKILL), run again with the same
command, and once more when all is done (--share 0.5 takes half of it). A fortieth is predicted again by two Dask
workers, of which one is killed. Every recording must be in the dataset once, and Dask's rows must be those of the one
process. One recording in a thousand is too short for a window, so that it fails. Steps that FOLDER has are not
repeated. Peak memory is VmHWM of the process that walks and writes and, without Dask, predicts. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, ROOT, cpu_name, fill, read_csv, write_csv, write_json

COUNT, OF_FOLDER, FAILS_EVERY, KINDS = 100_000, 250, 1000, 5
NAMES, SECONDS, WINDOWS = ("C3", "C4"), 6, 3  # of a recording; windows of 2 s
TITLES = {
    "listed": "list the tree",
    "killed": "predict, killed on the way",
    "killed_again": "the same command again, killed once more",
    "resumed": "the same command again",
    "again": "once more: nothing is left to do",
    "dask": "two Dask workers, one of them killed",
}

LIST = """
import sys
from zipbrain.edge.recording_tree import walk_recordings
said = {"found": sum(1 for _ in walk_recordings([sys.argv[1]], print))}
"""
PREDICT = """
import sys
from zipbrain.edge import predict_archive
from zipbrain.edge.limits import UNBOUNDED
model, out, address, *folders = sys.argv[1:]
crew = {"backend": "dask", "address": address} if address else {"backend": "sequential"}
report = predict_archive(folders, model, out, threads=1, limits=UNBOUNDED, **crew)
said = {"predicted": report.done - report.skipped, "skipped": report.skipped, "failed": report.failed,
        "reasons": len(report.reasons), "windows": report.windows}
"""
SAY = """
import json
print(json.dumps(said))
"""


def plant(folder: Path, count: int) -> None:
    """A tree of hard links to a few short recordings, and the model."""
    from edge import tiny_onnx
    from edge.test_predict import save_edf

    rng = np.random.default_rng(0)
    own = {"montage": NAMES, "ch_names": NAMES, "window_s": 2.0, "hop_s": 2.0}
    tiny_onnx.save(folder / "m.onnx", tiny_onnx.description(convention=tiny_onnx.convention(**own)))
    lengths = {**{f"{kind}": SECONDS for kind in range(KINDS)}, "short": 1}
    seeds = [
        save_edf(folder / "seeds" / f"{name}.edf", 30 * rng.normal(size=(len(NAMES), 200 * seconds)), NAMES)
        for name, seconds in lengths.items()
    ]
    for number in range(count):
        place = folder / "tree" / f"{number // OF_FOLDER:05d}"
        if number % OF_FOLDER == 0:
            place.mkdir(parents=True)
        os.link(seeds[-1 if is_short(number) else number % KINDS], place / f"r{number:07d}.edf")


def is_short(number: int) -> bool:
    """True for the recordings that must fail."""
    return number % FAILS_EVERY == FAILS_EVERY // 2


def run(code: str, *given: object, watch: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """One step in a fresh process, killed once `watch` says so."""
    began = time.perf_counter()
    command = [sys.executable, "-c", code + SAY, *map(str, given)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    peak = 0
    while process.poll() is None:
        peak = max(peak, peak_mb(process.pid))
        if watch():
            process.send_signal(signal.SIGKILL)
        time.sleep(0.1)
    said = process.stdout.read() if process.stdout else ""
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"a step ended with exit code {process.returncode}")
    return {"wall_s": round(time.perf_counter() - began, 1), "peak_mb": peak, **(json.loads(said) if said else {})}


def peak_mb(pid: int) -> int:
    """The most memory that a process has had, in MB; 0 where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((round(int(line.split()[1]) / 1024) for line in status if line.startswith("VmHWM:")), 0)


def parts(out: Path) -> int:
    """How many parts a dataset has so far."""
    return len(list(out.glob("zipbrain_predictions.parquet/part-*.parquet")))


def on_dask(model: Path, out: Path, folders: list[Path]) -> dict[str, Any]:
    """Two workers, of which one is killed at the first part of the dataset."""
    from dask_cluster import dask_cluster

    with dask_cluster() as (address, workers):

        def kill_one() -> bool:
            if parts(out) and workers[0].poll() is None:
                workers[0].send_signal(signal.SIGKILL)
            return False

        found = run(PREDICT, model, out, address, *folders, watch=kill_one)
        is_one_killed = workers[0].wait(1) == -signal.SIGKILL and workers[1].poll() is None
    return {**found, "one_of_two_workers_killed": is_one_killed}


def check(folder: Path, count: int, folders: list[Path]) -> dict[str, Any]:
    """What is twice in the dataset, what is not in it, and whether Dask wrote the same rows."""
    import pyarrow.dataset as dataset

    order = [("recording", "ascending"), ("start_s", "ascending")]
    whole, other = (
        dataset.dataset(folder / out / "zipbrain_predictions.parquet", format="parquet").to_table().sort_by(order)
        for out in ("out", "dask")
    )
    _, found = np.unique(whole["recording"].to_numpy(), return_counts=True)
    wanted = sum(1 for number in range(count) if not is_short(number))  # of those that were to be predicted
    chosen = {str(place) for place in folders}
    mine = whole.filter(np.array([os.path.dirname(name) in chosen for name in whole["recording"].to_pylist()]))
    return {
        "twice": int((found > WINDOWS).sum()),
        "lost": wanted - int((found == WINDOWS).sum()),
        "dask_wrote_the_same": bool(mine.equals(other)) and len(other) > 0,
        "results_mb": round(sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file()) / 1e6),
    }


def measure(folder: Path, count: int, share: float) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What each step did, and what the datasets hold."""
    tree, model, done = folder / "tree", folder / "m.onnx", folder / "steps.json"
    if not model.exists():
        plant(folder, count)
    found = sorted(tree.iterdir())
    folders, few = found[: max(1, int(share * len(found)))], found[: max(1, len(found) // 40)]
    given = (PREDICT, model, folder / "out", "", *folders)
    third = len(folders) * OF_FOLDER // 2000 // 3
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "listed": lambda: run(LIST, tree),
        "killed": lambda: run(*given, watch=lambda: parts(folder / "out") > third),
        "killed_again": lambda: run(*given, watch=lambda: parts(folder / "out") > 2 * third),
        "resumed": lambda: run(*given),
        "again": lambda: run(*given),
        "dask": lambda: on_dask(model, folder / "dask", few),
    }
    rows = json.loads(done.read_text()) if done.exists() else {}
    for step, act in steps.items():
        if step not in rows:
            rows[step] = act()
            done.write_text(json.dumps(rows))
            print(step, rows[step], flush=True)
    about = {"predicted": len(folders) * OF_FOLDER} | check(folder, len(folders) * OF_FOLDER, few)
    return rows, about | {"one_of_two_workers_killed": rows["dask"].pop("one_of_two_workers_killed")}


def table() -> str:
    """What each step did."""
    head = "| step | recordings predicted | in the dataset then | failed, as they must | peak memory, MB |"
    lines = [head, "|---|--:|--:|--:|--:|"]
    for row in read_csv("archive"):
        whole = str(int(row["predicted"]) + int(row["skipped"])) if row["skipped"] else ""
        counts = (row["predicted"], whole, row["failed"], row["peak_mb"])
        lines.append(f"| {TITLES[row['step']]} | {' | '.join(f'{int(one):,}' if one else '' for one in counts)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder for the tree and the results")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--share", type=float, default=1.0, help="of the tree that is predicted")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        fill({"archive": table})
        return
    if given.folder is None:
        parser.error("give a folder")
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT / "tests"))
    rows, about = measure(given.folder, given.count, given.share)
    print(about)
    if given.count == COUNT:
        keys = ("wall_s", "found", "predicted", "skipped", "failed", "reasons", "windows", "peak_mb")
        stored = [{"step": step, **{key: row.get(key, "") for key in keys}} for step, row in rows.items()]
        write_csv("archive", stored, RESULTS)
        write_json("archive", {"cpu": cpu_name(), "recordings": COUNT, "seconds_of_a_recording": SECONDS} | about)


if __name__ == "__main__":
    main()
