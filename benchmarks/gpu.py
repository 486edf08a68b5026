"""What pooling costs and brings on a GPU: every method against free slicing and against the original network.

    python benchmarks/gpu.py                                  # everything; in parts if a call may not take that long:
    python benchmarks/gpu.py --parts encoders --shapes LaBraM --dtypes float16
    python benchmarks/gpu.py --parts kernels waterfall checks memory
    python benchmarks/gpu.py --parts decisions --model FOLDER --windows FILE.npz   # a trained LaBraM on real windows
    python benchmarks/gpu.py --dry                            # tiny shapes on a CPU, to see that it runs

Needs torch, triton, numpy and the package (PYTHONPATH=src). Encoders have random weights and see other random tokens in
each round. All candidates of a block are captured in CUDA graphs and replayed in turn, each round in another order;
a ratio is the median over rounds of times taken right after each other. "Free slicing" is the same network whose
reducing layers slice tokens off: no method can be faster. Rows are appended to CSV files as they come, with the device
and the versions, and the bars that were met and missed are printed at the end.
"""

from __future__ import annotations

import argparse
import copy
import csv
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import zipbrain
from zipbrain.cost import quantile
from zipbrain.models.blocks import Block
from zipbrain.pooling import DART, EViT, FreeSlicing, Method, ToFu, ToMe, Twins, ZIPBrain, pool
from zipbrain.pooling.kernels import triton_path
from zipbrain.pooling.pool import pool_tokens
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams import beside

RESULTS = Path(__file__).parent / "results"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ORIGINAL, SLICING, PLAIN = "original", "free slicing", "ZIPBrain x v x 0.4, plain operators"
TWINS, PLAIN_TWINS = "Twins", "Twins, plain operators"
ALONE = "ZIPBrain k k k 0.9, one stream"  # decided behind attention instead of beside it
WITH_TWINS = ("LaBraM", "BIOT")  # shapes beside which Twins stands
SLICE_BARS = {1: 1.10, 32: 1.05, 256: 1.02}  # T_zip / T_slice by batch
ORIGINAL_BARS = {(256, True): 0.63, (256, False): 0.67, (32, True): 0.68, (32, False): 0.74}  # (batch, float32)
RIVAL_BAR = 1.02
TRAINED = (ORIGINAL, "free", "ZIPBrain")  # first words of the candidates that are trained
INPUTS = 8  # different inputs that the rounds go through
MANY = 1024  # tokens from which on a recording is long: fewer candidates, rounds and inputs


@dataclass(frozen=True)
class Shape:
    """An encoder and the tokens it sees in one window; `fold` counts the windows that a window is cut into."""

    name: str
    dim: int
    depth: int
    heads: int
    tokens: int
    removals: tuple[int, ...]
    leading: int = 0
    trailing: int = 0
    linear: bool = False
    qk_norm: bool = False
    reduce_at: tuple[int, ...] | None = None
    fold: int = 1
    batches: tuple[int, ...] = (1, 32, 256)
    settings: tuple[tuple[str, str, str, float], ...] = (
        ("k", "k", "k", 0.9),
        ("x", "v", "x", 0.4),
        ("kh", "vh", "qh", 0.3),
    )

    def build(self) -> Stack:
        """A random encoder."""
        torch.manual_seed(0)
        return Stack(self).eval()

    def draw(self, batch: int, device: str, dtype: torch.dtype) -> Tensor:
        """Random tokens."""
        return torch.randn(batch * self.fold, self.tokens, self.dim, device=device).to(dtype)


class Stack(nn.Module):
    """Blocks over given tokens, and their mean."""

    encoder_path = "blocks"

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        scale = 0.1 if shape.qk_norm else None
        options: dict[str, Any] = {"qkv_bias": False, "qk_norm": shape.qk_norm, "linear": shape.linear}
        blocks = [Block(shape.dim, shape.heads, layer_scale=scale, **options) for _ in range(shape.depth)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, D)"""
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


def labram(name: str, tokens: int, removals: tuple[int, ...], batches: tuple[int, ...] = (1, 32, 256)) -> Shape:
    """LaBraM-base over any number of tokens, CLS included."""
    return Shape(name, 200, 12, 10, tokens, removals, leading=1, qk_norm=True, batches=batches)


SHAPES = [
    labram("LaBraM", 231, (15, 19)),
    Shape("BIOT", 256, 4, 8, 304, (61, 75), linear=True, settings=(("v", "k", "kh", 0.9), ("x", "v", "x", 0.4))),
    Shape("EEGPT", 512, 8, 8, 24, (4,), trailing=4, reduce_at=(2, 4, 6, 8), fold=31, settings=(("kh", "x", "x", 0.0),)),
    Shape("TFM", 64, 4, 8, 305, (61, 75), leading=1, linear=True, settings=(("qh", "qh", "qh", 1.0),)),
    labram("long 2049", 2049, (137,), (1, 32)),
    labram("long 8193", 8193, (546,), (1, 32)),
]
DRY = [
    Shape("LaBraM", 16, 2, 2, 21, (4,), leading=1, qk_norm=True, batches=(1, 32), settings=(("x", "v", "x", 0.4),)),
    Shape(
        "EEGPT", 16, 2, 2, 12, (2,), trailing=4, reduce_at=(2,), fold=2, batches=(2,), settings=(("k", "k", "k", 0.9),)
    ),
]


@dataclass
class Bench:
    """Where it runs, what was found, and which bars were met."""

    device: str
    rounds: int
    out: Path
    about: dict[str, Any]
    bars: list[tuple[str, float, float]] = field(default_factory=list)  # what, found, allowed

    @property
    def gpu(self) -> bool:
        """Whether this is a measurement and not a dry run."""
        return self.device == "cuda"

    def capture(self, call: Callable[[], Any], graph: bool = True) -> Callable[[], Any]:
        """The call as a CUDA graph behind a warm-up, which also compiles what must be compiled."""
        if not (self.gpu and graph):
            call()
            return call
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            result = call()

        def replay(kept: tuple[Any, ...] = (call, result)) -> None:  # the weights must live as long as the graph
            captured.replay()

        return replay

    def seconds(self, call: Callable[[], Any], repeats: int) -> float:
        """Seconds per call over some calls in a row, by CUDA events."""
        if not self.gpu:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / repeats

    def interleaved(
        self, calls: dict[str, Callable[[], Any]], refresh: Callable[[int], None], rounds: int | None = None
    ) -> dict[str, list[float]]:
        """Seconds of every candidate in every round; round after round in another order, with another input."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        repeats = {}
        for name in names:  # long enough that a launch's latency is nothing beside it
            self.seconds(calls[name], 1)
            repeats[name] = min(50, max(1, round(4e-3 / self.seconds(calls[name], 1)))) if self.gpu else 1
        for number in range(rounds or self.rounds):
            refresh(number)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                found[name].append(self.seconds(calls[name], repeats[name]))
        return found

    def write(self, part: str, rows: list[dict[str, Any]]) -> None:
        """Append rows to the part's CSV, with where and with what they were measured."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"gpu_{part}.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], *self.about], lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows({**row, **self.about, "sm_clock_mhz": sm_clock()} for row in rows)

    def bar(self, what: str, found: float, allowed: float) -> None:
        """Note whether a bar was met."""
        self.bars.append((what, found, allowed))


def ratio(times: list[float], others: list[float]) -> float:
    """Median over rounds of one candidate's time over another's."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def sm_clock() -> str:
    """Present clock of the multiprocessors in MHz; empty if nobody can tell."""
    try:
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        return (
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            .stdout.split("\n")[0]
            .strip()
        )
    except (OSError, subprocess.SubprocessError):
        return ""


def machine(device: str) -> dict[str, Any]:
    """Where this was measured."""
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu",
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "",
        "triton": version, "zipbrain": zipbrain.__version__, "sm_clock_mhz": "",
    }  # fmt: skip


def candidates(shape: Shape) -> dict[str, Method | None]:
    """Methods by name; None is the original. Of long recordings only a few: each takes seconds there."""
    ours = {f"ZIPBrain {z1} {z2} {z3} {rho:g}": ZIPBrain(z1, z2, z3, rho) for z1, z2, z3, rho in shape.settings}
    rivals: dict[str, Method] = {"ToMe": ToMe(), "ToFu": ToFu(), "EViT": EViT(), "DART": DART()}
    if shape.tokens > MANY:
        some = {name: method for name, method in ours.items() if not name.startswith("ZIPBrain kh")}
        return {ORIGINAL: None, SLICING: FreeSlicing(), **some, PLAIN: ZIPBrain("x", "v", "x", 0.4), "ToMe": ToMe()}
    twins: dict[str, Method] = {TWINS: Twins(), PLAIN_TWINS: Twins()} if shape.name in WITH_TWINS else {}
    if shape.name == "LaBraM":
        twins[ALONE] = ZIPBrain("k", "k", "k", 0.9)
    return {ORIGINAL: None, SLICING: FreeSlicing(), **ours, PLAIN: ZIPBrain("x", "v", "x", 0.4), **twins, **rivals}


def compressed(base: nn.Module, shape: Shape, method: Method | None, r: int) -> nn.Module:
    """A copy of the encoder with a method in it."""
    if method is None:
        return base
    protected = (shape.leading, shape.trailing)
    layers = shape.reduce_at
    return zipbrain.compress(copy.deepcopy(base), method, r=r, layers=layers, protected=protected)


def calls_of(
    bench: Bench, shape: Shape, base: nn.Module, r: int, x: Tensor, graph: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every candidate as a call on the tokens in x, captured or not."""
    for name, method in candidates(shape).items():
        model = compressed(base, shape, method, r)
        before = triton_path.switch("plain" not in name)
        streams = beside.switch(name != ALONE)

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
            beside.switch(streams)


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
    ours = [name for name in found if name.startswith("ZIPBrain") and name not in (PLAIN, ALONE)]
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
                    compressed(base, shape, method, r)(shape.draw(1, "cuda", DTYPES[dtype]))


def time_training(bench: Bench, shapes: list[Shape], batch: int) -> None:
    """One training step, forward and backward, compressed and not; eager, float32 and with autocast."""
    for shape in shapes:
        base = shape.build().to(bench.device).train()
        x = shape.draw(batch, bench.device, torch.float32)
        methods = {
            name: method for name, method in candidates(shape).items()
            if name.split()[0] in TRAINED and name not in (PLAIN, ALONE)
        }  # fmt: skip
        models = {name: compressed(base, shape, method, shape.removals[0]) for name, method in methods.items()}
        for half in (False, True):

            def step(model: nn.Module, x: Tensor = x, half: bool = half) -> None:
                with torch.autocast(bench.device, torch.bfloat16, enabled=half), torch.enable_grad():
                    loss = model(x).float().square().mean()
                loss.backward()
                model.zero_grad(set_to_none=True)

            calls = {name: (lambda model=model: step(model)) for name, model in models.items()}
            found = bench.interleaved(calls, lambda _: None)
            precision = "bfloat16 autocast" if half else "float32"
            rows = []
            for name, times in found.items():
                against = ratio(times, found[ORIGINAL])
                rows.append({
                    "shape": shape.name, "batch": batch, "precision": precision, "method": name,
                    "ms": round(statistics.median(times) * 1e3, 4), "to_original": round(against, 4),
                })  # fmt: skip
                print(f"   training {shape.name} {precision:18s} {name:40s} {rows[-1]['ms']:9.3f} ms {against:6.3f}")
                if name.startswith("ZIPBrain"):
                    bench.bar(f"training step {shape.name} batch {batch} {precision}: {name} / original", against, 1.0)
            bench.write("training", rows)


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
    from zipbrain.pooling.kernels import triton_launch

    r, n = shape.removals[0], shape.tokens - shape.leading - shape.trailing
    x = shape.draw(batch, bench.device, DTYPES[dtype])
    windows, total, width = x.shape
    heads = torch.randn(3, windows, shape.heads, total, width // shape.heads, device=x.device).to(x.dtype)
    weight, offset = torch.ones_like(x[0, 0]), torch.zeros_like(x[0, 0])
    method = ZIPBrain(*setting)
    spaces = method.z1, method.z2, method.z3
    tokens = Tokens(x, r, *heads.unbind(0), shape.leading, shape.trailing)
    pivots = method._pivot_count(tokens)
    index = triton_path.group(tokens, spaces, pivots)
    merged = triton_launch.merge(x, *index, 0)[0]
    calls: dict[str, Callable[[], Any]] = {
        "group": lambda: triton_path.group(tokens, spaces, pivots),
        "merge": lambda: triton_launch.merge(x, *index, 0),
        "merge and norm": lambda: triton_launch.merge(x, *index, 0, norm=(weight, offset, 1e-6)),
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


def check_decisions(bench: Bench, folder: Path, file: Path) -> None:
    """How a trained LaBraM decides on real windows with the switches of each step (not captured in a graph)."""
    with np.load(file) as stored:
        windows, labels = torch.from_numpy(stored["x"]).float(), torch.from_numpy(stored["y"])
    trained = zipbrain.from_pretrained(folder)
    first: Tensor | None = None
    rows = []
    for name in STEPS:
        found = decide(as_step(bench, trained, name), windows, 32)
        first = found if first is None else first
        right = [float((found[labels == one] == one).float().mean()) for one in labels.unique()]
        rows.append({
            "step": name, "windows": len(found), "same_decisions": round(float((found == first).float().mean()), 4),
            "balanced_accuracy": round(sum(right) / len(right), 4),
        })  # fmt: skip
        print("  ", rows[-1], flush=True)
        bench.write("decisions", rows[-1:])  # at once: the steps that compile take long


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


def report(bench: Bench) -> None:
    """Bars met and missed."""
    missed = [bar for bar in bench.bars if bar[1] > bar[2]]
    dry = "" if bench.gpu else " (a dry run: the numbers mean nothing)"
    print(f"\n{len(bench.bars) - len(missed)} of {len(bench.bars)} bars met{dry}")
    for what, found, allowed in bench.bars:
        print(f"  {'met   ' if found <= allowed else 'MISSED'} {found:8.4f} <= {allowed:6.4f}  {what}")
    if bench.bars:
        rows = [{"bar": w, "found": round(f, 5), "allowed": a, "met": f <= a} for w, f, a in bench.bars]
        bench.write("bars", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["encoders", "kernels", "waterfall", "checks", "memory", "training"]
    parser.add_argument("--parts", nargs="+", choices=[*parts, "compile", "decisions"], default=parts)
    parser.add_argument("--shapes", nargs="+", help="LaBraM, BIOT, EEGPT, TFM, 'long 2049', 'long 8193'")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 256])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", type=Path, help="decisions: folder of a trained LaBraM")
    parser.add_argument(
        "--windows", type=Path, help="decisions: .npz with x (n, C, T), scaled for the model, and y (n,)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU")
    options = parser.parse_args()
    if (options.model is None) != (options.windows is None):
        raise SystemExit("--model and --windows belong together: a trained model, and what it is tried on")
    triton_path.interpret(options.dry)  # has an effect under TRITON_INTERPRET=1
    if not options.dry and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this measures a GPU (--dry runs tiny shapes on a CPU)")
    device = "cpu" if options.dry else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    bench = Bench(device, 3 if options.dry else options.rounds, options.out, machine(device))
    known = DRY if options.dry else SHAPES
    wanted = [shape for shape in known if options.shapes is None or shape.name in options.shapes]
    batches = [1, 2, 32] if options.dry else options.batches
    dtypes = ["float32", "bfloat16"] if options.dry else options.dtypes
    if not wanted:
        raise SystemExit(f"--shapes {options.shapes}: known are {', '.join(shape.name for shape in known)}")
    print(bench.about, "kernels:", triton_path.available(), flush=True)
    with torch.inference_mode():
        if "compile" in options.parts:
            compile_kernels([shape for shape in wanted if shape.tokens <= MANY], dtypes)
        if "checks" in options.parts:
            for shape in (s for s in wanted if s.tokens <= triton_path.MOST_TOKENS):
                check(bench, shape, dtypes)
        if "kernels" in options.parts and (bench.gpu or triton_path.interpreting()):
            time_kernels(bench, wanted, batches, dtypes)
        if "encoders" in options.parts:
            time_encoders(bench, wanted, batches, dtypes)
        if "memory" in options.parts:
            check_memory(bench, known[-1], dtypes)
        if "waterfall" in options.parts:
            time_waterfall(bench)
        if options.model is not None:
            check_decisions(bench, options.model, options.windows)
    if "training" in options.parts:
        time_training(bench, [shape for shape in wanted if shape.name in ("LaBraM", "BIOT")], 4 if options.dry else 64)
    report(bench)


if __name__ == "__main__":
    main()
