"""What half precision on a CPU does to a compressed network: are other tokens chosen, and why?

    python -m benchmarks.fidelity.half_precision run [--windows N]  # minutes on a CPU
    python -m benchmarks.fidelity.half_precision page  # the stored rows into docs/explanation/method.md

The demo's LaBraM and one with random weights, in bfloat16 and float16 against float32. Pooling decides in float32
whatever the model's precision, so on the same rounded tokens it must choose the same ones ("same groups on the same
tokens"). The tokens themselves are rounded by all layers before: "kept alike" says how many of the original tokens that
are left after the first and after the last block are left in the float32 network too.

Writes benchmarks/results/half_precision.csv.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv
from torch import Tensor, nn

import zipbrain
from zipbrain.data import Synthetic
from zipbrain.metrics import agreement, logit_error
from zipbrain.models import LaBraM
from zipbrain.pooling import Grouping, compose, pool
from zipbrain.seams.observe import Observer, observe

METHODS = {"none": None, "ZIPBrain": zipbrain.ZIPBrain(), "ToMe": zipbrain.ToMe(), "Twins": zipbrain.Twins()}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
RATIO = 0.8


class Again(Observer):
    """Pools the tokens of every block once more, in float32."""

    def __init__(self, method: Any) -> None:
        self.method, self.same, self.groups = method, list[bool](), list[Grouping]()

    def grouped(self, index: int, tokens: Any, pooled: Any) -> None:
        whole, found = tokens.joined(), pooled.grouping
        rest = {"mass": tokens.mass, "layer": tokens.layer, "depth": tokens.depth, "scale": tokens.scale}
        wide, ends = [getattr(whole, name).float() for name in "xqkv"], (tokens.leading, tokens.trailing)
        again = pool(*wide, r=tokens.r, method=self.method, protected=ends, **rest).grouping
        self.same += ((again.kept == found.kept).all(1) & (again.target == found.target).all(1)).tolist()
        self.groups.append(found)


def answer(model: nn.Module, x: Tensor, method: Any) -> tuple[Any, Again]:
    """Logits of a model with the method, and what was seen on the way."""
    seen = Again(method)
    with torch.no_grad():
        if method is None:
            return model(x).float().numpy(), seen
        zipbrain.compress(model, method, ratio=RATIO)
        with observe(model, seen):
            logits = model(x).float().numpy()
        zipbrain.restore(model)
    return logits, seen


def alike(one: list[Grouping], other: list[Grouping]) -> float:
    """Share of the original tokens left by the groups of some blocks that others leave too."""
    left, theirs = compose(one).kept, compose(other).kept
    return float((left.unsqueeze(2) == theirs.unsqueeze(1)).any(2).double().mean())


def measure(count: int) -> list[dict[str, Any]]:
    """One row for every network, precision and method."""
    windows = Synthetic("events").split("test")
    some = np.linspace(0, len(windows) - 1, count).astype(np.int64)
    trained = zipbrain.from_pretrained(DEMO).eval()
    torch.manual_seed(0)
    random = LaBraM(6, windows.ch_names, 1000).eval()
    x = torch.from_numpy(np.asarray(windows.select(some).take(slice(None)))).float() / 100  # in 0.1 mV
    rows = []
    for name, model in {"LaBraM, trained": trained, "LaBraM, random weights": random}.items():
        for precision, dtype in DTYPES.items():
            half = copy.deepcopy(model).to(dtype)
            for label, method in METHODS.items():
                expected, wide = answer(model, x, method)
                found, seen = answer(half, x.to(dtype), method)
                shares = (
                    [f"{alike(seen.groups[:end], wide.groups[:end]):.3f}" for end in (1, 12)] if method else ["", ""]
                )
                rows.append({
                    "network": name, "precision": precision, "method": label, "windows": count,
                    "logit error": f"{logit_error(found, expected):.5f}",
                    "same decisions": f"{agreement(found, expected):.3f}",
                    "same groups on the same tokens": f"{np.mean(seen.same):.4f}" if seen.same else "",
                    "kept alike, first block": shares[0], "kept alike, last block": shares[-1],
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def table() -> str:
    """All rows, as they are stored."""
    rows = read_csv("half_precision")
    columns = [name for name in rows[0] if name != "windows"]
    lines = [columns, ["---"] * len(columns), *([row[name] for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure and store, or show what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("--windows", type=int, default=60)
    verbs.add_parser("page")
    given = parser.parse_args()
    if given.verb == "page":
        fill({"half precision": table})
    else:
        write_csv("half_precision", measure(given.windows))


if __name__ == "__main__":
    main()
