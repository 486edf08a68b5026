"""What our training loop costs over a plain PyTorch loop: same model, same windows, same optimiser, same precision.

    python -m benchmarks.training.steps                # both models on this machine's GPU, or its CPU
    python -m benchmarks.training.steps --quick        # a few steps, to see that it runs
    python -m benchmarks.training.steps --device cpu --model biot --windows 512

Candidates take turns, one epoch each, and a ratio is the median over rounds of times taken right after each other. The
plain loop indexes shuffled, scaled tensors that lie on the device and never waits for it: nothing simpler trains the
same model. The usual loop over a DataLoader is timed too. Ours draws its order, sets rates, looks for NaN, keeps the
best weights and resumes. Writes CSV and JSON into benchmarks/results, unless --quick is given.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import platform
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import write_csv, write_json
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zipbrain import __version__
from zipbrain.data.windows import Windows
from zipbrain.profiling import interleaved
from zipbrain.training import Feed, TrainingSettings, scratch_settings
from zipbrain.training.checkpoints import keep_weights
from zipbrain.training.finetune import classification_loss
from zipbrain.training.inference import autocast
from zipbrain.training.loader import pick_device, scaling_of
from zipbrain.training.loop import TrainingRun
from zipbrain.training.model_setup import build_model
from zipbrain.training.param_groups import make_optimizer

_CHANNELS = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6"  # EEGMAT's 16, which all models know


def noise(count: int, seconds: int) -> Windows:
    """Random windows of two classes."""
    x = np.random.default_rng(0).normal(0, 20, (count, 16, 200 * seconds)).astype(np.float32)
    return Windows.from_arrays(x, np.arange(count) % 2, ch_names=_CHANNELS.split(), sfreq=200, classes=["0", "1"])


def plain_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, settings: TrainingSettings, device: torch.device,
    batches: Callable[[], Iterable[Any]],
) -> Callable[[], object]:  # fmt: skip
    """One epoch of plain PyTorch."""
    loss_of = classification_loss(settings, 2)

    def run() -> None:
        model.train()
        for x, y in batches():
            optimizer.zero_grad(set_to_none=True)
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with autocast(device, settings.amp):
                loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()

    return run


def candidates(name: str, windows: Windows, batch: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """The plain loop, the usual one and ours, each with a model of its own."""
    settings = scratch_settings(name).override(epochs=1, batch_size=batch, grad_clip=None, warmup_epochs=0)
    torch.manual_seed(0)
    model = build_model(settings, windows).to(device)
    feed = Feed(windows, scaling_of(name, windows), device, "device")
    assert feed.stored is not None
    stored, labels = feed.stored, feed.labels

    def on_device() -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(stored), device=device)
        return ((stored[part], labels[part]) for part in order.split(batch) if len(part) == batch)

    dataset = TensorDataset(stored.cpu(), labels.cpu())
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, pin_memory=device.type == "cuda")
    found: dict[str, Callable[[], object]] = {}
    for label, batches in (("plain loop", on_device), ("DataLoader loop", lambda: loader)):
        twin = copy.deepcopy(model)
        found[label] = plain_epoch(twin, make_optimizer(twin, settings), settings, device, batches)
    run = TrainingRun(model, feed, settings.override(epochs=10_000), classification_loss(settings, 2), None)
    epochs, best = itertools.count(), keep_weights(model)

    def ours() -> object:
        run.epoch(next(epochs), None)
        return keep_weights(model, best)  # as train does after its best epochs

    found["zipbrain"] = ours
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["labram", "biot"])
    parser.add_argument("--windows", type=int, help="4096 on a GPU, 256 on a CPU")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--batch", type=int, help="256 on a GPU, 32 on a CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    device = pick_device(given.device)
    gpu = device.type == "cuda"
    count, batch = given.windows or (4096 if gpu else 256), given.batch or (256 if gpu else 32)
    rounds, warmup = (2, 1) if given.quick else (given.rounds, 2)
    if given.quick:
        count = 2 * batch
    rows = []
    for name in given.model:
        timings = interleaved(
            candidates(name, noise(count, given.seconds), batch, device), rounds=rounds, warmup=warmup
        )
        for label, timing in timings.items():
            ratio = timing.ratio(timings["plain loop"])
            row = {"model": name, "loop": label, "windows": count, "batch": batch, "rounds": rounds}
            speed = {"seconds_per_epoch": round(timing.median, 4), "windows_per_second": round(count / timing.median)}
            rows.append(row | speed | {"to_plain": round(ratio, 4)})
            print(f"{name:8s} {label:16s} {timing.median:9.4f} s/epoch   {ratio:6.3f} x plain", flush=True)
    if given.quick:
        return 0
    stem = "training" if gpu else "training_cpu"
    write_csv(stem, rows)
    setting = {
        "device": torch.cuda.get_device_name(device) if gpu else platform.machine(), "torch": torch.__version__,
        "zipbrain": __version__, "threads": torch.get_num_threads(), "command": " ".join(sys.argv),
    }  # fmt: skip
    write_json(stem, {"setting": setting, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
