"""Determinism, agreement with float64, and memory."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.speed.gpu_bench import DTYPES, ORIGINAL, SLICING, Bench, Shape, compressed

from zipbrain.pooling import FreeSlicing, ZIPBrain, pool


def check(bench: Bench, shape: Shape, dtypes: list[str]) -> None:
    """Determinism, batch-size invariance, and groups of every precision against float64's."""
    r, big = shape.removals[0], max(shape.batches)
    protected = (shape.leading, shape.trailing)
    rows = []
    for dtype in dtypes:
        base = shape.build().to(bench.device, DTYPES[dtype])
        for *spaces, rho in shape.settings:
            method = ZIPBrain(*spaces, rho)
            x = shape.draw(32, bench.device, DTYPES[dtype])
            model = compressed(base, shape, method, r)
            first = model(x)
            changed = sum(not torch.equal(first, model(x)) for _ in range(100 if bench.gpu else 3))
            x = shape.draw(big, bench.device, DTYPES[dtype])
            sizes = (3, x.shape[0], shape.heads, shape.tokens, shape.dim // shape.heads)
            heads = torch.randn(sizes, device=bench.device).to(x.dtype).unbind(0)
            options: dict[str, Any] = {"r": r, "method": method, "protected": protected}
            whole = pool(x, *heads, **options).grouping
            moved = 0
            for start, stop in ((0, 1), (0, min(32, big)), (big // 2, big)):
                part = pool(x[start:stop], *(h[start:stop] for h in heads), **options).grouping
                moved += not torch.equal(part.target, whole.target[start:stop])
            exact = pool(x.double(), *(h.double() for h in heads), **options).grouping
            same = (exact.kept == whole.kept).all(1) & (exact.target == whole.target).all(1)
            setting = f"{' '.join(spaces)} {rho:g}"
            name = f"{shape.name} {dtype} {setting}"
            rows.append({
                "shape": shape.name, "dtype": dtype, "setting": setting, "runs_that_differ": changed,
                "batches_that_differ": moved, "windows": len(same), "windows_unlike_float64": int((~same).sum()),
            })  # fmt: skip
            bench.bar(f"{name}: runs that differ", changed, 0)
            bench.bar(f"{name}: batch sizes that change groups", moved, 0)
            bench.bar(f"{name}: share of windows unlike float64 (near ties)", 1 - float(same.float().mean()), 0.005)
            print("  ", rows[-1], flush=True)
    bench.write("checks", rows)


def check_memory(bench: Bench, shape: Shape, dtypes: list[str]) -> None:
    """Peak memory of one forward beyond what was there before."""
    rows = []
    for dtype in dtypes:
        base = shape.build().to(bench.device, DTYPES[dtype])
        x = shape.draw(1, bench.device, DTYPES[dtype])
        peaks = {}
        for name, method in {ORIGINAL: None, "ZIPBrain": ZIPBrain("x", "v", "x", 0.4), SLICING: FreeSlicing()}.items():
            model = compressed(base, shape, method, shape.removals[0])
            model(x)
            if bench.gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                start = torch.cuda.memory_allocated()
                model(x)
                peaks[name] = torch.cuda.max_memory_allocated() - start
            else:
                peaks[name] = 1  # a CPU has no such counter: the dry run only sees that it runs
        for name, peak in peaks.items():
            rows.append({"shape": shape.name, "dtype": dtype, "method": name, "peak_mb": round(peak / 2**20, 2)})
            print("  ", rows[-1])
        bench.bar(f"{shape.name} {dtype}: peak memory / original's", peaks["ZIPBrain"] / peaks[ORIGINAL], 1.0)
    bench.write("memory", rows)
