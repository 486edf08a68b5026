# mypy: ignore-errors
"""Triton kernels for step 3: cosines of redundant tokens with others, and the closest that stays.

Kernel language, see `triton_language`. Three ways, by the same products in the same order: by the program that has
selected a window's few sources, by programs behind it (`match_kernel`), or by tiles of all pairs beside it
(`tile_of_all`), before anybody knows who the sources are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    GONE,
    LENGTHS,
    SHARES,
    UNIT,
    UNROLLED,
    X,
    after_others,
    best_column,
    first_column,
    inverse,
    least_of_best,
    product_of,
    read,
    scores_of_free,
)

GIVEN = tl.constexpr(3)  # z3 is z1, whose norms lie in scratch, or has unit vectors


@triton.jit
def more_products(
    base, rows, asked, columns, real, first, product, row_squares, column_squares, KIND: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What features `first` to `first + BLOCK_K` add to products of some tokens with others, and to their squares."""
    a = read(base, rows, asked, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K)
    b = read(base, columns, real, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K)
    product = product_of(a, b, product)
    if KIND == UNIT:
        low = STEP // 2
        product = product_of(read(base + low, rows, asked, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K), b, product)
        product = product_of(a, read(base + low, columns, real, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K), product)
    elif not KNOWN:
        wide, tall = a.to(tl.float32), b.to(tl.float32)
        row_squares += wide * wide
        column_squares += tall * tall
    return product, row_squares, column_squares


@triton.jit
def over_lengths(
    product, row_squares, column_squares, rows, asked, columns, real, scratch, KIND: tl.constexpr, HEADS: tl.constexpr,
    KNOWN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Cosines from products: over the number of unit vectors in a row, or over norms that are known or found here."""
    if KIND == UNIT:
        cosine = product * (1.0 / HEADS)
    else:
        if KNOWN == GIVEN:
            lengths = scratch + LENGTHS * BLOCK_N
            row_share = inverse(tl.load(lengths + rows, mask=asked, other=0).to(tl.float32, bitcast=True))
            column_share = inverse(tl.load(lengths + columns, mask=real, other=0).to(tl.float32, bitcast=True))
        elif KNOWN:
            shares = scratch + SHARES * BLOCK_N
            row_share = tl.load(shares + rows).to(tl.float32, bitcast=True)
            column_share = tl.load(shares + columns, mask=real, other=0).to(tl.float32, bitcast=True)
        else:
            row_share = inverse(tl.sqrt_rn(tl.sum(row_squares, axis=1)))
            column_share = inverse(tl.sqrt_rn(tl.sum(column_squares, axis=1)))
        cosine = product * row_share[:, None] * column_share[None, :]
    return cosine


@triton.jit
def cosines(
    base, rows, asked, columns, real, more, more_real, scratch, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Cosines of some tokens with others (BLOCK_R, BLOCK_C), and with BLOCK_M more, if any.

    KNOWN: `scratch` has the inverse norms, or the norms.
    """
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    row_squares = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    column_squares = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    if BLOCK_M > 0:
        more_product = tl.zeros((BLOCK_R, BLOCK_M), tl.float32)
        same_squares = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
        more_squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    if WIDTH <= UNROLLED and STAGES == 0:
        tl.static_assert(BLOCK_M == 0)
        for first in tl.static_range(0, WIDTH, BLOCK_K):
            product, row_squares, column_squares = more_products(
                base, rows, asked, columns, real, first, product, row_squares, column_squares, KIND, WIDTH, STEP, KNOWN,
                BLOCK_K,
            )  # fmt: skip
    else:
        for first in tl.range(0, WIDTH, BLOCK_K, num_stages=STAGES if STAGES > 0 else 1):
            product, row_squares, column_squares = more_products(
                base, rows, asked, columns, real, first, product, row_squares, column_squares, KIND, WIDTH, STEP, KNOWN,
                BLOCK_K,
            )  # fmt: skip
            if BLOCK_M > 0:
                more_product, same_squares, more_squares = more_products(
                    base, rows, asked, more, more_real, first, more_product, same_squares, more_squares, KIND, WIDTH,
                    STEP, KNOWN, BLOCK_K,
                )  # fmt: skip
    cosine = over_lengths(
        product, row_squares, column_squares, rows, asked, columns, real, scratch, KIND, HEADS, KNOWN, BLOCK_N
    )
    others = cosine  # something must be given back
    if BLOCK_M > 0:
        others = over_lengths(
            more_product, same_squares, more_squares, rows, asked, more, more_real, scratch, KIND, HEADS, KNOWN, BLOCK_N
        )
    return cosine, others


@triton.jit
def named(names, place, real, leading):
    """Numbers among the unprotected tokens, of tokens that lie in a list."""
    return tl.load(names + place, mask=real, other=leading).to(tl.int32) - leading


@triton.jit
def match(
    base, source, target, scratch, n, r, leading, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Step 3 for all sources of one window, by the program that has selected them."""
    place = tl.arange(0, BLOCK_R)
    asked = place < r
    rows = named(source, place, asked, leading)
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    free = tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=1) == 0
    cosine, _ = cosines(
        base, rows, asked, index, inside, index, inside, scratch, KIND, HEADS, WIDTH, STEP, KNOWN, BLOCK_N, BLOCK_R,
        BLOCK_N, 0, BLOCK_K, 0,
    )  # fmt: skip
    column = best_column(cosine, free, index, BLOCK_N)
    tl.store(target + place, (column + leading).to(tl.int64), mask=asked)


@triton.jit
def match_kept(
    base, kept, source, target, scratch, first, n, r, leading, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Step 3 for sources `first` to `first + BLOCK_R` of one window, among BLOCK_C kept ones and BLOCK_M more, if any.

    Who stays has been written by then: with tokens that go nothing is multiplied.
    """
    place = first + tl.arange(0, BLOCK_R)
    asked = place < r
    rows = named(source, place, asked, leading)
    order = tl.arange(0, BLOCK_C)
    free = order < n - r
    index = named(kept + leading, order, free, leading)
    if BLOCK_M > 0:
        behind = BLOCK_C + tl.arange(0, BLOCK_M)
        more_free = behind < n - r
        more = named(kept + leading, behind, more_free, leading)
        cosine, others = cosines(
            base, rows, asked, index, free, more, more_free, scratch, KIND, HEADS, WIDTH, STEP, KNOWN, BLOCK_N, BLOCK_R,
            BLOCK_C, BLOCK_M, BLOCK_K, STAGES,
        )  # fmt: skip
        cosine, others = scores_of_free(cosine, free), scores_of_free(others, more_free)
        least = least_of_best(tl.maximum(tl.max(cosine, axis=1), tl.max(others, axis=1)))
        column = tl.minimum(
            first_column(cosine, free, index, least, BLOCK_N), first_column(others, more_free, more, least, BLOCK_N)
        )
    else:
        cosine, _ = cosines(
            base, rows, asked, index, free, index, free, scratch, KIND, HEADS, WIDTH, STEP, KNOWN, BLOCK_N, BLOCK_R,
            BLOCK_C, 0, BLOCK_K, STAGES,
        )  # fmt: skip
        column = best_column(cosine, free, index, BLOCK_N)
    tl.store(target + place, (column + leading).to(tl.int64), mask=asked)


@triton.jit
def tile_of_all(
    z3, z3_window, scratch, tile, n, leading, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, ALIGN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, FIRST_ROW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Cosines of a block of tokens with another one. Spaces are rows of UNIT vectors, or z1, whose norms are known."""
    window = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(n, BLOCK_C)
    rows = tile // blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tile % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    real, inside = rows < n, column < n
    scratch += window * (ROWS * BLOCK_N)
    cosine, _ = cosines(
        z3 + window * z3_window * ALIGN + leading * STEP, rows, real, column, inside, column, inside, scratch, KIND,
        HEADS, WIDTH, STEP, GIVEN, BLOCK_N, BLOCK_R, BLOCK_C, 0, BLOCK_K, STAGES,
    )  # fmt: skip
    at = scratch + (rows + FIRST_ROW)[:, None] * BLOCK_N + column[None, :]
    tl.store(at, cosine.to(tl.int32, bitcast=True), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["stays", "n", "r", "leading", "z3_window"])
def match_kernel(
    z3, z3_window, kept, source, target, scratch, stays, n, r, leading, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    ROWS: tl.constexpr, FLAT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Step 3 behind `select_kernel`, for a block of sources.

    FLAT: programs of one window have numbers behind each other: what one of them reads, the others find in the cache.
    """
    after_others(DEPENDENT)
    if FLAT:
        blocks = tl.cdiv(r, BLOCK_R)
        window = (tl.program_id(0) // blocks).to(tl.int64)
        block = tl.program_id(0) % blocks
    else:
        window = tl.program_id(0).to(tl.int64)
        block = tl.program_id(1)
    match_kept(
        z3 + window * z3_window * ALIGN + leading * STEP, kept + window * stays, source + window * r,
        target + window * r, scratch + window * (ROWS * BLOCK_N), block * BLOCK_R, n, r, leading, KIND, HEADS, WIDTH,
        STEP, KNOWN, BLOCK_N, BLOCK_C, BLOCK_M, BLOCK_R, BLOCK_K, STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n", "r", "leading"])
def closest_kernel(
    target, scratch, n, r, leading, BLOCK_N: tl.constexpr, FIRST_ROW: tl.constexpr, ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Step 3 behind `select_kernel` where that has found the cosines of all pairs, for one token and by one warp.

    Most tokens are no sources. But to begin with sources would take two loads that wait for each other.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    scratch += window * (ROWS * BLOCK_N)
    token = tl.program_id(1) + tl.arange(0, 1)
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    at = scratch + (token + FIRST_ROW)[:, None] * BLOCK_N + index[None, :]
    cosine = tl.load(at, mask=inside[None, :], other=0).to(tl.float32, bitcast=True)
    free = tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=1) == 0
    place = tl.load(scratch + GONE * BLOCK_N + token) - 1  # of a source, else -1
    found = best_column(cosine, free, index, BLOCK_N) + leading
    tl.store(target + window * r + place, found.to(tl.int64), mask=place >= 0)
