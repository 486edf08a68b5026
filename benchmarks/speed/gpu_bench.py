"""What the parts of benchmarks/speed/gpu.py share: encoders of certain shapes, methods, and timing side by side."""

from __future__ import annotations

import copy
import csv
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zipbrain
from zipbrain.models.blocks import Block
from zipbrain.pooling import DART, EViT, FreeSlicing, Method, ToFu, ToMe, Twins, ZIPBrain

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AS_IT_IS = "original, attention as torch pads it"
ORIGINAL, SLICING, PLAIN = "original", "free slicing", "ZIPBrain x v x 0.4, plain operators"
TWINS, PLAIN_TWINS = "Twins", "Twins, plain operators"
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
    """Present clock of the multiprocessors in MHz; empty if no tool reports it."""
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
    return {ORIGINAL: None, SLICING: FreeSlicing(), **ours, PLAIN: ZIPBrain("x", "v", "x", 0.4), **twins, **rivals}


def original(base: nn.Module, shape: Shape) -> nn.Module:
    """The encoder run by the same operators as the compressed ones, with nothing removed."""
    return zipbrain.compress(copy.deepcopy(base), FreeSlicing(), r=0, protected=(shape.leading, shape.trailing))


def compressed(base: nn.Module, shape: Shape, method: Method | None, r: int) -> nn.Module:
    """A copy of the encoder with a method in it."""
    if method is None:
        return base
    protected = (shape.leading, shape.trailing)
    layers = shape.reduce_at
    return zipbrain.compress(copy.deepcopy(base), method, r=r, layers=layers, protected=protected)
