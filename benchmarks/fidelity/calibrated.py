"""Does it help to learn on unlabelled windows which differences of tokens matter? Tried on the demo's LaBraM, kept out.

`python -m benchmarks.fidelity.calibrated` writes benchmarks/results/calibrated.csv and its table of the notes;
`--fill` takes the stored figures. 48 windows of 4 made-up people calibrate, 300 windows of 8 others are measured.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv
from torch import Tensor, nn

import zipbrain
from zipbrain import LocalMerging, PiToMe, ToMe, Twins, ZIPBrain
from zipbrain.metrics import decisions, logit_error
from zipbrain.pooling.flops import BlockShape, network_macs, pooling_macs
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.merges import Mean, MeanNorm, MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.twins import SAME
from zipbrain.pooling.steps import evenly_spread, highest, largest, partition
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_partner, cheapest_target
from zipbrain.pretrained import from_pretrained
from zipbrain.seams.dialects.base import Attended
from zipbrain.seams.observe import Observer, observe
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_of
from zipbrain.training.window_sources import new_people
from zipbrain.tuning.candidates import Anatomy

CALIBRATING, OF_FOUR, MEASURED, RANK, RIDGE = 48, 160, 300, 32, 1e-2


@dataclass(frozen=True)
class Projected(Method):
    """Twins' pairs, matching and merging in a projection of x, one for every block."""

    name = "projected"  # not registered: it has no JSON form
    title = "projected"

    maps: Sequence[Tensor] = field(default=(), repr=False, compare=False)  # (rank, D) for every block

    @property
    def mass(self) -> Mass:
        return Mass.of(True)

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        rank = len(self.maps[0])
        return n * (n + r) * rank + n * shape.dim * rank * (rank < shape.dim)

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Mean() if tokens.linear else MeanNorm()

    def __call__(self, tokens: Tokens) -> Grouping:
        x = tokens.unprotected(tokens.x.detach(), 1)
        rows = (x - x.mean(1, keepdim=True)) @ self.maps[tokens.layer - 1].T
        rows = rows / rows.square().sum(2).mean(1)[:, None, None].sqrt()
        assert tokens.mass is not None
        mass = tokens.unprotected(tokens.mass, 1)
        seniority = mass + evenly_spread(tokens.count, mass.device, mass.dtype)
        cost = cheapest_partner(rows, mass, seniority, SAME)
        redundant = highest(-cost, tokens.r, 1 / largest(cost))
        kept, source = partition(redundant, tokens.r, tokens.leading, tokens.trailing)
        places = source - tokens.leading
        target = cheapest_target(take(rows, places), mass.gather(1, places), rows, mass, redundant, SAME)
        return Grouping(kept, source, target + tokens.leading, tokens.total)


class Streams(Observer):
    """The residual stream of every block, with its gradient."""

    def __init__(self) -> None:
        self.x: dict[int, Tensor] = {}

    def attended(self, index: int, attended: Attended) -> None:
        self.x[index] = attended.x
        self.x[index].retain_grad()


def gradients(model: nn.Module, x: Tensor, leading: int) -> list[tuple[Tensor, Tensor]]:
    """Of every block: unprotected tokens (n, N, D), and the gradients of the logits there (n, N, K, D).

    Logits are centred over the classes and divided by their spread over the windows, as in `logit_error`.
    """
    model = zipbrain.compress(copy.deepcopy(model), "twins", r=0)
    with torch.no_grad():
        spread = centred(torch.cat([model(part) for part in x.split(16)])).std(0)
    found: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for part in x.split(16):
        streams, slopes = Streams(), []
        with observe(model, streams):
            y = centred(model(part)) / spread
        for k in range(y.shape[1]):
            slopes.append(torch.autograd.grad(y[:, k].sum(), list(streams.x.values()), retain_graph=True))
        for index, tokens in streams.x.items():
            slope = torch.stack([one[index] for one in slopes], dim=2)
            found.setdefault(index, []).append((tokens.detach()[:, leading:], slope[:, leading:]))
    return [(torch.cat([x for x, _ in parts]), torch.cat([g for _, g in parts])) for parts in found.values()]


def centred(y: Tensor) -> Tensor:
    """Logits (n, K) centred over the classes."""
    return y - y.mean(1, keepdim=True)


def by_gradient(x: Tensor, g: Tensor, rank: int) -> Tensor:
    """F: the covariance of the gradients, so that a squared distance is the expected squared change of the logits."""
    flat = g.reshape(-1, g.shape[-1]).double()
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    return (values[-rank:].clamp_min(0).sqrt()[:, None] * vectors[:, -rank:].T).float()


def by_curvature(x: Tensor, g: Tensor, rank: int) -> Tensor:
    """H: how gradients change with the tokens, by ridge regression; squared distances go like their product."""
    tokens = (x - x.mean(1, keepdim=True)).reshape(-1, x.shape[-1]).double()
    slopes = (g - g.mean(1, keepdim=True)).reshape(len(tokens), -1).double()
    square = tokens.T @ tokens
    square += RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    curvature = torch.linalg.solve(square, tokens.T @ slopes)  # (D, K D)
    values, vectors = torch.linalg.eigh(curvature @ curvature.T)
    return (values[-rank:].clamp_min(0) ** 0.25)[:, None].float() * vectors[:, -rank:].T.float()


def methods(model: nn.Module, x: Tensor) -> dict[str, Method]:
    """What is compared, by title; all with mass."""
    blocks = gradients(model, x, 1)
    dim = blocks[0][0].shape[-1]
    found: dict[str, Method] = {"Twins": Twins(), "x alone, as it is": Projected([torch.eye(dim)] * len(blocks))}
    for name, learn in (("F", by_gradient), ("H", by_curvature)):
        for rank in (RANK, dim):
            found[f"{name}, rank {rank}"] = Projected([learn(x, g, rank) for x, g in blocks])
    rivals = {"ToMe": ToMe(), "PiToMe": PiToMe(), "local merging, k = 1": LocalMerging()}
    return found | rivals | {"local merging, k = 4": LocalMerging(4), "ZIPBrain": ZIPBrain()}


def run() -> list[dict[str, object]]:
    """Error, agreement and operations of every method on three schedules."""
    model = from_pretrained(DEMO)
    windows = new_people("synthetic-events", "LaBraM", 12)
    values = scale(windows.take(slice(None)), scaling_of("LaBraM", windows))
    x = torch.from_numpy(np.asarray(values, dtype=np.float32))
    chosen = methods(model, x[:OF_FOUR:3][:CALIBRATING])
    x = x[OF_FOUR : OF_FOUR + MEASURED]
    anatomy = Anatomy.of(model, x[:1])
    schedules = {
        "8 in every block": [8] * 12,
        "23 in every third block": [23, 0, 0] * 4,
        "60, 15, 17 in blocks 2, 6, 8": [0, 60, 0, 0, 0, 15, 0, 17, 0, 0, 0, 0],
    }
    whole = network_macs(anatomy.shape, anatomy.tokens, [0] * 12, anatomy.protected)
    before, rows = logits(model, x), []
    for title, removed in schedules.items():
        for name, method in chosen.items():
            after = logits(zipbrain.compress(copy.deepcopy(model), method, mass=True, r=removed), x)
            about = anatomy.shape, anatomy.tokens, removed, anatomy.protected
            made = network_macs(*about) + pooling_macs(*about, method)
            rows.append({
                "schedule": title, "method": name, "operations": round(made / whole, 4),
                "error": round(logit_error(after, before), 4),
                "agreement": round(float((decisions(after) == decisions(before)).mean()), 4),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def logits(model: nn.Module, x: Tensor) -> np.ndarray:
    """Answers to windows (n, C, T)."""
    with torch.inference_mode():
        return np.concatenate([model(part).numpy() for part in x.split(32)])


def table() -> str:
    """A line for every method: operations / error / agreement on every schedule."""
    rows = read_csv("calibrated")
    titles = list(dict.fromkeys(row["schedule"] for row in rows))
    lines = ["| all with mass | " + " | ".join(titles) + " |", "|" + "---|" * (len(titles) + 1)]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        cells = [f"{float(row['operations']):.2f} / {row['error']} / {float(row['agreement']):.3f}" for row in own]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    if not parser.parse_args().fill:
        write_csv("calibrated", run())
    fill({"calibrated": table})


if __name__ == "__main__":
    main()
