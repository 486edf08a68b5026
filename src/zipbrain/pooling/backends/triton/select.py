# mypy: ignore-errors
"""Triton kernels for steps 1 and 2: one program scores and splits a window, and matches its few redundant tokens.

What is read of heads was made into rows of unit vectors before, and norms in z1 were measured: see `triton_prepare`.
Where a GPU has room, other programs find the cosines of all pairs meanwhile. Kernel language, see `triton_language`.

One program per window leaves a GPU waiting for memory, not for arithmetic: loops over features are unrolled, so that
all loads are under way at once, and what two steps need is kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    ALL_AT_ONCE,
    CLOSED,
    GONE,
    KEYS,
    LENGTHS,
    SCORES,
    SHARES,
    UNIT,
    UNROLLED,
    X,
    after_others,
    highest,
    inverse,
    keys,
    longest,
    norms,
    over_pivots,
    read,
    units,
    write_split,
)
from zipbrain.pooling.backends.triton.match import match, tile_of_all
from zipbrain.pooling.backends.triton.select_two import select_in_two


@triton.jit
def times_prototype(values, pivot):
    """Features of some tokens, times their sums over the pivots."""
    return values * over_pivots(values, pivot)[None, :]


@triton.jit
def score_of(
    base, index, inside, pivot, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cosines (BLOCK_N,) with the sum of the pivots' unit vectors, and the inverse norms."""
    products = tl.zeros((BLOCK_N, BLOCK), tl.float32)
    if KIND == UNIT:
        own = tl.full((BLOCK_N,), 1.0 / HEADS, tl.float32)
        if WIDTH <= UNROLLED:
            for first in tl.static_range(0, WIDTH, BLOCK):
                products += times_prototype(units(base, index, inside, first, WIDTH, STEP, BLOCK), pivot)
        else:
            for first in tl.range(0, WIDTH, BLOCK, num_stages=1):
                products += times_prototype(units(base, index, inside, first, WIDTH, STEP, BLOCK), pivot)
    elif WIDTH <= BLOCK:
        values = read(base, index, inside, 0, 0, 0, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
        own = inverse(tl.sqrt_rn(tl.sum(values * values, axis=1)))
        prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
        products += values * prototype[None, :]
    else:
        own = inverse(norms(base, index, inside, 0, 0, X, 1, WIDTH, STEP, BLOCK_N, BLOCK))
        for first in tl.static_range(0, WIDTH, BLOCK):
            values = read(base, index, inside, 0, 0, first, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
            prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
            products += values * prototype[None, :]
    return tl.sum(products, axis=1) * own, own


# Numbers that change from layer to layer are no part of what is compiled: one kernel serves many layers. Distances come
# in units of ALIGN, a constant, so that the compiler knows how wide a load may be.
_COUNTS = ["n", "r", "pivots", "leading", "trailing"]
_DISTANCES = ["z1_window", "z2_window", "z3_window"]


@triton.jit(do_not_specialize=[*_COUNTS, *_DISTANCES])
def select_kernel(
    z1, z1_window, z2, z2_window, z3, z3_window, kept, source, target, scratch, n, r, pivots, leading, trailing, share,
    WIDTH1: tl.constexpr, STEP1: tl.constexpr, ALIGN1: tl.constexpr,
    KIND2: tl.constexpr, HEADS2: tl.constexpr, WIDTH2: tl.constexpr, STEP2: tl.constexpr, ALIGN2: tl.constexpr,
    KIND3: tl.constexpr, HEADS3: tl.constexpr, WIDTH3: tl.constexpr, STEP3: tl.constexpr, ALIGN3: tl.constexpr,
    GIVEN: tl.constexpr, PARTS: tl.constexpr, SCORED: tl.constexpr, SAME: tl.constexpr, KNOWN: tl.constexpr,
    MATCHED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_1: tl.constexpr, BLOCK_2: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, TILE_R: tl.constexpr, TILE_C: tl.constexpr,
    STAGES: tl.constexpr, FIRST_ROW: tl.constexpr, SOON: tl.constexpr, MORE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Steps 1 and 2 of one window, and 3 if MATCHED. Spaces are x or rows of UNIT vectors.

    GIVEN: norms in z1 lie in scratch, and z1 is not read. PARTS: so do pivots, and scores by so many parts of z2. SAME:
    z2 is z1. KNOWN: z3 is z1 (1) or z2 (2), whose norms are kept for it. ROWS: of a window's scratch. TILE_R, TILE_C,
    if any: all programs but the first find cosines of so many tokens with so many others meanwhile, their loads STAGES
    steps ahead, for rows of scratch from FIRST_ROW on. SOON: UNIT vectors in z2 are read before the pivots are known.
    MORE: how many tokens there can be beyond half of BLOCK_N, if that is little, see `select_in_two`; else 0.
    DEPENDENT: as in `after_others`.
    """
    after_others(DEPENDENT)
    if TILE_R > 0 and tl.program_id(1) > 0:
        tile_of_all(
            z3, z3_window, scratch, tl.program_id(1) - 1, n, leading, KIND3, HEADS3, WIDTH3, STEP3, ALIGN3, BLOCK_N,
            TILE_R, TILE_C, BLOCK_K, STAGES, FIRST_ROW, ROWS,
        )  # fmt: skip
    elif MORE > 0:
        tl.static_assert(GIVEN and SCORED and KIND2 == UNIT and PARTS == 0 and KNOWN < 2 and not MATCHED)
        window = tl.program_id(0).to(tl.int64)
        select_in_two(
            z2 + window * z2_window * ALIGN2 + leading * STEP2, kept + window * (leading + n + trailing - r),
            source + window * r, scratch + window * (ROWS * BLOCK_N), n, r, pivots, leading, trailing, share, HEADS2,
            WIDTH2, STEP2, KNOWN, BLOCK_N, BLOCK_2, BLOCK_N // 2, MORE, SOON,
        )  # fmt: skip
    else:
        window = tl.program_id(0).to(tl.int64)
        total = leading + n + trailing
        kept += window * (total - r)
        source += window * r
        target += window * r
        scratch += window * (ROWS * BLOCK_N)
        index = tl.arange(0, BLOCK_N)
        inside = index < n

        # Step 1: the longest tokens in z1 are pivots.
        if GIVEN:
            at = scratch + LENGTHS * BLOCK_N + index
            length = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
        elif WIDTH1 <= BLOCK_1:
            base = z1 + window * z1_window * ALIGN1 + leading * STEP1
            first_values = read(base, index, inside, 0, 0, 0, X, 1, WIDTH1, STEP1, BLOCK_1).to(tl.float32)
            length = tl.sqrt_rn(tl.sum(first_values * first_values, axis=1))
        else:
            base = z1 + window * z1_window * ALIGN1 + leading * STEP1
            length = norms(base, index, inside, 0, 0, X, 1, WIDTH1, STEP1, BLOCK_N, BLOCK_1)
        if KNOWN == 1:
            tl.store(scratch + SHARES * BLOCK_N + index, inverse(length).to(tl.int32, bitcast=True))
        if PARTS > 0:
            pivot = (tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=0) != 0) & inside
        else:
            if SOON:  # while one program ranks, nobody else on its multiprocessor has anything to read
                base = z2 + window * z2_window * ALIGN2 + leading * STEP2
                second_values = units(base, index, inside, 0, WIDTH2, STEP2, BLOCK_2)
            pivot = longest(length, scratch, index, inside, n, pivots, False, BLOCK_N, BLOCK_J)

        # Step 2: of the others, the r that are closest to the mean pivot in z2 are redundant.
        if SCORED:
            if PARTS > 0:
                at = scratch + SCORES * BLOCK_N + index
                score = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
                for part in tl.static_range(1, PARTS):
                    score += tl.load(at + part * BLOCK_N, mask=inside, other=0).to(tl.float32, bitcast=True)
                score = score * (1.0 / HEADS2)
            elif SOON:
                # Added to zeros, as in `score_of`: else products were fused with their sum, and rounded otherwise.
                products = tl.zeros((BLOCK_N, BLOCK_2), tl.float32)
                products += times_prototype(second_values, pivot)
                score = tl.sum(products, axis=1) * (1.0 / HEADS2)
            elif SAME:
                own = inverse(length)
                base = z2 + window * z2_window * ALIGN2 + leading * STEP2
                products = tl.zeros((BLOCK_N, BLOCK_2), tl.float32)
                for first in tl.static_range(0, WIDTH2, BLOCK_2):
                    if WIDTH2 <= BLOCK_2 and not GIVEN:
                        values = first_values
                    else:
                        values = read(base, index, inside, 0, 0, first, X, 1, WIDTH2, STEP2, BLOCK_2)
                        values = values.to(tl.float32)
                    prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
                    products += values * prototype[None, :]
                score = tl.sum(products, axis=1) * own
            else:
                score, own = score_of(
                    z2 + window * z2_window * ALIGN2 + leading * STEP2, index, inside, pivot, KIND2, HEADS2, WIDTH2,
                    STEP2, BLOCK_N, BLOCK_2,
                )  # fmt: skip
            if KNOWN == 2:
                tl.store(scratch + SHARES * BLOCK_N + index, own.to(tl.int32, bitcast=True))
            key = tl.where(inside & (pivot == 0), keys(score, share, index, -1, BLOCK_N), CLOSED)
            room = scratch + KEYS * BLOCK_N
            FOUND: tl.constexpr = PARTS > 0 and not MATCHED
            redundant = highest(key, room, index, n, r, ALL_AT_ONCE, FOUND, BLOCK_N, BLOCK_J) & inside
        else:  # nothing is left to choose
            redundant = inside & (pivot == 0)

        place = write_split(redundant, inside, index, kept, source, n, r, leading, trailing, BLOCK_N)
        tl.store(scratch + GONE * BLOCK_N + index, tl.where(redundant, place + 1, 0), mask=inside)

        if MATCHED:
            tl.debug_barrier()
            match(
                z3 + window * z3_window * ALIGN3 + leading * STEP3, source, target, scratch, n, r, leading, KIND3,
                HEADS3, WIDTH3, STEP3, KNOWN, BLOCK_N, BLOCK_R, BLOCK_K,
            )  # fmt: skip


@triton.jit(do_not_specialize=["n", "leading", "pivots", "z2_window"])
def score_kernel(
    z2, z2_window, scratch, n, leading, pivots, WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """What some features of wide rows of UNIT vectors add to the scores of step 2; the first program tells the pivots.

    Every program finds the pivots itself, which takes less time than another launch.
    """
    after_others(DEPENDENT)
    tl.static_assert(BLOCK_N <= ALL_AT_ONCE)  # beyond, the programs of a window would share memory
    window = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    scratch += window * (ROWS * BLOCK_N)
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    length = tl.load(scratch + LENGTHS * BLOCK_N + index, mask=inside, other=0).to(tl.float32, bitcast=True)
    pivot = longest(length, scratch, index, inside, n, pivots, True, BLOCK_N, BLOCK_N)
    tl.store(scratch + GONE * BLOCK_N + index, pivot.to(tl.int32), mask=inside & (part == 0))
    base = z2 + window * z2_window * ALIGN + leading * STEP
    values = units(base, index, inside, part * BLOCK, WIDTH, STEP, BLOCK)
    score = tl.sum(times_prototype(values, pivot), axis=1)
    tl.store(scratch + (part + SCORES) * BLOCK_N + index, score.to(tl.int32, bitcast=True), mask=inside)
