"""Processor time in ONNX Runtime against decisions that stay: every method and the tuned recipe on the demo's LaBraM.

`python -m benchmarks.speed.frontier` writes benchmarks/results/frontier.csv and fills docs/benchmarks/frontier.md and
the README (`--table`: from the stored figures); benchmarks.speed.front_picture draws it.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from benchmarks.shared.results import DEMO, cpu_name, fill, read_csv, write_csv, write_json
from numpy.typing import NDArray

import zipbrain
from zipbrain.data.synthetic import Synthetic
from zipbrain.edge.runtimes import find_runtime
from zipbrain.export.shipped_graph import graphs
from zipbrain.metrics import decisions
from zipbrain.paper import COMPARED
from zipbrain.pooling import as_method
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling.latency import Timing
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_of

RATIOS = (0.4, 0.8)
MARGINS = (0.0, 1.0, 2.0, None)  # None: the margin that tuning found
BATCH, ROUNDS = 32, 9

Run = Callable[[NDArray[np.float32]], NDArray[Any]]


def candidates(shape: tuple[int, int]) -> Iterator[tuple[dict[str, Any], Run]]:
    """What a row says, and what runs windows: the original, every method at every ratio, the tuned recipe."""
    model, kind = from_pretrained(DEMO), find_runtime("onnxruntime")

    def session(network: Any) -> Any:
        return kind(graphs(network, shape)[0].SerializeToString(), "frontier", threads=1)

    yield {"method": "original", "ratio": 0, "margin": ""}, session(model).run
    for name in COMPARED:
        method = zipbrain.Recipe.load(DEMO / "recipe-0.8.json").method if name == "zipbrain" else as_method(name)
        for ratio in RATIOS:
            network = zipbrain.compress(copy.deepcopy(model), method, ratio=ratio)
            yield {"method": name, "ratio": ratio, "margin": ""}, session(network).run
    recipe = zipbrain.Recipe.load(DEMO / "tuned.json")
    tuned = session(zipbrain.compress(copy.deepcopy(model), recipe))
    for margin in MARGINS:
        chosen = recipe.second_look if margin is None else margin
        row = {"method": "tuned", "ratio": "", "margin": round(chosen, 3) if chosen else 0}
        yield row, partial(lambda x, margin: tuned.look(x, margin)[0], margin=chosen)


def processor_times(runs: Sequence[Run], x: NDArray[np.float32]) -> list[Timing]:
    """Seconds of the processor for a batch, in turns, after a round that warms up: other work does not count."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(ROUNDS + 1):
        for i in np.roll(np.arange(len(runs)), number):
            start = time.process_time()
            runs[i](x)
            if number:
                seconds[i].append(time.process_time() - start)
    return [Timing(str(i), tuple(found)) for i, found in enumerate(seconds)]


def table() -> str:
    """A line for every candidate, from the stored figures."""
    lines = ["| method | ratio | margin | decisions unchanged | time | ms a window |", "|---|--:|--:|--:|--:|--:|"]
    for row in read_csv("frontier"):
        name = {"original": "original", "tuned": "tuned"}.get(row["method"]) or as_method(row["method"]).title
        same = f"{row['same_decisions']} of {row['windows']}"
        taken = f"{float(row['time']):.2f} ± {float(row['noise']):.2f}"
        ratio = "" if row["ratio"] in ("", "0") else row["ratio"]
        lines.append(f"| {name} | {ratio} | {row['margin']} | {same} | {taken} | {float(row['ms_per_window']):.1f} |")
    return "\n".join(lines)


def front_table() -> str:
    """The README's lines: the tuned recipe, and the paper's method and ToMe at the larger ratio."""
    rows = read_csv("frontier")
    at = [row for row in rows if row["ratio"] == str(RATIOS[-1]) and row["method"] in ("zipbrain", "tome")]
    once = next(row for row in rows if row["margin"] == "0")
    shown = [(rows[-1], "tuned to keep 99 %, windows in doubt run twice"), (once, "the same, no window run twice")]
    shown += [(row, f"80 % asked for, 83 % removed, {as_method(row['method']).title}") for row in at]
    lines = ["| LaBraM of the demo, 115 tokens, ONNX Runtime | times as fast | decisions unchanged |", "|---|--:|--:|"]
    for row, words in shown:
        same, windows = int(row["same_decisions"]), int(row["windows"])
        lines.append(f"| {words} | {1 / float(row['time']):.2f} | {100 * same / windows:.1f} % ({same} of {windows}) |")
    return "\n".join(lines)


def measure() -> None:
    """Score and time all candidates, and store what was found."""
    windows = Synthetic("events").split("test")
    model = from_pretrained(DEMO)
    x = np.asarray(scale(windows.take(slice(None)), scaling_of("LaBraM", windows)), dtype=np.float32)
    batches = [x[start : start + BATCH] for start in range(0, len(x), BATCH)]
    spread = x[np.linspace(0, len(x) - 1, BATCH).astype(int)]
    made = list(candidates((x.shape[1], x.shape[2])))
    decided = []
    for row, run in made:
        decided.append(decisions(np.concatenate([run(part) for part in batches])))
        print(*row.values(), int((decided[-1] == decided[0]).sum()), flush=True)
    timings = processor_times([run for _, run in made], spread)
    rows = []
    for i, (row, _) in enumerate(made):
        timing = timings[i]
        same = int((decided[i] == decided[0]).sum())
        rows.append({
            **row, "same_decisions": same, "windows": len(x), "ms_per_window": round(1e3 * timing.median / BATCH, 3),
            "time": round(timing.ratio(timings[0]), 4), "noise": round(timing.noise(timings[0]), 4),
        })  # fmt: skip
        print(rows[-1])
    write_csv("frontier", rows)
    about = {
        "model": type(model).__name__,
        "weights": "the demo's",
        "windows": "synthetic-events, test",
        "batch": BATCH,
    }
    about |= {"rounds": ROUNDS, "threads": 1, "time": "of the processor", "cpu": cpu_name()}
    write_json("frontier", about | {"zipbrain": zipbrain.__version__})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="take the stored figures")
    if not parser.parse_args().table:
        measure()
    fill({"frontier": table, "front": front_table})


if __name__ == "__main__":
    main()
