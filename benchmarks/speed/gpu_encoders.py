"""Whole encoders with every method, captured and not, and their training steps."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.speed.gpu_bench import (
    AS_IT_IS,
    DTYPES,
    INPUTS,
    MANY,
    ORIGINAL,
    ORIGINAL_BARS,
    PLAIN,
    RIVAL_BAR,
    SLICE_BARS,
    SLICING,
    TRAINED,
    WITH_TWINS,
    Bench,
    Shape,
    candidates,
    compressed,
    original,
    ratio,
)
from torch import Tensor, nn

from zipbrain.pooling import Method, Twins, ZIPBrain
from zipbrain.pooling.backends.triton import entry as triton_path
from zipbrain.profiling import quantile
from zipbrain.training import capture

LAUNCHED, CAPTURED = "launched from Python", "captured"  # steps of training


def calls_of(
    bench: Bench, shape: Shape, base: nn.Module, r: int, x: Tensor, graph: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every candidate as a call on the tokens in x, captured or not."""
    methods = candidates(shape)
    if graph and x.dtype != torch.float32 and shape.dim // shape.heads % 8:
        methods[AS_IT_IS] = None
    for name, method in methods.items():
        model = original(base, shape) if graph and name == ORIGINAL else compressed(base, shape, method, r)
        before = triton_path.switch("plain" not in name)

        def eager(model: nn.Module = model, on: bool = "plain" not in name) -> Tensor:
            was = triton_path.switch(on)
            try:
                result: Tensor = model(x)
                return result
            finally:
                triton_path.switch(was)

        try:
            yield name, bench.capture(eager, graph)
        except torch.cuda.OutOfMemoryError:
            print(f"   {name}: out of memory", flush=True)
        finally:
            triton_path.switch(before)


def time_encoders(bench: Bench, shapes: list[Shape], batches: list[int], dtypes: list[str]) -> None:
    """T_method / T_slice and T_method / T_original under CUDA graphs; eager float32 at batch 32 beside it."""
    for shape in shapes:
        for dtype in dtypes:
            base = shape.build().to(bench.device, DTYPES[dtype])
            for batch in (b for b in shape.batches if b in batches):
                for r in shape.removals:
                    block(bench, shape, base, batch, dtype, r, graph=True)
                    if shape.name == "LaBraM" and dtype == "float32" and batch == 32 and r == shape.removals[0]:
                        block(bench, shape, base, batch, dtype, r, graph=False)


def block(bench: Bench, shape: Shape, base: nn.Module, batch: int, dtype: str, r: int, graph: bool) -> None:
    """One interleaved run of all candidates."""
    long = shape.tokens > MANY
    inputs = [shape.draw(batch, bench.device, DTYPES[dtype]) for _ in range(2 if long else INPUTS)]
    x = inputs[0].clone()
    calls = dict(calls_of(bench, shape, base, r, x, graph))
    rounds = max(3, bench.rounds // 5) if long else bench.rounds
    found = bench.interleaved(calls, lambda number: x.copy_(inputs[number % len(inputs)]), rounds)
    mode = "graph" if graph else "eager"
    label = f"{shape.name} r={r} batch {batch} {dtype} {mode}"
    print(label, flush=True)
    rows = []
    for name, times in found.items():
        to_slicing, to_original = ratio(times, found[SLICING]), ratio(times, found[ORIGINAL])
        own = {
            "shape": shape.name, "tokens": shape.tokens, "r": r, "batch": batch, "dtype": dtype, "mode": mode,
            "method": name, "ms": round(statistics.median(times) * 1e3, 5),
            "ms_p95": round(quantile(times, 0.95) * 1e3, 5),
            "to_slicing": round(to_slicing, 4), "to_original": round(to_original, 4),
            "rounds": len(times),
        }  # fmt: skip
        rows.append(own)
        print(f"   {name:40s} {own['ms']:9.4f} ms  / slicing {to_slicing:6.3f}  / original {to_original:6.3f}")
    bench.write("encoders", rows)
    judge(bench, shape, batch, dtype, r, graph, label, found)
    del calls
    if bench.gpu:
        torch.cuda.empty_cache()


def judge(
    bench: Bench, shape: Shape, batch: int, dtype: str, r: int, graph: bool, label: str, found: dict[str, list[float]]
) -> None:
    """Hold a block against the bars."""
    ours = [name for name in found if name.startswith("ZIPBrain") and name != PLAIN]
    rivals = [name for name in ("ToMe", "ToFu", "EViT", "DART") if name in found]
    for name in ours:
        against = ratio(found[name], found[ORIGINAL])
        if not graph:
            bench.bar(f"{label}: {name} / original", against, 1.0)
            continue
        if shape.name in ("LaBraM", "BIOT") and batch in SLICE_BARS:
            bench.bar(f"{label}: {name} / slicing", ratio(found[name], found[SLICING]), SLICE_BARS[batch])
            quickest = min(rivals, key=lambda rival: statistics.median(found[rival]))
            bench.bar(
                f"{label}: {name} / {quickest}, the fastest rival", ratio(found[name], found[quickest]), RIVAL_BAR
            )
        bar = ORIGINAL_BARS.get((batch, dtype == "float32"))
        if shape.name == "LaBraM" and r == shape.removals[0] and bar is not None:
            bench.bar(f"{label}: {name} / original", against, bar)


def compile_kernels(shapes: list[Shape], dtypes: list[str]) -> None:
    """Run every setting of every shape once, so that the kernels lie in Triton's cache (for several processes)."""
    for shape in shapes:
        for dtype in dtypes:
            base = shape.build().to("cuda", DTYPES[dtype])
            twins: list[Method] = [Twins()] if shape.name in WITH_TWINS else []
            for method in [*(ZIPBrain(*setting) for setting in shape.settings), *twins]:
                for r in shape.removals:
                    model = compressed(base, shape, method, r)
                    for batch in (1, 8):  # few windows and many have other kernels
                        model(shape.draw(batch, "cuda", DTYPES[dtype]))


def time_training(bench: Bench, shapes: list[Shape], batch: int) -> None:
    """One training step, forward and backward, compressed and not: launched from Python, and captured in graphs."""
    for shape in shapes:
        base = shape.build().to(bench.device).train()
        x = shape.draw(batch, bench.device, torch.float32)
        methods = {
            name: method for name, method in candidates(shape).items()
            if name.split()[0] in TRAINED and name != PLAIN
        }  # fmt: skip
        models = {name: compressed(base, shape, method, shape.removals[0]) for name, method in methods.items()}
        for half in (False, True):
            for how in (LAUNCHED, CAPTURED):
                time_steps(bench, shape, models, x, half, how)


def time_steps(bench: Bench, shape: Shape, models: dict[str, nn.Module], x: Tensor, half: bool, how: str) -> None:
    """One interleaved run of all steps."""

    def step(model: nn.Module, network: nn.Module) -> None:
        with torch.autocast(bench.device, torch.bfloat16, enabled=half), torch.enable_grad():
            loss = network(x).float().square().mean()
        loss.backward()
        model.zero_grad(set_to_none=True)

    calls: dict[str, Callable[[], Any]] = {}
    for name, model in models.items():
        network = capture(model, x, "bf16" if half else "no") if how == CAPTURED and bench.gpu else model
        calls[name] = lambda model=model, network=network: step(model, network)
    found = bench.interleaved(calls, lambda _: None)
    precision = "bfloat16 autocast" if half else "float32"
    rows = []
    for name, times in found.items():
        against = ratio(times, found[ORIGINAL])
        rows.append({
            "shape": shape.name, "batch": len(x), "precision": precision, "how": how, "method": name,
            "ms": round(statistics.median(times) * 1e3, 4), "to_original": round(against, 4),
        })  # fmt: skip
        print(f"   training {shape.name} {precision:18s} {how:20s} {name:24s} {rows[-1]['ms']:9.3f} ms {against:6.3f}")
        if name.startswith("ZIPBrain"):
            what = f"training step {shape.name} batch {len(x)} {precision}, {how}: {name} / original"
            bench.bar(what, against, 1.0)
    bench.write("training", rows)
    del calls, network
    gc.collect()  # the graphs
    if bench.gpu:
        torch.cuda.empty_cache()
