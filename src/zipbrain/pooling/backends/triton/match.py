# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels for step 3: cosines of redundant tokens with others, and the closest one that stays; places afterwards.

Three ways with the same products in the same order: by the program that has selected a window's few sources
(`match`), by programs behind it (`match_kernel`), or by tiles of all pairs beside it (`tile_of_all`), before the
sources are known, and a lookup behind it (`closest_kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.language import Layout

FEATURES = 32  # of z3 multiplied at a time
_SOURCES = 64  # compared at a time when tokens are followed
_PAIRS = 1024  # compared by a warp when tokens are followed

NO_TOKEN = tl.constexpr(2**31 - 1)
NORMS_KNOWN = tl.constexpr(3)  # z3 is z1, whose norms lie in scratch, or has unit vectors
# KNOWN of the functions below: 0 if norms are found on the way, 1 or 2 if their inverses lie in scratch.


@dataclass(frozen=True)
class MatchSizes:
    """Compile-time numbers of the kernels of step 3; ``rows`` of ``block_n`` numbers are a window's scratch."""

    z3: Layout
    known: int
    block_n: int
    block_c: int
    block_r: int
    block_k: int
    stages: int
    rows: int
    first_row: int = 0  # of the cosines of all pairs


@triton.jit
def add_products(
    base,
    rows,
    asked,
    columns,
    real,
    first,
    product,
    row_squares,
    column_squares,
    L: tl.constexpr,
    KNOWN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Add features `first` to `first + BLOCK_K` to dot products of two sets of tokens and to their squared norms."""
    a = zl.read(base, rows, asked, 0, 0, first, L, BLOCK_K)
    b = zl.read(base, columns, real, 0, 0, first, L, BLOCK_K)
    product = zl.product_of(a, b, product)
    if L.kind == zl.UNIT:
        low = L.step // 2
        product = zl.product_of(zl.read(base + low, rows, asked, 0, 0, first, L, BLOCK_K), b, product)
        product = zl.product_of(a, zl.read(base + low, columns, real, 0, 0, first, L, BLOCK_K), product)
    elif not KNOWN:
        wide, tall = a.to(tl.float32), b.to(tl.float32)
        row_squares += wide * wide
        column_squares += tall * tall
    return product, row_squares, column_squares


@triton.jit
def cosines(
    base,
    rows,
    asked,
    columns,
    real,
    scratch,
    L: tl.constexpr,
    KNOWN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Cosines (BLOCK_R, BLOCK_C) between two sets of tokens."""
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    row_squares = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    column_squares = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    if L.width <= zl.UNROLLED and STAGES == 0:
        for first in tl.static_range(0, L.width, BLOCK_K):
            product, row_squares, column_squares = add_products(
                base, rows, asked, columns, real, first, product, row_squares, column_squares, L, KNOWN, BLOCK_K
            )
    else:
        for first in tl.range(0, L.width, BLOCK_K, num_stages=STAGES if STAGES > 0 else 1):
            product, row_squares, column_squares = add_products(
                base, rows, asked, columns, real, first, product, row_squares, column_squares, L, KNOWN, BLOCK_K
            )
    if L.kind == zl.UNIT:
        cosine = product * (1.0 / L.heads)
    else:
        if KNOWN == NORMS_KNOWN:
            lengths = scratch + zl.LENGTHS * BLOCK_N
            row_share = zl.inverse(tl.load(lengths + rows, mask=asked, other=0).to(tl.float32, bitcast=True))
            column_share = zl.inverse(tl.load(lengths + columns, mask=real, other=0).to(tl.float32, bitcast=True))
        elif KNOWN:
            shares = scratch + zl.SHARES * BLOCK_N
            row_share = tl.load(shares + rows).to(tl.float32, bitcast=True)
            column_share = tl.load(shares + columns, mask=real, other=0).to(tl.float32, bitcast=True)
        else:
            row_share = zl.inverse(tl.sqrt_rn(tl.sum(row_squares, axis=1)))
            column_share = zl.inverse(tl.sqrt_rn(tl.sum(column_squares, axis=1)))
        cosine = product * row_share[:, None] * column_share[None, :]
    return cosine


@triton.jit
def token_numbers(names, place, real, leading):
    """Places, among the unprotected tokens, of the tokens in a list."""
    return tl.load(names + place, mask=real, other=leading).to(tl.int32) - leading


@triton.jit
def match(
    base,
    source,
    target,
    scratch,
    n,
    r,
    leading,
    L: tl.constexpr,
    KNOWN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Step 3 for all sources of one window, by the program that has selected them."""
    place = tl.arange(0, BLOCK_R)
    asked = place < r
    rows = token_numbers(source, place, asked, leading)
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    free = tl.load(scratch + zl.GONE * BLOCK_N + index, mask=inside, other=1) == 0
    cosine = cosines(base, rows, asked, index, inside, scratch, L, KNOWN, BLOCK_N, BLOCK_R, BLOCK_N, BLOCK_K, 0)
    column = zl.best_column(cosine, free, index, BLOCK_N)
    tl.store(target + place, (column + leading).to(tl.int64), mask=asked)


@triton.jit
def tile_of_all(z3, z3_window, scratch, tile, n, leading, S: tl.constexpr):
    """Cosines between two blocks of tokens. Spaces are rows of UNIT vectors, or z1, whose norms are known."""
    window = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(n, S.block_c)
    rows = tile // blocks * S.block_r + tl.arange(0, S.block_r)
    column = tile % blocks * S.block_c + tl.arange(0, S.block_c)
    real, inside = rows < n, column < n
    scratch += window * (S.rows * S.block_n)
    base = z3 + window * z3_window * S.z3.align + leading * S.z3.step
    cosine = cosines(
        base, rows, real, column, inside, scratch, S.z3, S.known, S.block_n, S.block_r, S.block_c, S.block_k, S.stages
    )
    at = scratch + (rows + S.first_row)[:, None] * S.block_n + column[None, :]
    tl.store(at, cosine.to(tl.int32, bitcast=True), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["stays", "n", "r", "leading", "z3_window"])
def match_kernel(
    z3, z3_window, kept, source, target, scratch, stays, n, r, leading, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Step 3 behind `select_kernel` for a block of sources, among the tokens that stay."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * S.block_r + tl.arange(0, S.block_r)
    asked = place < r
    rows = token_numbers(source + window * r, place, asked, leading)
    order = tl.arange(0, S.block_c)
    free = order < n - r
    index = token_numbers(kept + window * stays + leading, order, free, leading)
    scratch += window * (S.rows * S.block_n)
    base = z3 + window * z3_window * S.z3.align + leading * S.z3.step
    cosine = cosines(
        base, rows, asked, index, free, scratch, S.z3, S.known, S.block_n, S.block_r, S.block_c, S.block_k, S.stages
    )
    column = zl.best_column(cosine, free, index, S.block_n)
    tl.store(target + window * r + place, (column + leading).to(tl.int64), mask=asked)


@triton.jit(do_not_specialize=["n", "r", "leading"])
def closest_kernel(target, scratch, n, r, leading, S: tl.constexpr, OVERLAP: tl.constexpr):
    """Step 3 behind `select_kernel` where that has found the cosines of all pairs, for one token and by one warp.

    Most tokens are no sources, but starting from the sources would take two loads that wait for each other.
    """
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    scratch += window * (S.rows * S.block_n)
    token = tl.program_id(1) + tl.arange(0, 1)
    index = tl.arange(0, S.block_n)
    inside = index < n
    at = scratch + (token + S.first_row)[:, None] * S.block_n + index[None, :]
    cosine = tl.load(at, mask=inside[None, :], other=0).to(tl.float32, bitcast=True)
    free = tl.load(scratch + zl.GONE * S.block_n + index, mask=inside, other=1) == 0
    place = tl.load(scratch + zl.GONE * S.block_n + token) - 1  # of a source, else -1
    found = zl.best_column(cosine, free, index, S.block_n) + leading
    tl.store(target + window * r + place, found.to(tl.int64), mask=place >= 0)


@dataclass(frozen=True)
class Match:
    """Step 3 behind the program that selects: the closest of the tokens that stay, or a lookup of known cosines."""

    sizes: MatchSizes
    warps: int
    is_lookup: bool

    def run(
        self, z3: Tensor, kept: Tensor, source: Tensor, target: Tensor, scratch: Tensor, n: int, leading: int
    ) -> None:
        """Start the kernel."""
        batch, r = source.shape
        if self.is_lookup:
            zl.launch(closest_kernel, (batch, n), 1, target, scratch, n, r, leading, sizes=self.sizes)
            return
        grid, window = (batch, -(-r // self.sizes.block_r)), self.sizes.z3.distances(z3)[0]
        zl.launch(
            match_kernel,
            grid,
            self.warps,
            z3,
            window,
            kept,
            source,
            target,
            scratch,
            kept.shape[1],
            n,
            r,
            leading,
            sizes=self.sizes,
        )


def plan_match(z3: Layout, known: int, n: int, r: int, rows: int, device: torch.device) -> Match:
    """Sizes of the kernel that matches r of n tokens with the others."""
    columns = zl.power_of_two(n - r, 16)
    wide = z3.bytes > 2
    block_r, block_k = 16 if r <= 16 or wide else 32, min(zl.power_of_two(z3.width, 16), FEATURES)
    size = (columns + block_r) * block_k * z3.bytes * (2 if z3.kind == zl.UNIT.value else 1)
    warps = 4 if block_r == 32 and columns <= 256 else 16 if wide and columns > 256 else 8
    stages = 3 if 2 * size <= _shared_memory(device) else 2
    return Match(MatchSizes(z3, known, zl.power_of_two(n, 16), columns, block_r, block_k, stages, rows), warps, False)


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; on a CPU what the smallest GPUs since Ampere give it."""
    about = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(about, "shared_memory_per_block_optin", 99 * 1024))


# -- places of original tokens -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FollowSizes:
    """Compile-time numbers of `follow_kernel`."""

    block_s: int
    block_t: int = 64


@triton.jit(do_not_specialize=["places_window", "places_step", "count", "r"])
def follow_kernel(places, places_window, places_step, source, target, out, count, r, S: tl.constexpr):
    """Where original tokens `block_t i` to `block_t (i + 1)` of one window stand after another pooling; -1 stays -1."""
    window = tl.program_id(0).to(tl.int64)
    source += window * r
    target += window * r
    token = tl.program_id(1) * S.block_t + tl.arange(0, S.block_t)
    inside = token < count
    at = window * places_window + token.to(tl.int64) * places_step
    place = tl.load(places + at, mask=inside, other=-1).to(tl.int32)
    some = tl.arange(0, S.block_s)
    way = tl.zeros((S.block_t,), tl.int32)
    for start in range(0, r, S.block_s):
        real = start + some < r
        left = tl.load(source + start + some, mask=real, other=NO_TOKEN).to(tl.int32)
        joined = tl.load(target + start + some, mask=real, other=0).to(tl.int32)
        way += tl.sum(tl.where(place[:, None] == left[None, :], (joined - left)[None, :], 0), axis=1)
    place += way
    below = tl.zeros((S.block_t,), tl.int32)
    for start in range(0, r, S.block_s):
        left = tl.load(source + start + some, mask=start + some < r, other=NO_TOKEN).to(tl.int32)
        below += tl.sum((left[None, :] < place[:, None]).to(tl.int32), axis=1)
    tl.store(out + window * count + token, (place - below).to(tl.int64), mask=inside)


def follow(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Places (B, T0) of original tokens after another pooling.

    Parameters
    ----------
    places : Tensor of int64, shape (B, T0)
        Places before it; -1 where a token was dropped.
    source, target : Tensor of int64, shape (B, r)
        Targets are kept tokens or -1, kept tokens stay in their order and nothing is appended.
    """
    batch, count = places.shape
    r = int(source.shape[1])
    out = torch.empty((batch, count), dtype=torch.int64, device=places.device)
    if not out.numel():
        return out
    sizes = FollowSizes(min(_SOURCES, zl.power_of_two(r, 16)))
    args = places, *places.stride(), source.contiguous(), target.contiguous(), out, count, r, zl.constants(sizes)
    with torch.cuda.device_of(places):
        grid = batch, -(-count // sizes.block_t)
        follow_kernel[grid](*args, num_warps=max(1, sizes.block_t * sizes.block_s // _PAIRS))
    return out
