"""LaBraM switch after switch: what each brings, and what it does to decisions on real windows."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.speed.gpu_bench import Bench, ratio
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import zipbrain
from zipbrain.pooling import ZIPBrain
from zipbrain.pooling.backends.triton import entry as triton_path

# half precision, fused attention, compiled, captured, pooling, kernels
STEPS = {
    "eager float32": (0, 0, 0, 0, 0, 0), "+ float16": (1, 0, 0, 0, 0, 0), "+ SDPA": (1, 1, 0, 0, 0, 0),
    "+ compile": (1, 1, 1, 0, 0, 0), "+ CUDA graph": (1, 1, 1, 1, 0, 0),
    "+ ZIPBrain, plain operators": (1, 1, 1, 1, 1, 0), "+ ZIPBrain, kernels": (1, 1, 1, 1, 1, 1),
    "the same without compile": (1, 1, 0, 1, 1, 1),
}  # fmt: skip


def tuab_labram(dry: bool) -> tuple[nn.Module, tuple[int, int]]:
    """LaBraM-base for windows of TUAB, weights random, and their shape; with few blocks in a dry run."""
    from zipbrain.data import convention
    from zipbrain.models import create

    how = convention("labram", "tuab")
    torch.manual_seed(0)
    model: Any = create("labram", n_outputs=1, n_times=how.n_times, ch_names=list(how.ch_names)).eval()
    if dry:
        model.blocks = model.blocks[:2]
    return model, (len(how.ch_names), how.n_times)


def as_step(bench: Bench, base: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    """A model with the switches of a step set; captured in no graph yet."""
    half, fused, compile_it, _, pooled, kernels = STEPS[name]
    dtype = torch.float16 if half else torch.float32
    model: Any = copy.deepcopy(base).to(bench.device, dtype).eval()
    if pooled:
        model = zipbrain.compress(model, ZIPBrain.from_paper("LaBraM", "TUAB"), ratio=0.8)
    if compile_it:
        torch.compiler.reset()
        model = torch.compile(model, fullgraph=True, backend="inductor" if bench.gpu else "eager")

    def call(x: Tensor) -> Tensor:
        was = triton_path.switch(bool(kernels))
        try:
            with nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
                result: Tensor = model(x.to(bench.device, dtype))
                return result
        finally:
            triton_path.switch(was)

    return call


def decide(call: Callable[[Tensor], Tensor], windows: Tensor, batch: int) -> Tensor:
    """Decisions on all windows; the last batch is filled up, so that all have the size that was compiled."""
    found = []
    for part in windows.split(batch):
        whole = torch.cat((part, part[-1:].expand(batch - len(part), *part.shape[1:])))
        logits = call(whole)[: len(part)].float().cpu()
        found.append(logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long())
    return torch.cat(found)


def time_waterfall(bench: Bench) -> None:
    """LaBraM on TUAB's windows, batch 32, switch after switch: what each brings."""
    batch = 32 if bench.gpu else 2
    base, size = tuab_labram(not bench.gpu)
    x = torch.randn(batch, *size, device=bench.device)
    calls = {}
    for name, switches in STEPS.items():
        given, call = x.half() if switches[0] else x, as_step(bench, base, name)
        calls[name] = bench.capture(lambda call=call, given=given: call(given), bool(switches[3]))  # type: ignore[misc]
    found = bench.interleaved(calls, lambda _: None)
    rows = []
    for name, times in found.items():
        against = ratio(times, found["eager float32"])
        rows.append({
            "step": name, "batch": batch, "ms": round(statistics.median(times) * 1e3, 4), "to_eager": round(against, 4)
        })  # fmt: skip
        print(f"   {name:30s} {rows[-1]['ms']:9.4f} ms {against:6.3f}", flush=True)
    bench.write("waterfall", rows)


def check_decisions(bench: Bench, folder: Path, file: Path, wanted: list[str]) -> None:
    """How a trained LaBraM decides on real windows with the switches of some steps (not captured in a graph)."""
    with np.load(file) as stored:
        windows, labels = torch.from_numpy(stored["x"]).float(), torch.from_numpy(stored["y"])
    trained = zipbrain.from_pretrained(folder)
    first: Tensor | None = None
    rows = []
    for name in (name for number, name in enumerate(STEPS) if number == 0 or name in wanted):
        found = decide(as_step(bench, trained, name), windows, 32)
        first = found if first is None else first
        right = [float((found[labels == one] == one).float().mean()) for one in labels.unique()]
        rows.append({
            "step": name, "windows": len(found), "same_decisions": round(float((found == first).float().mean()), 4),
            "balanced_accuracy": round(sum(right) / len(right), 4),
        })  # fmt: skip
        print("  ", rows[-1], flush=True)
        bench.write("decisions", rows[-1:])  # at once: the steps that compile take long
