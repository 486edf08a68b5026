"""One pooling step in its parts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.gpu_bench import DTYPES, TWINS, WITH_TWINS, Bench, Shape

from zipbrain.pooling import Twins, ZIPBrain
from zipbrain.pooling.backends.triton import entry as triton_path
from zipbrain.pooling.pool import pool_tokens
from zipbrain.pooling.tokens import Tokens


def time_kernels(bench: Bench, shapes: list[Shape], batches: list[int], dtypes: list[str]) -> None:
    """One pooling step in its parts, beside the LayerNorm that it may replace."""
    for shape in shapes:
        if shape.tokens - shape.leading - shape.trailing > triton_path.MOST_TOKENS:
            continue
        for dtype in dtypes:
            for batch in (b for b in shape.batches if b in batches):
                for setting in shape.settings:
                    bench.write("kernels", time_step(bench, shape, batch, dtype, setting))
                if shape.name in WITH_TWINS:
                    bench.write("kernels", time_twins(bench, shape, batch, dtype))


def time_step(
    bench: Bench, shape: Shape, batch: int, dtype: str, setting: tuple[str, str, str, float]
) -> list[dict[str, Any]]:
    """Microseconds and bytes of the parts of one pooling step."""
    from zipbrain.pooling.backends.triton import merge as triton_merge

    r, n = shape.removals[0], shape.tokens - shape.leading - shape.trailing
    x = shape.draw(batch, bench.device, DTYPES[dtype])
    windows, total, width = x.shape
    heads = torch.randn(3, windows, shape.heads, total, width // shape.heads, device=x.device).to(x.dtype)
    weight, offset = torch.ones_like(x[0, 0]), torch.zeros_like(x[0, 0])
    method = ZIPBrain(*setting)
    spaces = method.z1, method.z2, method.z3
    tokens = Tokens(x, r, *heads.unbind(0), shape.leading, shape.trailing)
    pivots = method.pivot_count(tokens)
    index = triton_path.group(tokens, spaces, pivots)
    merged = triton_merge.merge(x, index, 0)[0]
    calls: dict[str, Callable[[], Any]] = {
        "group": lambda: triton_path.group(tokens, spaces, pivots),
        "merge": lambda: triton_merge.merge(x, index, 0),
        "merge and norm": lambda: triton_merge.merge(x, index, 0, norm=(weight, offset, 1e-6)),
        "norm alone": lambda: F.layer_norm(merged, (width,), weight, offset, 1e-6),
        "copy of x": lambda: x.clone(),
        "all, plain operators": lambda: method.merge(x, method.parts(tokens)),
    }
    found = bench.interleaved({name: bench.capture(call) for name, call in calls.items()}, lambda _: None)
    # What must be moved at least: each space's tensor, x, and the merged tokens, once.
    size = x.element_size()
    read = sum(x.numel() if space == "x" else heads[0].numel() for space in dict.fromkeys(spaces))
    moved = {
        "group": read * size, "merge": (x.numel() + merged.numel()) * size, "norm alone": 2 * merged.numel() * size,
        "merge and norm": (x.numel() + 2 * merged.numel()) * size, "copy of x": 2 * x.numel() * size,
    }  # fmt: skip
    features = width if spaces[2] == "x" or spaces[2].endswith("h") else width // shape.heads
    names = {"shape": shape.name, "r": r, "batch": batch, "dtype": dtype, "setting": " ".join(map(str, setting))}
    return step_rows(names, found, moved, 2 * windows * r * n * features)


def step_rows(
    names: dict[str, Any], found: dict[str, list[float]], moved: dict[str, int], flop: int
) -> list[dict[str, Any]]:
    """Rows of the parts of one pooling step, from their times and the bytes that they must move at least."""
    rows = []
    for name, times in found.items():
        took, bytes_moved = statistics.median(times), moved.get(name, 0)
        rows.append({
            **names, "step": name, "us": round(took * 1e6, 2), "least_megabytes": round(bytes_moved / 1e6, 3),
            "gigabytes_per_s": round(bytes_moved / took / 1e9, 1),
            "match_megaflop": round(flop / 1e6, 2) if name == "group" else "",
        })  # fmt: skip
        what = f"{names['shape']} {names['batch']} {names['dtype']} {names['setting']:16s}"
        print(f"   {what} {name:22s} {took * 1e6:9.2f} us", flush=True)
    return rows


def time_twins(bench: Bench, shape: Shape, batch: int, dtype: str) -> list[dict[str, Any]]:
    """Microseconds and bytes of the parts of one pooling step of Twins, with mass."""
    r, n = shape.removals[0], shape.tokens - shape.leading - shape.trailing
    x = shape.draw(batch, bench.device, DTYPES[dtype])
    windows, total, width = x.shape
    heads = torch.randn(3, windows, shape.heads, total, width // shape.heads, device=x.device).to(x.dtype)
    mass = torch.randint(1, 6, (windows, total), device=x.device).float()
    ends = shape.leading, shape.trailing
    tokens = Tokens(x, r, *heads.unbind(0), *ends, mass=mass, linear=shape.linear)
    method = Twins()
    grouping, rule = method(tokens), method.merge_rule(tokens)

    def plainly() -> Any:
        was = triton_path.switch(False)
        try:
            return pool_tokens(tokens, method, weigh=True)
        finally:
            triton_path.switch(was)

    calls: dict[str, Callable[[], Any]] = {
        "group": lambda: method(tokens),
        "merge": lambda: triton_path.merge(x, mass, grouping, rule),
        "all": lambda: pool_tokens(tokens, method, weigh=True),
        "all, plain operators": plainly,
    }
    found = bench.interleaved({name: bench.capture(call) for name, call in calls.items()}, lambda _: None)
    size = x.element_size()
    moved = {"group": (x.numel() + heads.numel()) * size, "merge": (2 * total - r) * windows * width * size}
    names = {"shape": shape.name, "r": r, "batch": batch, "dtype": dtype, "setting": TWINS}
    return step_rows(names, found, moved, windows * n * (n + 1) * (width + 3 * width // shape.heads))
