"""What a second look costs in an exported file: time against both passes on their own, size and resident memory.

    python -m benchmarks.edge.second_look           # the demo's LaBraM, ten minutes on two cores
    python -m benchmarks.edge.second_look --quick   # few rounds, to see that it runs
    python -m benchmarks.edge.second_look --table   # fills docs/guides/export.md

Writes benchmarks/results/second_look_time.csv and second_look_memory.csv. The margin is fed so that a known number of
windows is doubtful. Per round the file, the first pass and the second pass (on as many windows as are doubtful), each
as a file of its own, are called in turn; `ratio` is the median over rounds of the file's time over the sum of the other
two, `ratio_of_fastest` the same of each one's fastest call, which other work on the machine disturbs least. Memory is
the resident set of a process that has loaded a file and answered 32 windows, beyond what it needs with the runtime
imported.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv

from zipbrain.edge.runtimes import RUNTIMES
from zipbrain.files import scratch_folder

THREADS = 2
DOUBTFUL = {32: (0, 1, 3, 6, 32), 1: (0, 1)}  # windows that look twice, by batch
LOOKS = {"none": 0.0, "all": float("inf")}  # margins for resident memory

Array = np.ndarray[Any, np.dtype[np.float32]]


def build() -> tuple[Any, Array]:
    """The passes of the demo's LaBraM with its recipe and a second look, and scaled test windows."""
    from dataclasses import replace

    import zipbrain
    from zipbrain.data.synthetic import Synthetic
    from zipbrain.export.shipped_graph import export_passes
    from zipbrain.pretrained import from_pretrained
    from zipbrain.recipe import Recipe
    from zipbrain.signal.scaling import scale

    model = from_pretrained(DEMO).eval()
    recipe = replace(Recipe.load(DEMO / "recipe-0.8.json"), second_look=1.0)
    zipbrain.compress(zipbrain.restore(model), recipe)
    raw = Synthetic("events").split("test").take(slice(0, 32))
    x = np.ascontiguousarray(scale(raw, "hundred"), dtype=np.float32)
    return export_passes(model, (x.shape[1], x.shape[2]))[0], x


def compare_times(passes: Any, x: Array, rounds: int) -> list[dict[str, Any]]:
    """A row for every batch and number of doubtful windows."""
    from zipbrain.edge.runtimes import OnnxRuntime
    from zipbrain.export.onnx_graph import fold, keep_outputs
    from zipbrain.profiling.latency import interleaved

    def opened(proto: Any, title: str) -> Any:
        return OnnxRuntime(proto.SerializeToString(), title, threads=THREADS)

    def session(proto: Any) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as `OnnxRuntime` has it
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])

    file, first = opened(passes.join(), "file"), opened(fold(keep_outputs(passes.first, ["logits"])), "first")
    second, tokens = session(passes.second), session(passes.first).run(["tokens"], {"eeg": x})[0]
    read = {value.name for value in second.get_inputs()}
    rows = []
    for batch, counts in DOUBTFUL.items():
        some = x[:batch]
        best = np.sort(first.run(some), axis=1)
        order = np.sort(best[:, -1] - best[:, -2])
        for count in counts:
            margin = [0.0, *((order[:-1] + order[1:]) / 2).tolist(), float("inf")][count]
            assert file.look(some, margin)[1].sum() == count
            feed = {name: value[:count] for name, value in (("eeg", some), ("tokens", tokens)) if name in read}
            calls: dict[str, Callable[[], object]] = {
                "file": partial(file.look, some, margin),
                "first": partial(first.run, some),
                "second": partial(second.run, None, feed) if count else int,  # int() takes no time
            }
            timed = interleaved(calls, rounds=rounds if batch > 1 else 5 * rounds)
            each = zip(*(timed[name].seconds for name in ("file", "first", "second")), strict=True)
            ratio = statistics.median(whole / (one + two) for whole, one, two in each)
            times = {f"{name}_ms": round(1e3 * timing.median, 2) for name, timing in timed.items()}
            fastest = {name: min(timing.seconds) for name, timing in timed.items()}
            quiet = fastest["file"] / (fastest["first"] + fastest["second"])
            ratios = {"ratio": round(ratio, 4), "ratio_of_fastest": round(quiet, 4)}
            rows.append({"batch": batch, "looked_twice": count, **times, **ratios})
            print(rows[-1], flush=True)
    return rows


def compare_memory(passes: Any, x: Array) -> list[dict[str, Any]]:
    """A row for every runtime and file: bytes on the disk and in memory."""
    from zipbrain.export.onnx_graph import fold, keep_outputs

    files = {"without": fold(keep_outputs(passes.first, ["logits"])), "with": passes.join()}
    rows = []
    with scratch_folder() as folder:
        np.save(folder / "x.npy", x)
        for runtime in (name for name, kind in RUNTIMES.items() if kind.is_installed()):
            for title, proto in files.items():
                path = folder / f"{title}.onnx"
                path.write_bytes(proto.SerializeToString())
                for looks in LOOKS if title == "with" else ("none",):
                    ends = [str(path), str(folder / "x.npy"), runtime, looks]
                    command = [sys.executable, "-m", "benchmarks.edge.second_look", "--resident", *ends]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    sizes = {"file_mb": round(path.stat().st_size / 1e6, 3), "resident_mb": float(done.stdout)}
                    rows.append({"runtime": runtime, "second_look": title, "looked_twice": looks, **sizes})
                    print(rows[-1], flush=True)
    return rows


def resident(path: str, windows: str, runtime: str, looks: str) -> float:
    """Megabytes that this process holds after it has loaded a file and answered."""
    x = np.load(windows)
    kind = RUNTIMES[runtime]
    __import__(kind.package)

    def held() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    before = held()
    opened = kind(Path(path).read_bytes(), path, threads=THREADS)
    for _ in range(3):
        if opened.takes_margin:
            opened.look(x, LOOKS[looks])
        else:
            opened.run(x)
    return round((held() - before) * 1024 / 1e6, 1)


def time_table() -> str:
    """The stored times as Markdown."""
    lines = ["| Windows | of them looked twice | first pass | second pass | file | ratio | of the fastest calls |"]
    lines.append("|--:" * 7 + "|")
    for row in read_csv("second_look_time"):
        times = (f"{float(row[name]):.1f} ms" for name in ("first_ms", "second_ms", "file_ms"))
        ratios = (f"{float(row[name]):.3f}" for name in ("ratio", "ratio_of_fastest"))
        lines.append("| " + " | ".join([row["batch"], row["looked_twice"], *times, *ratios]) + " |")
    return "\n".join(lines)


def memory_table() -> str:
    """The stored sizes as Markdown."""
    lines = ["| Runtime | Second look | Windows that look twice | File | Resident memory |", "|---|---|---|--:|--:|"]
    for row in read_csv("second_look_memory"):
        title = RUNTIMES[row["runtime"]].title
        looked = row["looked_twice"] if row["second_look"] == "with" else "–"
        sizes = f"{float(row['file_mb']):.2f} MB", f"{float(row['resident_mb']):.0f} MB"
        lines.append("| " + " | ".join([title, row["second_look"], looked, *sizes]) + " |")
    return "\n".join(lines)


TABLES = {"second look time": time_table, "second look memory": memory_table}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="write the page's tables from the stored rows and leave")
    parser.add_argument("--resident", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.resident:
        print(resident(*given.resident))
    elif given.table:
        fill(TABLES)
    else:
        made, some = build()
        memory, time = compare_memory(made, some), compare_times(made, some, 3 if given.quick else 60)
        if not given.quick:
            write_csv("second_look_memory", memory)
            write_csv("second_look_time", time)
