# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Shared parts of the Triton kernels: launching, layouts of tensors, reading, ranking, products, index writing.

Functions under ``triton.jit`` are kernel language: compiled for a GPU, or run by Triton's interpreter if
TRITON_INTERPRET=1 is set before triton is imported. Everything is accumulated in float32, whatever the inputs are. No
program writes where another one of the same launch writes or reads: there are no atomics, and results depend neither
on the order of programs nor on the number of windows.

All compile-time numbers of a kernel are fields of one dataclass, its argument ``S``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from zipbrain.pooling.steps import RESOLUTION as TIE

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_OVERLAP = os.environ.get("ZIPBRAIN_TRITON_OVERLAP", "1") != "0" and not _INTERPRETED
_GRAPH_DRIVER = 12030  # CUDA 12.3: the first drivers that capture overlapping launches in a graph
_FEATURES = 32  # features read at a time of rows up to 1,024 wide, twice as many beyond


# -- launching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a kernel reads a tensor (B, T, D) or (B, H, T, d) whose last axis is dense."""

    kind: int  # X, MEAN, PER_HEAD or UNIT, see below
    heads: int  # vectors of a token
    width: int  # features of a vector; of the whole row for X and UNIT
    step: int  # elements from one token to the next
    align: int  # unit of the distances between windows and heads, so that the compiler knows how wide a load may be
    bytes: int  # of an element

    @classmethod
    def of(cls, values: Tensor, kind: int) -> Layout:
        """The layout of a tensor."""
        window, *between, step, _ = values.stride()
        size = values.element_size()
        align = 16 // size
        while any(distance % align for distance in (window, *between)):
            align //= 2
        heads = int(values.shape[1]) if between else 1
        return cls(kind, heads, int(values.shape[-1]), step, align, size)

    @property
    def block(self) -> int:
        """Features read at a time."""
        return min(power_of_two(self.width, 16), _FEATURES if self.width <= 1024 else 2 * _FEATURES)

    def distances(self, values: Tensor) -> tuple[int, int]:
        """Distances between windows and between heads, in units of ``align``."""
        window, *between, _, _ = values.stride()
        return window // self.align, (between[0] if between else 0) // self.align


@dataclass(frozen=True)
class Counts:
    """Tokens that go, pivots, and protected tokens at the start and at the end."""

    r: int
    pivots: int
    leading: int
    trailing: int


UNREAD = Layout(0, 1, 1, 1, 1, 1)  # of a tensor that a kernel does not read: one compiled kernel serves all of them


class _Constants:
    """Fields of a dataclass as compile-time constants; compared by identity, since `constants` keeps one of each."""

    def __init__(self, sizes: Any) -> None:
        self._text = repr(sizes)
        for field in fields(sizes):
            value: Any = getattr(sizes, field.name)
            nested: Any = constants(value) if is_dataclass(value) else value  # type: ignore[arg-type]
            setattr(self, field.name, tl.constexpr(nested))

    def __repr__(self) -> str:  # Triton's cache on disk goes by it
        return self._text


@cache
def constants(sizes: Any) -> Any:
    """A dataclass as a kernel takes it."""
    return sizes if _INTERPRETED else _Constants(sizes)


def launch(kernel: Any, grid: tuple[int, int], warps: int, *args: Any, sizes: Any = None) -> None:
    """Start a kernel that begins with `wait_for_previous`: ``grid`` is (windows, programs for each)."""
    overlap = _OVERLAP and torch.cuda.is_available() and _can_overlap(torch.cuda.current_device())
    options = {"launch_pdl": True} if overlap else {}
    given = args if sizes is None else (*args, constants(sizes))
    kernel[grid](*given, overlap, num_warps=warps, **options)


@cache
def _can_overlap(device: int) -> bool:
    """True on Hopper and later: a kernel may start while the previous one still runs, and waits inside for its end."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError):  # without a known driver nothing overlaps
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    is_new = torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
    return is_new and version.value >= _GRAPH_DRIVER


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is not below either number."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def dense(values: Tensor) -> Tensor:
    """The tensor, copied unless its last axis is dense; windows, heads and tokens may lie anywhere."""
    return values if values.stride(-1) == 1 or values.shape[-1] == 1 else values.contiguous()


def first_alike(spaces: list[Tensor], layouts: tuple[Layout, ...]) -> tuple[int, ...]:
    """For each space the first one that reads the same vectors."""
    marks = [
        (values.data_ptr(), values.stride(), values.shape, values.dtype, layout.kind)
        for values, layout in zip(spaces, layouts, strict=True)
    ]
    return tuple(marks.index(mark) for mark in marks)


def empty_index(like: Tensor, total: int, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for kept (B, T - r), source (B, r) and target (B, r)."""
    batch, device = like.shape[0], like.device
    kept, source, target = (torch.empty((batch, n), dtype=torch.int64, device=device) for n in (total - r, r, r))
    return kept, source, target


# -- kernel language ---------------------------------------------------------------------------------------------------

X = tl.constexpr(0)  # kinds of spaces: the token itself,
MEAN = tl.constexpr(1)  # the mean of its vectors over heads,
PER_HEAD = tl.constexpr(2)  # one vector per head and the mean of their scores,
UNIT = tl.constexpr(3)  # or a row of one or more vectors of length 1, every number the sum of two float16
TINY = tl.constexpr(1e-18)  # least norm that a cosine divides by, as in `spaces`
SMALLEST = tl.constexpr(1.1754943508222875e-38)  # float32's smallest normal number
RESOLUTION = tl.constexpr(TIE)  # scores closer than this are equal
BROKEN = tl.constexpr(1.5 / TIE)  # beyond any score in steps; a thousand times it is still an int32
CLOSED = tl.constexpr(-(2**30))  # below all keys, which are at least -1.5 * 2**29
# Rows of a window's scratch. GONE: if scores come in parts, 1 for a pivot; at the end a source's number plus 1, or 0.
KEYS, GONE, SHARES, LENGTHS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SCORES = tl.constexpr(4)  # the first row of partial scores, then of cosines
INTERPRETED = tl.constexpr(_INTERPRETED)  # the interpreter's dot product takes bfloat16 for integers
UNROLLED = tl.constexpr(512)  # features; wider rows are read in a loop, which compiles faster
ALL_AT_ONCE = tl.constexpr(256)  # tokens whose keys are all compared at once; more are compared in a loop


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait for the memory of the kernels before this one, then let the next one start."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def read(base, rows, real, head, head_step, first, L: tl.constexpr, BLOCK: tl.constexpr):
    """Features `first` to `first + BLOCK` of some tokens (rows, BLOCK), as stored or as a float32 mean over heads."""
    column = first + tl.arange(0, BLOCK)
    at = base + rows[:, None] * L.step + column[None, :]
    mask = real[:, None] & (column < L.width)[None, :]  # zeros beyond the edges
    if L.kind == MEAN:
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        if base.dtype.element_ty != tl.float32:  # unrolled float32 loads would not fit into the registers
            for other in tl.static_range(1, L.heads):
                values += tl.load(at + other * head_step, mask=mask, other=0.0).to(tl.float32)
        else:
            for other in range(1, L.heads):
                values += tl.load(at + other * head_step, mask=mask, other=0.0).to(tl.float32)
        values = values * (1.0 / L.heads)
    else:
        values = tl.load(at + head * head_step, mask=mask, other=0.0)
    return values


@triton.jit
def units(base, index, inside, first, L: tl.constexpr, BLOCK: tl.constexpr):
    """Features `first` to `first + BLOCK` of UNIT vectors."""
    values = read(base, index, inside, 0, 0, first, L, BLOCK).to(tl.float32)
    values += read(base + L.step // 2, index, inside, 0, 0, first, L, BLOCK).to(tl.float32)
    return values


@triton.jit
def with_branch(values, branch, at, gain, mask, SCALED: tl.constexpr):
    """Values plus their branch, rounded to their type as an addition before the kernel would."""
    more = tl.load(branch + at, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        more = more * gain
    return (values.to(tl.float32) + more).to(values.dtype)


@triton.jit
def norms(base, rows, real, head, head_step, L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """Euclidean norms (BLOCK_N,) of one head."""
    squares = tl.zeros((BLOCK_N, BLOCK), tl.float32)
    for first in tl.static_range(0, L.width, BLOCK):
        values = read(base, rows, real, head, head_step, first, L, BLOCK).to(tl.float32)
        squares += values * values
    return tl.sqrt_rn(tl.sum(squares, axis=1))


@triton.jit
def inverse(length):
    """1 / length, where a zero vector counts as a very short one."""
    return tl.div_rn(1.0, tl.maximum(length, TINY))


@triton.jit
def whole_steps(score, factor, SIGN: tl.constexpr):
    """Scores as int32 multiples of RESOLUTION; what is not finite comes first (SIGN 1) or last (-1)."""
    steps = score * factor
    steps = tl.where(tl.abs(steps) < BROKEN, steps, SIGN * BROKEN)
    # Halves to even, by comparing: an addition would be fused with the product above and round something else.
    below = tl.floor(steps)
    whole = below.to(tl.int32)
    half = below + 0.5
    return whole + ((steps > half) | ((steps == half) & (whole % 2 != 0))).to(tl.int32)


@triton.jit
def keys(score, factor, index, SIGN: tl.constexpr, BLOCK_N: tl.constexpr):
    """Distinct int32 in the order of the scores: rounded to multiples of RESOLUTION, the lower index first."""
    return whole_steps(score, factor, SIGN) * BLOCK_N + (BLOCK_N - 1 - index)


@triton.jit
def is_negative(difference):
    """1 or 0, by the sign bit: one instruction less than a comparison. Keys are far from 2**31."""
    return (difference.to(tl.uint32, bitcast=True) >> 31).to(tl.int32)


@triton.jit
def highest(
    key,
    scratch,
    index,
    n,
    count,
    AT_ONCE: tl.constexpr,
    LOADED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """Mark the `count` highest keys, by counting how many are higher than each: no sort, no data-dependent step.

    LOADED: scores were read from memory and there is one thread for every token. Only then are sums over the first
    axis faster, where a thread has a column to itself.
    """
    if BLOCK_N <= AT_ONCE and LOADED:
        above = tl.sum(is_negative(key[None, :] - key[:, None]), axis=0)
    elif BLOCK_N <= AT_ONCE:
        above = tl.sum(is_negative(key[:, None] - key[None, :]), axis=1)
    else:
        tl.debug_barrier()  # the keys of the step before have been read by now
        tl.store(scratch + index, key)
        tl.debug_barrier()  # other threads of this program read it
        key = tl.load(scratch + index)  # by the threads that compare it
        counts = tl.zeros((BLOCK_N, BLOCK_J), tl.int32)
        other = tl.arange(0, BLOCK_J)
        theirs = tl.load(scratch + other, mask=other < n, other=CLOSED)
        following = tl.load(scratch + other + BLOCK_J, mask=other + BLOCK_J < n, other=CLOSED)
        for first in range(2 * BLOCK_J, n + 2 * BLOCK_J, BLOCK_J):  # keys are read two steps before they are compared
            ahead = tl.load(scratch + first + other, mask=first + other < n, other=CLOSED)
            counts += is_negative(key[:, None] - theirs[None, :])
            theirs, following = following, ahead
        above = tl.sum(counts, axis=1)
    return above < count


@triton.jit
def product_of(a, b, product):
    """Add a b^T: exact products of 16-bit numbers, three products of parts for float32; summed in float32."""
    if a.dtype == tl.float32 or INTERPRETED:
        wide, tall = a.to(tl.float32), b.to(tl.float32)
        product = tl.dot(wide, tl.trans(tall), product, input_precision="tf32x3")
    else:
        product = tl.dot(a, tl.trans(b), product)
    return product


@triton.jit
def best_column(score, free, index, BLOCK_N: tl.constexpr):
    """The lowest free column of each row whose score is within RESOLUTION of the best.

    A row with NaN or infinity takes its first free column.
    """
    score = tl.where(free[None, :], tl.where(score == score, score, float("inf")), float("-inf"))
    best = tl.max(score, axis=1)
    least = tl.where(best < float("inf"), best - RESOLUTION, float("-inf"))
    near = free[None, :] & (score >= least[:, None])
    return tl.min(tl.where(near, index[None, :], BLOCK_N), axis=1)


@triton.jit
def top_of(score, inside):
    """The largest finite one of non-negative scores inside."""
    return tl.max(tl.where(inside & (score < float("inf")), score, 0.0), axis=0)


@triton.jit
def share_of(top):
    """Factor from scores to multiples of RESOLUTION of the largest one."""
    return tl.div_rn(1.0, tl.maximum(top, SMALLEST)) * (1.0 / RESOLUTION)


@triton.jit
def write_part(redundant, inside, index, earlier, kept, source, leading):
    """Write which of some tokens stay and which go, both ascending, behind `earlier` ones that go.

    Returns how many go before each token.
    """
    gone = redundant.to(tl.int32)
    before = earlier + tl.cumsum(gone, axis=0) - gone
    names = (leading + index).to(tl.int64)
    tl.store(source + before, names, mask=redundant)
    tl.store(kept + leading + index - before, names, mask=inside & (redundant == 0))
    return before


@triton.jit
def write_ends(index, kept, n, r, leading, trailing, BLOCK: tl.constexpr):
    """Write the protected tokens at both ends into `kept`."""
    for first in range(0, leading + trailing, BLOCK):
        end = first + index
        behind = end >= leading
        place = kept + tl.where(behind, end + n - r, end)
        tl.store(place, tl.where(behind, end + n, end).to(tl.int64), mask=end < leading + trailing)
