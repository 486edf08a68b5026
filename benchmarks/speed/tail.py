"""What a lossless tail saves: the last block for protected tokens alone, in models whose head reads no others.

    python -m benchmarks.speed.tail            # EEGPT and TFM-Tokenizer of the paper's size, on the CPU
    python -m benchmarks.speed.tail --quick    # a few rounds, to see that it runs; stores nothing
    python -m benchmarks.speed.tail --table    # the stored figures into docs/explanation/seams.md

Times are processor time on one core, in turns, with and without the tail, as ratios to the original; operations are
those of the blocks. Writes tail.csv and .json into benchmarks/results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.shared.results import cpu_name, fill, read_csv, write_csv, write_json
from torch import Tensor, nn

import zipbrain
from zipbrain.acceleration.weight_sharing import copy_modules
from zipbrain.models import EEGPT, TFMEncoder
from zipbrain.seams.forward import plan_of

_TUAB = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
_AMOUNTS: dict[str, dict[str, Any]] = {"nothing": {"r": 0}, "80 %": {"ratio": 0.8}}


def models() -> dict[str, tuple[nn.Module, Callable[[int], Tensor]]]:
    """Models of the paper's size with random weights, and what makes windows for them."""
    torch.manual_seed(0)
    return {
        "EEGPT": (EEGPT(1, _TUAB.split(), 400, front_end="tuab").eval(), lambda batch: torch.randn(batch, 23, 400)),
        "TFM-Tokenizer's encoder": (TFMEncoder(1).eval(), lambda batch: torch.randint(0, 8192, (batch, 16, 19))),
    }


def processor_seconds(variants: dict[str, nn.Module], x: Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds that the processor spent on every call, in turns: other work on the machine does not count."""
    seconds: dict[str, list[float]] = {key: [] for key in variants}
    for number in range(rounds + 1):
        order = [*variants][number % len(variants) :] + [*variants][: number % len(variants)]
        for key in order:
            start = time.process_time()
            variants[key](x)
            if number:  # the first round warms up
                seconds[key].append(time.process_time() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def measure(name: str, model: nn.Module, x: Tensor, rounds: int) -> list[dict[str, Any]]:
    """Rows of one model and batch size."""
    batch, variants = len(x), {"original": model}
    for amount, options in _AMOUNTS.items():
        for has_tail in (True, False):
            made = zipbrain.compress(copy_modules(model), **options)
            plan_of(made).can_run_tail = has_tail
            variants[f"{amount}, {has_tail}"] = made
    with torch.inference_mode():
        seconds = processor_seconds(variants, x, rounds)
        rows = []
        for amount in _AMOUNTS:
            with_tail, without = (variants[f"{amount}, {has_tail}"] for has_tail in (True, False))
            found, plain = zipbrain.summary(with_tail), zipbrain.summary(without)
            times = [ratio(seconds[f"{amount}, {has_tail}"], seconds["original"]) for has_tail in (False, True)]
            row = {"model": name, "removed": amount, "tokens": found.token_counts[0], "batch": batch}
            row |= {
                "operations_without": plain.macs / plain.original_macs,
                "operations": found.macs / found.original_macs,
            }
            row |= {"time_without": times[0], "time": times[1]}
            row["difference"] = float((with_tail(x) - without(x)).abs().max())
            rows.append(
                {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
            )
    return rows


def table() -> str:
    """The stored figures as a table."""
    lines = [
        "| model | tokens | removed | batch | operations without tail | with | time without tail | with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in read_csv("tail"):
        shares = (f"{float(row[key]):.3f}" for key in ("operations_without", "operations", "time_without", "time"))
        lines.append("| " + " | ".join((row["model"], row["tokens"], row["removed"], row["batch"], *shares)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        fill({"tail": table})
        return 0
    torch.set_num_threads(1)
    rows = []
    for name, (model, windows) in models().items():
        for batch in (1, 32):
            rows += measure(name, model, windows(batch), 3 if given.quick else given.rounds)
            for row in rows[-len(_AMOUNTS) :]:
                print(row, flush=True)
    if not given.quick:
        write_csv("tail", rows)
        setting = {"cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        write_json("tail", {**setting, "zipbrain": zipbrain.__version__, "rounds": given.rounds})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
