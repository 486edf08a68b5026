# mypy: ignore-errors
"""Steps 1 and 2 for somewhat more tokens than a power of two: 304 of them as 256 and 64 more, not as 512.

Kernel language, see `triton_language`. What is read was prepared, see `triton_prepare`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    CLOSED,
    GONE,
    LENGTHS,
    SHARES,
    higher,
    inverse,
    keys,
    over_pivots,
    share_of,
    top_of,
    units,
    write_ends,
    write_part,
)


@triton.jit
def lengths_of(scratch, index, inside, BLOCK_N: tl.constexpr):
    """Norms in z1."""
    return tl.load(scratch + LENGTHS * BLOCK_N + index, mask=inside, other=0).to(tl.float32, bitcast=True)


@triton.jit
def select_in_two(
    base, kept, source, scratch, n, r, pivots, leading, trailing, share, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr,
    MORE: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """As `select_kernel` does with one window of more than FIRST and at most FIRST + MORE unprotected tokens.

    Norms in z1 lie in scratch, and z2 has rows of UNIT vectors.
    """
    index, more = tl.arange(0, FIRST), FIRST + tl.arange(0, MORE)
    every, inside = index >= 0, more < n

    # Step 1: the longest tokens in z1 are pivots.
    length, more_length = lengths_of(scratch, index, every, BLOCK_N), lengths_of(scratch, more, inside, BLOCK_N)
    if KNOWN:
        tl.store(scratch + SHARES * BLOCK_N + index, inverse(length).to(tl.int32, bitcast=True))
        tl.store(scratch + SHARES * BLOCK_N + more, inverse(more_length).to(tl.int32, bitcast=True), mask=inside)
    if SOON:
        values = units(base, index, every, 0, WIDTH, STEP, BLOCK)
        more_values = units(base, more, inside, 0, WIDTH, STEP, BLOCK)
    factor = share_of(tl.maximum(top_of(length, every), top_of(more_length, inside)))
    key = keys(length, factor, index, 1, BLOCK_N)
    more_key = tl.where(inside, keys(more_length, factor, more, 1, BLOCK_N), CLOSED)
    pivot = higher(key, key) + higher(key, more_key) < pivots
    more_pivot = (higher(more_key, key) + higher(more_key, more_key) < pivots) & inside

    # Step 2: of the others, the r that are closest to the mean pivot in z2 are redundant.
    products, more_products = tl.zeros((FIRST, BLOCK), tl.float32), tl.zeros((MORE, BLOCK), tl.float32)
    for first in tl.static_range(0, WIDTH, BLOCK):
        if not SOON:
            values = units(base, index, every, first, WIDTH, STEP, BLOCK)
            more_values = units(base, more, inside, first, WIDTH, STEP, BLOCK)
        prototype = (over_pivots(values, pivot) + over_pivots(more_values, more_pivot))[None, :]
        products += values * prototype
        more_products += more_values * prototype
    score, more_score = tl.sum(products, axis=1) * (1.0 / HEADS), tl.sum(more_products, axis=1) * (1.0 / HEADS)
    key = tl.where(pivot == 0, keys(score, share, index, -1, BLOCK_N), CLOSED)
    more_key = tl.where(inside & (more_pivot == 0), keys(more_score, share, more, -1, BLOCK_N), CLOSED)
    goes = higher(key, key) + higher(key, more_key) < r
    more_goes = (higher(more_key, key) + higher(more_key, more_key) < r) & inside

    place = write_part(goes, every, index, 0, kept, source, leading)
    more_place = write_part(more_goes, inside, more, tl.sum(goes.to(tl.int32), axis=0), kept, source, leading)
    write_ends(index, kept, n, r, leading, trailing, FIRST)
    tl.store(scratch + GONE * BLOCK_N + index, tl.where(goes, place + 1, 0))
    tl.store(scratch + GONE * BLOCK_N + more, tl.where(more_goes, more_place + 1, 0), mask=inside)
