# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels for windows of more tokens than one program holds: steps 1 to 3, one kernel for each dependency.

Every program owns a block of tokens of one window; sums over all tokens are added up in a fixed order. So there are no
atomics here either, and a window gets the same groups in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.entry import Index
from zipbrain.pooling.backends.triton.language import Layout
from zipbrain.pooling.backends.triton.prepare import plan_preparation
from zipbrain.pooling.steps import RESOLUTION

_TOKENS = 64  # of a program that scores or ranks
_CHUNK = 256  # tokens whose pivots are added up by one program
_COLUMNS, _TILES = 64, 4  # tokens compared at a time, and how often, by a program that matches
_WIDEST = 256  # features of a product at a time
_SLENDER = 64  # features whose products fit at any precision

SPLIT = tl.constexpr(1024)  # tokens at a time when indices are written
UNROLLED = tl.constexpr(256)  # features; unrolled products of wider rows would not fit


@dataclass(frozen=True)
class RankSizes:
    """Compile-time numbers of `rank_kernel`."""

    relative: bool  # scores count as shares of the largest finite one; else some tokens are closed
    inverted: bool  # mark the others
    sign: int  # of scores that are not finite
    block_t: int = _TOKENS
    block_j: int = 256


@dataclass(frozen=True)
class SpaceSizes:
    """Compile-time numbers of `lengths_kernel`, `prototype_kernel` and `score_kernel`."""

    z: Layout
    block: int
    each: bool = False  # a norm for each head, not their mean
    padded: int = 0  # width, a multiple of ``block``
    chunks: int = 0  # a power of two that is not below their number
    chunk: int = _CHUNK
    block_t: int = _TOKENS


@dataclass(frozen=True)
class ClosestSizes:
    """Compile-time numbers of `closest_kernel` and `first_kernel`."""

    z: Layout
    second: bool  # the second pass
    parts: int  # of the columns: a power of two that is not below their number
    block_r: int
    block_k: int
    stages: int
    block_c: int = _COLUMNS
    tiles: int = _TILES


@triton.jit(do_not_specialize=["n", "leading", "z_window", "z_head"])
def lengths_kernel(z, z_window, z_head, out, n, leading, S: tl.constexpr, OVERLAP: tl.constexpr):
    """Norms (B, N), the mean over heads if per head; or (B, heads, N)."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * S.block_t + tl.arange(0, S.block_t)
    inside = index < n
    step = z_head * S.z.align
    base = z + window * z_window * S.z.align + leading * S.z.step
    NUMBER: tl.constexpr = S.z.heads if S.z.kind == zl.PER_HEAD else 1
    total = tl.zeros((S.block_t,), tl.float32)
    for head in tl.static_range(NUMBER):
        length = zl.norms(base, index, inside, head, step, S.z, S.block_t, S.block)
        if S.each:
            tl.store(out + (window * NUMBER + head) * n + index, length, mask=inside)
        total += length
    if not S.each:
        if S.z.kind == zl.PER_HEAD:
            total = total * (1.0 / S.z.heads)
        tl.store(out + window * n + index, total, mask=inside)


@triton.jit(do_not_specialize=["n", "count"])
def rank_kernel(score, closed, out, n, count, share, S: tl.constexpr, OVERLAP: tl.constexpr):
    """Mark (B, N) the `count` highest scores by counting how many are higher; `share` multiplies scores."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    score += window * n
    index = tl.program_id(1) * S.block_t + tl.arange(0, S.block_t)
    inside = index < n
    if S.relative:
        most = tl.zeros((S.block_j,), tl.float32)
        for first in range(0, n, S.block_j):
            other = first + tl.arange(0, S.block_j)
            theirs = tl.load(score + other, mask=other < n, other=0.0)
            most = tl.maximum(most, tl.where(theirs < float("inf"), theirs, 0.0))
        share = zl.share_of(tl.max(most, axis=0))
    key = zl.whole_steps(tl.load(score + index, mask=inside, other=0.0), share, S.sign)
    if not S.relative:
        closed += window * n
        key = tl.where(tl.load(closed + index, mask=inside, other=1) == 0, key, zl.CLOSED)
    higher = tl.zeros((S.block_t, S.block_j), tl.int32)
    for first in range(0, n, S.block_j):
        other = first + tl.arange(0, S.block_j)
        real = other < n
        theirs = zl.whole_steps(tl.load(score + other, mask=real, other=0.0), share, S.sign)
        if S.relative:
            theirs = tl.where(real, theirs, zl.CLOSED)
        else:
            theirs = tl.where(tl.load(closed + other, mask=real, other=1) == 0, theirs, zl.CLOSED)
        before = (theirs[None, :] == key[:, None]) & (other[None, :] < index[:, None])
        higher += ((theirs[None, :] > key[:, None]) | before).to(tl.int32)
    chosen = tl.sum(higher, axis=1) < count
    if S.inverted:
        chosen = chosen == 0
    tl.store(out + window * n + index, chosen.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["n", "leading", "chunks", "z_window", "z_head"])
def prototype_kernel(
    z, z_window, z_head, lengths, pivots, out, n, leading, chunks, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Sums of unit vectors (B, chunks, heads, padded) over the pivots of each chunk of tokens."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    BLOCKS: tl.constexpr = S.padded // S.block
    NUMBER: tl.constexpr = S.z.heads if S.z.kind == zl.PER_HEAD else 1
    what = tl.program_id(1)
    chunk, head, first = what // (BLOCKS * NUMBER), what // BLOCKS % NUMBER, what % BLOCKS * S.block
    base = z + window * z_window * S.z.align + leading * S.z.step
    index = chunk * S.chunk + tl.arange(0, S.chunk)
    inside = index < n
    values = zl.read(base, index, inside, head, z_head * S.z.align, first, S.z, S.block)
    own = zl.inverse(tl.load(lengths + (window * NUMBER + head) * n + index, mask=inside, other=1.0))
    pivot = tl.load(pivots + window * n + index, mask=inside, other=0) != 0
    total = tl.where(pivot[:, None], values.to(tl.float32) * own[:, None], 0.0)
    place = ((window * chunks + chunk) * NUMBER + head) * S.padded + first + tl.arange(0, S.block)
    tl.store(out + place, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["n", "leading", "chunks", "z_window", "z_head"])
def score_kernel(
    z, z_window, z_head, lengths, partial, out, n, leading, chunks, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Sum (B, N) of the cosines to all pivots, the mean over heads if per head."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    NUMBER: tl.constexpr = S.z.heads if S.z.kind == zl.PER_HEAD else 1
    index = tl.program_id(1) * S.block_t + tl.arange(0, S.block_t)
    inside = index < n
    base = z + window * z_window * S.z.align + leading * S.z.step
    partial += window * chunks * NUMBER * S.padded
    chunk = tl.arange(0, S.chunks)
    score = tl.zeros((S.block_t,), tl.float32)
    for head in tl.static_range(NUMBER):
        products = tl.zeros((S.block_t, S.block), tl.float32)
        for first in tl.static_range(0, S.padded, S.block):
            at = partial + (chunk * NUMBER + head)[:, None] * S.padded + first + tl.arange(0, S.block)[None, :]
            prototype = tl.sum(tl.load(at, mask=(chunk < chunks)[:, None], other=0.0), axis=0)
            values = zl.read(base, index, inside, head, z_head * S.z.align, first, S.z, S.block)
            products += values.to(tl.float32) * prototype[None, :]
        own = zl.inverse(tl.load(lengths + (window * NUMBER + head) * n + index, mask=inside, other=1.0))
        score += tl.sum(products, axis=1) * own
    if S.z.kind == zl.PER_HEAD:
        score = score * (1.0 / S.z.heads)
    tl.store(out + window * n + index, score, mask=inside)


@triton.jit(do_not_specialize=["n", "r", "leading", "trailing"])
def split_kernel(gone, kept, source, n, r, leading, trailing, OVERLAP: tl.constexpr):
    """Write which tokens stay, protected ones at both ends included, and which go, both ascending."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    gone += window * n
    kept += window * (leading + n + trailing - r)
    source += window * r
    block = tl.arange(0, SPLIT)
    left = 0  # how many went before this block
    for first in range(0, n, SPLIT):
        index = first + block
        inside = index < n
        goes = tl.load(gone + index, mask=inside, other=0)
        zl.write_part(goes != 0, inside, index, left, kept, source, leading)
        left += tl.sum(goes, axis=0)
    zl.write_ends(block, kept, n, r, leading, trailing, SPLIT)


@triton.jit
def cosines(base, rows, asked, columns, inside, head_step, lengths, n, S: tl.constexpr):
    """Cosines (block_r, block_c) between two sets of tokens."""
    cosine = tl.zeros((S.block_r, S.block_c), tl.float32)
    for head in tl.static_range(S.z.heads if S.z.kind == zl.PER_HEAD else 1):
        product = tl.zeros((S.block_r, S.block_c), tl.float32)
        if S.z.width <= UNROLLED:
            for first in tl.static_range(0, S.z.width, S.block_k):
                a = zl.read(base, rows, asked, head, head_step, first, S.z, S.block_k)
                b = zl.read(base, columns, inside, head, head_step, first, S.z, S.block_k)
                product = zl.product_of(a, b, product)
        else:
            for first in tl.range(0, S.z.width, S.block_k, num_stages=1):
                a = zl.read(base, rows, asked, head, head_step, first, S.z, S.block_k)
                b = zl.read(base, columns, inside, head, head_step, first, S.z, S.block_k)
                product = zl.product_of(a, b, product)
        row_share = zl.inverse(tl.load(lengths + head * n + rows, mask=asked, other=1.0))
        column_share = zl.inverse(tl.load(lengths + head * n + columns, mask=inside, other=1.0))
        cosine += product * row_share[:, None] * column_share[None, :]
    if S.z.kind == zl.PER_HEAD:
        cosine = cosine * (1.0 / S.z.heads)
    return cosine


@triton.jit(do_not_specialize=["n", "r", "leading", "parts", "z_window", "z_head"])
def closest_kernel(
    z,
    z_window,
    z_head,
    lengths,
    gone,
    source,
    best,
    column,
    n,
    r,
    leading,
    parts,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Step 3 for a block of sources and one part of the columns, in two passes.

    The first writes the best cosine of each source in this part, infinite if one is NaN: `best` (B, parts, r). The
    second writes the first column near the best of all parts, N if none is here: `column` (B, parts, r).
    """
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) % parts
    place = tl.program_id(1) // parts * S.block_r + tl.arange(0, S.block_r)
    asked = place < r
    rows = tl.load(source + window * r + place, mask=asked, other=leading).to(tl.int32) - leading
    base = z + window * z_window * S.z.align + leading * S.z.step
    lengths += window * (S.z.heads if S.z.kind == zl.PER_HEAD else 1) * n
    gone += window * n
    best += window * parts * r
    column += window * parts * r
    here, least = tl.full((S.block_r,), float("-inf"), tl.float32), tl.full((S.block_r,), float("inf"), tl.float32)
    found, last = tl.zeros((S.block_r,), tl.int32) + n, n
    if S.second:
        others = tl.arange(0, S.parts)
        known = (others < parts)[:, None] & asked[None, :]
        every = tl.load(best + others[:, None] * r + place[None, :], mask=known, other=float("-inf"))
        least = tl.max(every, axis=0) - zl.RESOLUTION
        least = tl.where(least == float("inf"), float("-inf"), least)  # NaN somewhere: the first free column
        mine = tl.load(best + part * r + place, mask=asked, other=float("-inf"))
        wanted = tl.max((asked & (mine >= least)).to(tl.int32), axis=0)
        last = tl.where(wanted > 0, n, 0)
    start = part * (S.tiles * S.block_c)
    for first in tl.range(start, tl.minimum(start + S.tiles * S.block_c, last), S.block_c, num_stages=S.stages):
        columns = first + tl.arange(0, S.block_c)
        inside = columns < n
        free = tl.load(gone + columns, mask=inside, other=1) == 0
        cosine = cosines(base, rows, asked, columns, inside, z_head * S.z.align, lengths, n, S)
        cosine = tl.where(cosine == cosine, cosine, float("inf"))
        if S.second:
            near = free[None, :] & (cosine >= least[:, None])
            found = tl.minimum(found, tl.min(tl.where(near, columns[None, :], n), axis=1))
        else:
            here = tl.maximum(here, tl.max(tl.where(free[None, :], cosine, float("-inf")), axis=1))
    if S.second:
        tl.store(column + part * r + place, found, mask=asked)
    else:
        tl.store(best + part * r + place, here, mask=asked)


@triton.jit(do_not_specialize=["r", "leading", "parts"])
def first_kernel(column, target, r, leading, parts, S: tl.constexpr, OVERLAP: tl.constexpr):
    """The lowest of the columns that were found in any part."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * S.block_c + tl.arange(0, S.block_c)
    others = tl.arange(0, S.parts)
    known = (others < parts)[:, None] & (place < r)[None, :]
    at = column + window * parts * r + others[:, None] * r + place[None, :]
    lowest = tl.min(tl.load(at, mask=known, other=2**30), axis=0)
    tl.store(target + window * r + place, (lowest + leading).to(tl.int64), mask=place < r)


def group(
    spaces: list[Tensor], layouts: tuple[Layout, ...], same: tuple[int, ...], counts: zl.Counts, index: Index
) -> None:
    """Steps 1 to 3 for any number of tokens: kept, source and target are written into ``index``."""
    (kept, source, target), r, pivots, leading = index, counts.r, counts.pivots, counts.leading
    batch, n = spaces[0].shape[0], int(spaces[0].shape[-2]) - leading - counts.trailing
    is_scored = pivots < n - r
    prepare = plan_preparation(layouts, same, is_scored, units=False)
    z1, z2, z3 = prepare.run(spaces, leading, n) if prepare.has_work else spaces
    one, two, three = prepare.layouts
    tiles, chunks = -(-n // _TOKENS), -(-n // _CHUNK)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=kept.device)

    def lengths(values: Tensor, layout: Layout, each: bool) -> Tensor:
        out, sizes = empty(layout.heads if each and layout.kind == 2 else 1, n), SpaceSizes(layout, layout.block, each)
        args = values, *layout.distances(values), out, n, leading
        zl.launch(lengths_kernel, (batch, tiles), 4, *args, sizes=sizes)
        return out

    def rank(score: Tensor, closed: Tensor | None, count: int, share: float, sizes: RankSizes) -> Tensor:
        out = empty(n, dtype=torch.int32)
        zl.launch(rank_kernel, (batch, tiles), 8, score, closed, out, n, count, share, sizes=sizes)
        return out

    own = length = lengths(z1, one, each=False)
    gone = rank(length, None, pivots, 1.0, RankSizes(True, not is_scored, 1))
    if is_scored:
        if two.kind == 2 or same[1] != 0:
            own = lengths(z2, two, each=True)
        heads, padded = (two.heads if two.kind == 2 else 1), -(-two.width // two.block) * two.block
        sizes: Any = SpaceSizes(two, two.block, True, padded, zl.power_of_two(chunks))
        score, partial, at = empty(n), empty(chunks, heads, padded), (z2, *two.distances(z2))
        grid = batch, chunks * heads * (padded // two.block)
        zl.launch(prototype_kernel, grid, 8, *at, own, gone, partial, n, leading, chunks, sizes=sizes)
        zl.launch(score_kernel, (batch, tiles), 4, *at, own, partial, score, n, leading, chunks, sizes=sizes)
        gone = rank(score, gone, r, 1.0 / RESOLUTION / pivots, RankSizes(False, False, -1))
    zl.launch(split_kernel, (batch, 1), 4, gone, kept, source, n, r, leading, counts.trailing)
    if three.kind != 2 and same[2] == 0:  # norms in z3 are known from z1,
        own = length
    elif not is_scored or same[2] != same[1]:  # or from z2
        own = lengths(z3, three, each=True)
    # Float32 products and rows in several pieces take more shared memory than the smaller GPUs have.
    is_narrow = (three.bytes > 2 and (three.kind == 2 or three.width > _SLENDER)) or three.width > _WIDEST
    block_k = min(zl.power_of_two(three.width, 16), 64 if is_narrow else _WIDEST)
    block_r, parts = 16 if r <= 256 or is_narrow else 64, -(-n // (_TILES * _COLUMNS))
    best, column = empty(parts, r), empty(parts, r, dtype=torch.int32)
    args = z3, *three.distances(z3), own, gone, source, best, column, n, r, leading, parts
    for is_second in (False, True):
        sizes = ClosestSizes(three, is_second, zl.power_of_two(parts), block_r, block_k, 1 if is_narrow else 2)
        zl.launch(closest_kernel, (batch, parts * -(-r // block_r)), 4, *args, sizes=sizes)
    zl.launch(first_kernel, (batch, -(-r // _COLUMNS)), 4, column, target, r, leading, parts, sizes=sizes)
