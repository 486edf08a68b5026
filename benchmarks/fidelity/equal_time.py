"""Which grouping keeps most answers at equal time? Cheaper relatives of Twins and a learnt metric, in ONNX Runtime.

`python -m benchmarks.fidelity.equal_time` writes benchmarks/results/equal_time.csv and its table of the notes;
`--fill` takes the stored figures. The demo's LaBraM; F, the covariance of the logits' gradients, is learnt on 48
windows of 4 made-up people, logits are compared on 200 windows of others.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from benchmarks.fidelity.calibrated import CALIBRATING, OF_FOUR, Projected, by_gradient, gradients, logits
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv
from torch import Tensor, nn

import zipbrain
from zipbrain import ToMe, Twins, WardPairs, ZIPBrain
from zipbrain.cores import available_cores
from zipbrain.metrics import decisions, logit_error
from zipbrain.pooling.flops import BlockShape, network_macs, pooling_macs
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import Mean, MeanNorm, MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.twins import SAME, side_by_side
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import best_column, evenly_spread, highest, largest, partition
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import squared_distances
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling import interleaved
from zipbrain.profiling.runners import Candidate as Network
from zipbrain.profiling.runners import find_runner
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_of
from zipbrain.training.window_sources import new_people
from zipbrain.tuning.candidates import Anatomy, usual_schedules

MEASURED, BATCHES, SHARES = 200, (32, 1), (0.6,)
SCHEDULES = ("every third block", "early")


@dataclass(frozen=True)
class Halves(Method):
    """`WardPairs` in other spaces."""

    name = "halves"  # not registered: it has no JSON form
    title = "halves"

    maps: Sequence[Tensor] = field(default=(), repr=False, compare=False)  # (rank, D) for every block; empty: x itself
    everything: bool = False  # compare x, q, k and v side by side, as Twins does

    @property
    def reads(self) -> frozenset[str]:
        return frozenset("qkv") if self.everything else frozenset()

    @property
    def mass(self) -> Mass:
        return Mass.of(True)

    def limit(self, n: int) -> int:
        return n // 2

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        width = shape.dim + 3 * shape.space_width("q") * self.everything
        if self.maps and len(self.maps[0]) < width:
            return (n // 2) * (n - n // 2) * len(self.maps[0]) + n * width * len(self.maps[0])
        return (n // 2) * (n - n // 2) * width

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Mean() if tokens.linear else MeanNorm()

    def __call__(self, tokens: Tokens) -> Grouping:
        n, r = tokens.count, min(tokens.r, self.limit(tokens.count))
        if self.everything:
            rows = side_by_side(Spaces(tokens))
        else:
            x = tokens.unprotected(tokens.x.detach(), 1)
            rows = x - x.mean(1, keepdim=True)
            if self.maps:
                rows = rows @ self.maps[tokens.layer - 1].T
            rows = rows * rows.square().sum(2).mean(1)[:, None, None].rsqrt()
        order = evenly_spread(n, rows.device, rows.dtype).argsort()
        some, others = order[: n // 2].sort().values, order[n // 2 :].sort().values
        assert tokens.mass is not None
        mass = tokens.unprotected(tokens.mass, 1)
        m, mass = mass[:, some], mass[:, others]
        cost = squared_distances(rows[:, some], rows[:, others]).clamp_min(SAME)
        cost = cost / (m.reciprocal().unsqueeze(2) + mass.reciprocal().unsqueeze(1))
        place, best = best_column(-cost, None)
        chosen = highest(best, r, 1 / largest(-best))
        redundant = torch.zeros_like(rows[:, :, 0], dtype=torch.bool)
        redundant = redundant.scatter(1, some.expand(len(rows), -1), chosen)
        kept, source = partition(redundant, r, tokens.leading, tokens.trailing)
        target = torch.zeros_like(redundant, dtype=torch.int64).scatter(1, some.expand(len(rows), -1), others[place])
        return Grouping(kept, source, target.gather(1, source - tokens.leading) + tokens.leading, tokens.total)


def methods(model: nn.Module, x: Tensor, leading: int) -> dict[str, Method]:
    """What is compared, by title; all with mass."""
    blocks = gradients(model, x, leading)
    dim = blocks[0][0].shape[-1]
    full = [by_gradient(x, g, dim) for x, g in blocks]
    return {
        "Twins": Twins(),
        "Twins in x alone": Projected([torch.eye(dim)] * len(blocks)),
        "Twins in F": Projected(full),
        "Ward pairs": WardPairs(),
        "Ward pairs in x, q, k, v": Halves(everything=True),
        "Ward pairs in F": Halves(full),
        "ToMe": ToMe(),
        "ZIPBrain": ZIPBrain(),
    }


def run(only: Sequence[str] = ()) -> list[dict[str, object]]:
    """Error, agreement, operations and times of every method on a few schedules."""
    name, model = "LaBraM", from_pretrained(DEMO)
    windows = new_people("synthetic-events", name, 12)
    x = torch.from_numpy(np.asarray(scale(windows.take(slice(None)), scaling_of(name, windows)), dtype=np.float32))
    anatomy = Anatomy.of(model, x[:1])
    chosen = methods(model, x[:OF_FOUR:3][:CALIBRATING], anatomy.ends[0])
    x = x[OF_FOUR : OF_FOUR + MEASURED]
    before, rows = logits(model, x), []
    runner, shape, threads = find_runner("ort"), (x.shape[1], x.shape[2]), available_cores()
    inputs = {batch: x[:batch].numpy() for batch in BATCHES}

    def opened(network: nn.Module) -> dict[int, Callable[[], object]]:
        made = Network(name, network, shape, inputs[BATCHES[0]])
        return {batch: runner.open(made, inputs[batch], threads) for batch in BATCHES}

    original = opened(model) if BATCHES else {}
    for title, method in ((title, chosen[title]) for title in only or chosen):
        for schedule, removed in usual_schedules(anatomy, method, SHARES).items():
            if not schedule.startswith(SCHEDULES):
                continue
            network = zipbrain.compress(copy.deepcopy(model), method, mass=True, r=list(removed))
            after = logits(network, x)
            made = network_operations(anatomy, removed, method)
            row: dict[str, object] = {
                "method": title,
                "schedule": schedule,
                "removed": " ".join(map(str, removed)),
                "operations": round(made, 4),
                "error": round(logit_error(after, before), 5),
                "agreement": round(float((decisions(after) == decisions(before)).mean()), 4),
            }
            calls = opened(network) if BATCHES else {}
            for batch in BATCHES:
                timed = interleaved({"original": original[batch], "made": calls[batch]}, rounds=9, budget=6.0)
                row[f"time_{batch}"] = round(timed["made"].ratio(timed["original"]), 4)
            rows.append(row)
            print(row, flush=True)
    return rows


def network_operations(anatomy: Anatomy, removed: Sequence[int], method: Method) -> float:
    """Multiply-adds of blocks and pooling, relative to the original's."""
    about = anatomy.shape, anatomy.tokens, removed, anatomy.protected
    whole = network_macs(anatomy.shape, anatomy.tokens, [0] * anatomy.depth, anatomy.protected)
    return (network_macs(*about) + pooling_macs(*about, method)) / whole


def table() -> str:
    """Lines for every schedule: operations, times where they were measured, logit error and same decisions."""
    rows = read_csv("equal_time")
    timed = [batch for batch in BATCHES if rows[0][f"time_{batch}"]]
    names = ["operations", *(f"time, batch {batch}" for batch in timed), "logit error", "same decisions"]
    lines = []
    for schedule in dict.fromkeys(row["schedule"] for row in rows):
        lines += [f"| {schedule} | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
        for row in (row for row in rows if row["schedule"] == schedule):
            cells = [f"{float(row['operations']):.3f}", *(f"{float(row[f'time_{batch}']):.2f}" for batch in timed)]
            cells += [f"{float(row['error']):.4f}", f"{float(row['agreement']):.3f}"]
            lines.append(f"| {row['method']} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    """Measure and fill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    if not parser.parse_args().fill:
        write_csv("equal_time", run())
    fill({"equal_time": table})


if __name__ == "__main__":
    main()
