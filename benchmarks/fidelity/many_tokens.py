"""Many tokens: an encoder of 1,200 tokens, trained on made-up nights, tuned to keep 99 % of its decisions.

    python -m benchmarks.fidelity.many_tokens train OUT       # minutes on two free cores
    python -m benchmarks.fidelity.many_tokens tune OUT        # once for PyTorch, once for ONNX Runtime
    python -m benchmarks.fidelity.many_tokens measure OUT     # test people, once: benchmarks/results/many_tokens.csv

With `--people` a step takes fewer of them, to see that it runs, and stores no CSV.
"""

from __future__ import annotations

import argparse
import copy
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.shared.results import write_csv
from torch import Tensor, nn

import zipbrain
from zipbrain import metrics
from zipbrain.binomial import share_bounds
from zipbrain.cores import available_cores
from zipbrain.data.synthetic import Synthetic
from zipbrain.data.windows import Windows
from zipbrain.edge.runtimes import find_runtime
from zipbrain.evaluation.second_look import count_looks
from zipbrain.export.shipped_graph import graphs
from zipbrain.models import TokenEncoder
from zipbrain.profiling import interleaved
from zipbrain.tuning.tuned import RECIPE

DIM, DEPTH, HEADS, CHANNELS, SAMPLES, PATCHES = 64, 6, 4, 6, 6000, 200
TRAINED_PEOPLE, TUNED_PEOPLE, TESTED_PEOPLE, OF_EACH = 20, 40, 20, 30
RUNTIMES = {"torch": 1, "ort": 32}  # and the windows of a call
AGREE = 0.99
SEEDS = {"train": 31, "tune": 32, "test": 33}


class PatchEncoder(nn.Module):
    """Half-second patches of every channel, a new one each 0.15 s, through an encoder of 1,200 tokens."""

    def __init__(self, outputs: int = 5) -> None:
        super().__init__()
        self.fine = nn.Conv1d(1, DIM // 2, 40, stride=10, padding=15)
        self.patch = nn.Conv1d(DIM // 2, DIM, 9, stride=3, padding=3)
        self.channel = nn.Parameter(0.02 * torch.randn(1, CHANNELS, 1, DIM))
        self.moment = nn.Parameter(0.02 * torch.randn(1, 1, PATCHES, DIM))
        self.encoder = TokenEncoder(DIM, DEPTH, HEADS, outputs=outputs)

    def tokens(self, x: Tensor) -> Tensor:
        """Windows (B, 6, 6000) -> tokens (B, 1200, D)"""
        rows = self.patch(F.gelu(self.fine(x.reshape(-1, 1, SAMPLES)))).transpose(1, 2)
        rows = rows.reshape(-1, CHANNELS, PATCHES, DIM) + self.channel + self.moment
        return rows.reshape(-1, CHANNELS * PATCHES, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Windows (B, 6, 6000) -> logits (B, 5)"""
        logits: Tensor = self.encoder(self.tokens(x))
        return logits


def people(purpose: str, count: int) -> Windows:
    """Windows of made-up people whom no other purpose has."""
    made = Synthetic("sleep", n_subjects=max(3, -(-count * 5 // 3)), windows_per_subject=OF_EACH, seed=SEEDS[purpose])
    windows = made.split("train")
    return windows.select(np.flatnonzero(np.isin(windows.subjects, np.unique(windows.subjects)[:count])))


def read(windows: Windows) -> np.ndarray:
    """Windows as the network takes them: 30 microvolts are one, rails are cut."""
    return np.clip(windows.take(slice(None)) / 30, -10, 10).astype(np.float32)


def train(out: Path, count: int, epochs: int, kept: int) -> None:
    """Train on other tokens of every window each time, a few hundred of them; writes encoder.pt."""
    torch.manual_seed(0)
    windows = people("train", count)
    held = np.isin(windows.subjects, np.unique(windows.subjects)[: max(1, count // 8)])
    x, y = torch.from_numpy(read(windows)), torch.from_numpy(windows.labels)
    model, rows = PatchEncoder(), np.flatnonzero(~held)
    steps = epochs * -(-len(rows) // 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.2)
    draw = np.random.default_rng(0)
    for epoch in range(epochs):
        model.train()
        began, losses = time.perf_counter(), []
        for part in np.array_split(draw.permutation(rows), -(-len(rows) // 16)):
            tokens = model.tokens(x[part])
            tokens = tokens[:, torch.from_numpy(np.sort(draw.permutation(tokens.shape[1])[:kept]))]
            loss = F.cross_entropy(model.encoder(tokens), y[part], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            losses.append(float(loss.detach()))
        model.eval()
        took = time.perf_counter() - began
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {took:.0f} s", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), out / "encoder.pt")
    model.eval()
    score = metrics.score(run(model, x[held]), y[held].numpy(), "kappa")
    print(f"kappa of {int(held.sum())} windows of other people {score:.3f}")


def load(out: Path) -> PatchEncoder:
    """The trained network."""
    model = PatchEncoder().eval()
    model.load_state_dict(torch.load(out / "encoder.pt", weights_only=True))
    return model


def run(model: nn.Module, x: Tensor) -> np.ndarray:
    """Logits, eight windows at a time."""
    with torch.inference_mode():
        return np.concatenate([model(part).numpy() for part in x.split(8)])


def tune(out: Path, runtime: str, count: int) -> None:
    """Tune for one runtime; the recipe lies in OUT/tuned-RUNTIME."""
    windows, folder = people("tune", count), out / f"tuned-{runtime}"
    options = {"groups": windows.subjects, "runtime": runtime, "batch": RUNTIMES[runtime], "out": folder}
    tuned = zipbrain.tune(load(out), read(windows), agree=AGREE, methods=("twins", "ward_pairs", "tome"), **options)
    print(tuned)
    tuned.save(folder)


def measure(out: Path, count: int) -> list[dict[str, Any]]:
    """Decisions, operations and times of every recipe on people whom nothing was chosen on."""
    windows = people("test", count)
    x, rows = read(windows), []
    model = load(out)
    before = run(model, torch.from_numpy(x))
    for runtime, batch in RUNTIMES.items():
        recipe = zipbrain.Recipe.load(out / f"tuned-{runtime}" / RECIPE)
        network = zipbrain.compress(copy.deepcopy(model), recipe)
        with count_looks(network) as looks:
            after = run(network, torch.from_numpy(x))
        flips = int((metrics.decisions(after) != metrics.decisions(before)).sum())
        promise = recipe.promise or {}
        row = {
            "runtime": runtime,
            "batch": batch,
            "tokens": CHANNELS * PATCHES,
            "windows": len(x),
            "people": count,
            "kappa_before": round(metrics.score(before, windows.labels, "kappa"), 4),
            "kappa_after": round(metrics.score(after, windows.labels, "kappa"), 4),
            "promised": promise.get("agree"),
            "flips": flips,
            "agreement": round(1 - flips / len(x), 4),
            "agreement_upper": round(1 - share_bounds(flips, len(x))[0], 4),
            "looked_twice": round(looks.second_look_share, 4),
            "method": recipe.method["name"],
            "schedule": str(recipe.schedule["r"]),
            "time": round(_time(runtime, model, network, x[: max(32, batch)], batch), 4),
        }
        print(row)
        rows.append(row)
    return rows


def _time(runtime: str, model: nn.Module, network: nn.Module, x: np.ndarray, batch: int) -> float:
    """Time of the tuned network relative to the original's, on the same windows, second looks included."""
    parts = [x[start : start + batch] for start in range(0, len(x), batch)]
    calls: dict[str, Any] = {}
    for name, one in (("original", model), ("tuned", network)):
        if runtime == "torch":
            calls[name] = partial(_run_all, partial(_in_torch, one), parts)
        else:
            file = graphs(one, x.shape[1:])[0].SerializeToString()
            calls[name] = partial(
                _run_all, find_runtime("onnxruntime")(file, name, threads=available_cores()).run, parts
            )
    timed = interleaved(calls, rounds=5, warmup=1, budget=90.0)
    return timed["tuned"].ratio(timed["original"])


def _in_torch(model: nn.Module, x: np.ndarray) -> None:
    with torch.inference_mode():
        model(torch.from_numpy(x))


def _run_all(call: Any, parts: list[np.ndarray]) -> None:
    for part in parts:
        call(part)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "tune", "measure"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--people", type=int, help="made-up people of this step")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=300, help="of a window in a training step")
    given = parser.parse_args()
    if given.step == "train":
        train(given.out, given.people or TRAINED_PEOPLE, given.epochs, given.tokens)
    elif given.step == "tune":
        for runtime in RUNTIMES:
            tune(given.out, runtime, given.people or TUNED_PEOPLE)
    else:
        rows = measure(given.out, given.people or TESTED_PEOPLE)
        if given.people is None:
            write_csv("many_tokens", rows)


if __name__ == "__main__":
    main()
