# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels for steps 1 and 2: one program scores and splits a window, and matches its few redundant tokens.

Heads were made into rows of unit vectors before, and norms in z1 were measured, see `prepare`. One program per window
leaves a GPU waiting for memory, not for arithmetic: loops over features are unrolled, so that all loads are under way
at once, and what two steps need is kept. With few windows, other programs find the cosines of all pairs meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.entry import MOST_TOKENS, has_idle_processors
from zipbrain.pooling.backends.triton.language import Layout
from zipbrain.pooling.backends.triton.match import (
    FEATURES,
    NORMS_KNOWN,
    Match,
    MatchSizes,
    match,
    plan_match,
    tile_of_all,
)
from zipbrain.pooling.backends.triton.prepare import Branch, Preparation, plan_preparation
from zipbrain.pooling.steps import RESOLUTION

_BLOCK_J = 32  # keys compared at a time where all pairs at once are too many
_FEW = 32  # sources that are matched by the program that selected them,
_NARROW = 64  # unless z3 has float32 or unit vectors of more features than this
_PART = 64  # features of wide rows that one program scores
_TILE = 32, 64  # tokens by tokens of all pairs; 64 rows would take other instructions
_TILE_STAGES = 3  # loads under way
_MANY = 16  # tokens from which on cosines of all pairs are found beside the split


@dataclass(frozen=True)
class SelectSizes:
    """Compile-time numbers of `select_kernel`."""

    z1: Layout
    z2: Layout
    z3: Layout
    has_norms: bool  # norms in z1 lie in scratch, and z1 is not read
    is_scored: bool  # False if all that are no pivots go
    is_matched: bool  # step 3 as well
    has_tiles: bool  # all programs but the first find cosines of all pairs
    parts: int  # if any, pivots lie in scratch too, and scores by so many parts of z2
    known: int  # z3 is z1 (1) or z2 (2), whose inverse norms are kept for it
    tile: MatchSizes | None
    block_n: int
    block_1: int
    block_2: int
    block_r: int
    block_k: int
    rows: int  # of a window's scratch
    block_j: int = _BLOCK_J


@dataclass(frozen=True)
class ScoreSizes:
    """Compile-time numbers of `score_kernel`."""

    z2: Layout
    block_n: int
    rows: int
    block: int = _PART


@triton.jit
def longest(
    length, scratch, index, inside, n, pivots, LOADED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_J: tl.constexpr
):
    """Mark the pivots."""
    key = tl.where(inside, zl.keys(length, zl.share_of(zl.top_of(length, inside)), index, 1, BLOCK_N), zl.CLOSED)
    return (
        zl.highest(key, scratch + zl.KEYS * BLOCK_N, index, n, pivots, zl.ALL_AT_ONCE, LOADED, BLOCK_N, BLOCK_J)
        & inside
    )


@triton.jit
def times_prototype(values, pivot):
    """Features of some tokens times their sums over the pivots."""
    return values * tl.sum(tl.where(pivot[:, None], values, 0.0), axis=0)[None, :]


@triton.jit
def score_of(base, index, inside, pivot, L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """Cosines (BLOCK_N,) with the sum of the pivots' unit vectors, and the inverse norms."""
    products = tl.zeros((BLOCK_N, BLOCK), tl.float32)
    if L.kind == zl.UNIT:
        own = tl.full((BLOCK_N,), 1.0 / L.heads, tl.float32)
        if L.width <= zl.UNROLLED:
            for first in tl.static_range(0, L.width, BLOCK):
                products += times_prototype(zl.units(base, index, inside, first, L, BLOCK), pivot)
        else:
            for first in tl.range(0, L.width, BLOCK, num_stages=1):
                products += times_prototype(zl.units(base, index, inside, first, L, BLOCK), pivot)
    elif L.width <= BLOCK:
        values = zl.read(base, index, inside, 0, 0, 0, L, BLOCK).to(tl.float32)
        own = zl.inverse(tl.sqrt_rn(tl.sum(values * values, axis=1)))
        prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
        products += values * prototype[None, :]
    else:
        own = zl.inverse(zl.norms(base, index, inside, 0, 0, L, BLOCK_N, BLOCK))
        for first in tl.static_range(0, L.width, BLOCK):
            values = zl.read(base, index, inside, 0, 0, first, L, BLOCK).to(tl.float32)
            prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
            products += values * prototype[None, :]
    return tl.sum(products, axis=1) * own, own


# Numbers that change from layer to layer are not specialised: one compiled kernel serves many layers.
_COUNTS = ["n", "r", "pivots", "leading", "trailing"]


@triton.jit(do_not_specialize=[*_COUNTS, "z1_window", "z2_window", "z3_window"])
def select_kernel(
    z1,
    z1_window,
    z2,
    z2_window,
    z3,
    z3_window,
    kept,
    source,
    target,
    scratch,
    n,
    r,
    pivots,
    leading,
    trailing,
    share,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Steps 1 and 2 of one window, and 3 if wanted. Spaces are x or rows of UNIT vectors."""
    zl.wait_for_previous(OVERLAP)
    if S.has_tiles and tl.program_id(1) > 0:
        tile_of_all(z3, z3_window, scratch, tl.program_id(1) - 1, n, leading, S.tile)
    else:
        window = tl.program_id(0).to(tl.int64)
        total = leading + n + trailing
        kept += window * (total - r)
        source += window * r
        target += window * r
        scratch += window * (S.rows * S.block_n)
        index = tl.arange(0, S.block_n)
        inside = index < n

        # Step 1: the longest tokens in z1 are pivots.
        if S.has_norms:
            at = scratch + zl.LENGTHS * S.block_n + index
            length = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
        elif S.z1.width <= S.block_1:
            base = z1 + window * z1_window * S.z1.align + leading * S.z1.step
            first_values = zl.read(base, index, inside, 0, 0, 0, S.z1, S.block_1).to(tl.float32)
            length = tl.sqrt_rn(tl.sum(first_values * first_values, axis=1))
        else:
            base = z1 + window * z1_window * S.z1.align + leading * S.z1.step
            length = zl.norms(base, index, inside, 0, 0, S.z1, S.block_n, S.block_1)
        if S.known == 1:
            tl.store(scratch + zl.SHARES * S.block_n + index, zl.inverse(length).to(tl.int32, bitcast=True))
        if S.parts > 0:
            pivot = (tl.load(scratch + zl.GONE * S.block_n + index, mask=inside, other=0) != 0) & inside
        else:
            pivot = longest(length, scratch, index, inside, n, pivots, False, S.block_n, S.block_j)

        # Step 2: of the others, the r that are closest to the mean pivot in z2 are redundant.
        if S.is_scored:
            if S.parts > 0:
                at = scratch + zl.SCORES * S.block_n + index
                score = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
                for part in tl.static_range(1, S.parts):
                    score += tl.load(at + part * S.block_n, mask=inside, other=0).to(tl.float32, bitcast=True)
                score = score * (1.0 / S.z2.heads)
            else:
                base = z2 + window * z2_window * S.z2.align + leading * S.z2.step
                score, own = score_of(base, index, inside, pivot, S.z2, S.block_n, S.block_2)
            if S.known == 2:
                tl.store(scratch + zl.SHARES * S.block_n + index, own.to(tl.int32, bitcast=True))
            key = tl.where(inside & (pivot == 0), zl.keys(score, share, index, -1, S.block_n), zl.CLOSED)
            ranks = scratch + zl.KEYS * S.block_n
            LOADED: tl.constexpr = S.parts > 0 and not S.is_matched
            redundant = zl.highest(key, ranks, index, n, r, zl.ALL_AT_ONCE, LOADED, S.block_n, S.block_j) & inside
        else:  # all others go
            redundant = inside & (pivot == 0)

        place = zl.write_part(redundant, inside, index, 0, kept, source, leading)
        zl.write_ends(index, kept, n, r, leading, trailing, S.block_n)
        tl.store(scratch + zl.GONE * S.block_n + index, tl.where(redundant, place + 1, 0), mask=inside)
        if S.is_matched:
            tl.debug_barrier()  # other threads of this program read it
            base = z3 + window * z3_window * S.z3.align + leading * S.z3.step
            match(base, source, target, scratch, n, r, leading, S.z3, S.known, S.block_n, S.block_r, S.block_k)


@triton.jit(do_not_specialize=["n", "leading", "pivots", "z2_window"])
def score_kernel(z2, z2_window, scratch, n, leading, pivots, S: tl.constexpr, OVERLAP: tl.constexpr):
    """Partial scores of step 2 by some features of wide rows of UNIT vectors; the first program writes the pivots.

    Every program finds the pivots itself, which takes less time than another launch.
    """
    zl.wait_for_previous(OVERLAP)
    tl.static_assert(S.block_n <= zl.ALL_AT_ONCE)  # beyond, the programs of a window would share memory
    window = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    scratch += window * (S.rows * S.block_n)
    index = tl.arange(0, S.block_n)
    inside = index < n
    length = tl.load(scratch + zl.LENGTHS * S.block_n + index, mask=inside, other=0).to(tl.float32, bitcast=True)
    pivot = longest(length, scratch, index, inside, n, pivots, True, S.block_n, S.block_n)
    tl.store(scratch + zl.GONE * S.block_n + index, pivot.to(tl.int32), mask=inside & (part == 0))
    base = z2 + window * z2_window * S.z2.align + leading * S.z2.step
    values = zl.units(base, index, inside, part * S.block, S.z2, S.block)
    score = tl.sum(times_prototype(values, pivot), axis=1)
    tl.store(scratch + (part + zl.SCORES) * S.block_n + index, score.to(tl.int32, bitcast=True), mask=inside)


# -- launching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Kernels for tensors of certain layouts, in the order of their start."""

    prepare: Preparation
    scores: ScoreSizes | None
    score_warps: int
    select: SelectSizes
    select_warps: int
    tiles: int  # of all pairs
    match: Match | None  # None where the program that selects matches


def group(
    spaces: list[Tensor], kinds: list[int], counts: zl.Counts, x: Tensor, branch: Branch | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Steps 1 to 3: kept, source, target, and x with its branch.

    ``spaces`` are what z1, z2 and z3 read, by ``kinds`` as it is (0), averaged over heads (1) or per head (2). With a
    branch, z1 is x, spaces of kind 0 read x with its branch, and there are at most `MOST_TOKENS` tokens.
    """
    joined = x if branch is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if branch is not None:
        spaces = [joined if kind == 0 else values for kind, values in zip(kinds, spaces, strict=True)]
    spaces = [zl.dense(values) for values in spaces]
    batch, total = spaces[0].shape[0], int(spaces[0].shape[-2])
    n, r, pivots, leading = total - counts.leading - counts.trailing, counts.r, counts.pivots, counts.leading
    kept, source, target = zl.empty_index(spaces[0], total, r)
    if batch == 0:
        return kept, source, target, joined
    layouts = tuple(Layout.of(values, kind) for values, kind in zip(spaces, kinds, strict=True))
    same = zl.first_alike(spaces, layouts)
    with torch.cuda.device_of(spaces[0]):
        if n > MOST_TOKENS:
            from zipbrain.pooling.backends.triton import long

            long.group(spaces, layouts, same, counts, (kept, source, target))
            return kept, source, target, joined
        added = None if branch is None else (Layout.of(x, 0), branch[1] is not None)
        plan = _plan(layouts, same, (n, r, pivots), added, has_idle_processors(x), x.device)
        scratch = torch.empty((batch, plan.select.rows, plan.select.block_n), dtype=torch.int32, device=x.device)
        if plan.prepare.has_work:
            stream = (None, None, None) if branch is None else (x, branch, joined)
            spaces = plan.prepare.run(spaces, leading, n, scratch, *stream)
        if plan.scores is not None:
            args: list[Any] = [spaces[1], plan.scores.z2.distances(spaces[1])[0], scratch, n, leading, pivots]
            zl.launch(score_kernel, (batch, plan.select.parts), plan.score_warps, *args, sizes=plan.scores)
        args = []
        for values, layout in zip(spaces, (plan.select.z1, plan.select.z2, plan.select.z3), strict=True):
            args += [None, 0] if layout == zl.UNREAD else [values, layout.distances(values)[0]]
        if plan.select.parts:
            args[2] = None  # its scores lie in scratch
        args += [kept, source, target, scratch, n, r, pivots, leading, counts.trailing, 1.0 / RESOLUTION / pivots]
        zl.launch(select_kernel, (batch, 1 + plan.tiles), plan.select_warps, *args, sizes=plan.select)
        if plan.match is not None:
            plan.match.run(spaces[2], kept, source, target, scratch, n, leading)
    return kept, source, target, joined


@cache
def _plan(
    spaces: tuple[Layout, ...],
    same: tuple[int, ...],
    counts: tuple[int, int, int],
    added: tuple[Layout, bool] | None,
    is_idle: bool,
    device: torch.device,
) -> _Plan:
    """Kernels and sizes for these layouts.

    A window must get the same groups in any batch, to the last bit. So what depends on the batch (``is_idle``) is which
    program finds a number and when, never how: the same products in the same order, by the same instructions.
    """
    n, r, pivots = counts
    block_n = zl.power_of_two(n, 16)
    is_scored = pivots < n - r
    prepare = plan_preparation(spaces, same, is_scored, added)
    z1, z2, z3 = prepare.layouts
    has_norms, unit = prepare.has_norms, zl.UNIT.value
    known = 1 if same[2] == 0 else 2 if is_scored and same[2] == 1 else 0
    known = 0 if z3.kind != 0 else known  # unit vectors have length 1
    is_wide_row = is_scored and has_norms and z2.kind == unit and block_n <= zl.ALL_AT_ONCE.value
    parts = -(-z2.width // _PART) if is_wide_row and z2.width > _PART else 0
    has_tiles = is_idle and n > _MANY and z3.width > _NARROW and (z3.kind == unit or (known == 1 and has_norms))
    is_small = r <= _FEW and (z3.width <= _NARROW or (z3.kind != unit and z3.bytes <= 2))  # for one program
    is_matched = is_small and not has_tiles
    first_row = zl.SCORES.value + parts  # of the cosines
    rows = first_row + (block_n if has_tiles else 0)
    block_k = min(zl.power_of_two(z3.width, 16), FEATURES)
    tile = MatchSizes(z3, NORMS_KNOWN.value, block_n, _TILE[1], _TILE[0], block_k, _TILE_STAGES, rows, first_row)
    used = not has_norms, is_scored, is_matched or has_tiles
    one, two, three = (space if use else zl.UNREAD for space, use in zip((z1, z2, z3), used, strict=True))
    how = has_norms, is_scored, is_matched, has_tiles
    block_r = 16 if r <= 16 or not is_matched else 32
    blocks = block_n, one.block, two.block, block_r, block_k if used[2] else 1, rows
    select = SelectSizes(one, two, three, *how, parts, 0 if has_tiles else known, tile if has_tiles else None, *blocks)
    # Warps decide on the order of sums, so they must not depend on the batch.
    held = [space for space, use in zip((z1, z2, z3), (used[0], is_scored and not parts, is_small), strict=True) if use]
    is_much = any(space.width > _NARROW and (space.bytes > 2 or block_n > 256) for space in held)
    by_token = min(block_n // 32, 8) or 1  # a thread for every token
    warps = by_token if parts and not is_matched else 4 if block_n <= 128 else 16 if is_much else 8
    tiles = -(-n // _TILE[0]) * -(-n // _TILE[1]) if has_tiles else 0
    after = None if is_matched else Match(tile, 1, True) if has_tiles else plan_match(z3, known, n, r, rows, device)
    scores = ScoreSizes(z2, block_n, rows) if parts else None
    return _Plan(prepare, scores, by_token, select, warps, tiles, after)
