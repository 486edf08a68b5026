"""What the search saves by computing everything before the first reduction once: plain evaluation against reuse.

    python -m benchmarks.speed.search_cost                      # both models on this machine's GPU, or its CPU
    python -m benchmarks.speed.search_cost --quick              # a few recipes of a few windows, to see that it runs
    python -m benchmarks.speed.search_cost --model biot --windows 512 --rounds 30

Both ways score the same recipes of stage 1 in turns, one recipe a round, and a time is a whole evaluation: forward of
all windows, token counts, metrics. The prefix's share is what came before the first reduction in a pass that noted it
down, over the plain time, median over fresh passes. The bar: reuse takes at most (1 - share) of the plain time, plus
5 %. Writes search_cost.csv and .json into benchmarks/results, unless --quick is given; exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import sys
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import write_csv, write_json

from zipbrain import __version__
from zipbrain.data.windows import Windows
from zipbrain.evaluation.trial import Trial, recipe_for
from zipbrain.models import create
from zipbrain.profiling import interleaved
from zipbrain.recipe import Recipe
from zipbrain.search.space import stage_1
from zipbrain.training.loader import pick_device

_CHANNELS = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6"  # EEGMAT's 16, which all models know
_SLACK = 1.05


def noise(count: int, seconds: int) -> Windows:
    """Random windows of two classes."""
    x = np.random.default_rng(0).normal(0, 20, (count, 16, 200 * seconds)).astype(np.float32)
    return Windows.from_arrays(x, np.arange(count) % 2, ch_names=_CHANNELS.split(), sfreq=200, classes=["0", "1"])


def build(name: str, seconds: int) -> torch.nn.Module:
    """A model of the paper's size with random weights: what it costs does not depend on them."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_outputs": 1, "n_times": 200 * seconds}
    shape |= {"ch_names": _CHANNELS.split()} if name in ("labram", "eegpt") else {"n_chans": 16}
    return create(name, **shape).eval()


def some_recipes(model: torch.nn.Module, count: int, ratio: str) -> list[Recipe]:
    """Settings spread evenly over stage 1."""
    points = stage_1()
    return [recipe_for(model, points[i * len(points) // count].method, ratio=ratio) for i in range(count)]


def measure(name: str, windows: Windows, device: str, batch: int, rounds: int, seconds: int) -> dict[str, Any]:
    """Time one model."""
    model = build(name, seconds)
    options: dict[str, Any] = {"device": device, "batch_size": batch}
    plain, reuse = (Trial(model, windows, prefix_budget=budget, **options) for budget in (0, None))
    recipes = some_recipes(model, rounds, "max")
    for trial in (plain, reuse):  # the uncompressed pass, and the pass that notes the prefix down
        for recipe in recipes[:2]:
            trial.run(recipe)
    again = {"plain": itertools.cycle(recipes), "reuse": itertools.cycle(recipes)}
    timings = interleaved(
        {"plain": lambda: plain.run(next(again["plain"])), "reuse": lambda: reuse.run(next(again["reuse"]))},
        rounds=rounds, warmup=1,
    )  # fmt: skip
    prefixes = []
    for recipe in recipes[: min(5, rounds)]:
        fresh = Trial(model, windows, **options)
        fresh.run(recipe)
        prefixes.append(fresh.prefix_seconds)
    share = statistics.median(prefixes) / timings["plain"].median
    ratio = timings["reuse"].ratio(timings["plain"])
    bar = (1 - share) * _SLACK
    return {
        "model": name, "tokens": plain.original.token_counts[0], "windows": len(windows), "batch": batch,
        "rounds": rounds, "plain_s": round(timings["plain"].median, 5), "reuse_s": round(timings["reuse"].median, 5),
        "prefix_share": round(share, 4), "to_plain": round(ratio, 4), "bar": round(bar, 4), "holds": ratio <= bar,
    }  # fmt: skip


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["labram", "biot"])
    parser.add_argument("--windows", type=int, help="2048 on a GPU, 128 on a CPU")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=27)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    device = pick_device(given.device)
    gpu = device.type == "cuda"
    count, rounds = given.windows or (2048 if gpu else 128), given.rounds
    if given.quick:
        count, rounds = 8, 3
    rows = []
    for name in given.model:
        row = measure(name, noise(count, given.seconds), str(device), given.batch, rounds, given.seconds)
        rows.append(row)
        print(
            f"{name:8s} plain {row['plain_s']:9.4f} s   reuse {row['reuse_s']:9.4f} s   {row['to_plain']:6.3f} x   "
            f"prefix {row['prefix_share']:6.1%}   bar {row['bar']:6.3f}: {'holds' if row['holds'] else 'MISSED'}",
            flush=True,
        )
    if given.quick:
        return 0
    write_csv("search_cost", rows)
    setting = {
        "device": torch.cuda.get_device_name(device) if gpu else platform.machine(), "torch": torch.__version__,
        "zipbrain": __version__, "threads": torch.get_num_threads(), "command": " ".join(sys.argv),
    }  # fmt: skip
    write_json("search_cost", {"setting": setting, "rows": rows})
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
