# mypy: ignore-errors
"""Triton kernel before step 1: what is added to x, vectors of heads, and norms in z1, by many programs of a window.

Kernel language, see `triton_language`. The one program that then splits a window finds norms, and rows of unit vectors:
the mean over heads, or all heads behind each other, whose product is the sum of the heads' cosines. Every number of
them is the sum of two float16, whose products are exact and fast.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    LENGTHS,
    MEAN,
    after_others,
    inverse,
    with_branch,
)

NOTHING, MEASURED, JOINED, SCALED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # uses of x
# What is wanted of heads: the norm of their mean, or the mean of their norms; rows as they are, rows of unit vectors,
# norms and unit vectors.
LENGTH, STORED, AS_UNITS, BOTH = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def write_pairs(rows, at, values, mask, PITCH: tl.constexpr):
    """Numbers as sums of two: the second ones lie half a row behind the first ones."""
    high = values.to(tl.float16)
    tl.store(rows + at, high, mask=mask)
    tl.store(rows + at + PITCH // 2, (values - high.to(tl.float32)).to(tl.float16), mask=mask)


@triton.jit
def of_heads(
    z, step, rows, row, real, token, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    USE: tl.constexpr, PITCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Norms of some tokens of one window in one space; rows of PITCH numbers are written if wanted."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if KIND == MEAN:
        at = z + row[:, None] * STEP + column[None, :]
        mask = real[:, None] & inside[None, :]
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        for head in tl.static_range(1, HEADS):
            values += tl.load(at + head * step, mask=mask, other=0.0).to(tl.float32)
        values = values * (1.0 / HEADS)
        length = tl.sqrt_rn(tl.sum(values * values, axis=1))
        place = token[:, None] * PITCH + column[None, :]
        if USE == STORED:
            tl.store(rows + place, values, mask=real[:, None])  # zeros fill a row
        elif USE != LENGTH:
            write_pairs(rows, place, values * inverse(length)[:, None], real[:, None], PITCH)
    else:
        head = tl.arange(0, BLOCK_H)
        at = z + row[:, None, None] * STEP + head[None, :, None] * step + column[None, None, :]
        mask = real[:, None, None] & (head < HEADS)[None, :, None] & inside[None, None, :]
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        lengths = tl.sqrt_rn(tl.sum(values * values, axis=2))
        if USE != LENGTH:
            place = token[:, None, None] * PITCH + head[None, :, None] * WIDTH + column[None, None, :]
            write_pairs(rows, place, values * inverse(lengths)[:, :, None], mask, PITCH)
        length = tl.sum(lengths, axis=1) * (1.0 / HEADS)
    return length


@triton.jit
def write_lengths(length, scratch, window, place, n, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Norms of unprotected tokens, as bits."""
    at = scratch + window * (ROWS * BLOCK_N) + LENGTHS * BLOCK_N + place
    tl.store(at, length.to(tl.int32, bitcast=True), mask=(place >= 0) & (place < n))


@triton.jit(
    do_not_specialize=[
        "x_window", "z1_window", "z1_head", "z2_window", "z2_head", "z3_window", "z3_head", "total", "n", "leading",
    ]
)  # fmt: skip
def prepare_kernel(
    x, x_window, branch, gain, out, units, z1, z1_window, z1_head, rows1, z2, z2_window, z2_head, rows2,
    z3, z3_window, z3_head, rows3, scratch, total, n, leading,
    USE: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, PITCH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    USE1: tl.constexpr, KIND1: tl.constexpr, HEADS1: tl.constexpr, WIDTH1: tl.constexpr, STEP1: tl.constexpr,
    ALIGN1: tl.constexpr, PITCH1: tl.constexpr, BLOCK_H1: tl.constexpr, BLOCK_1: tl.constexpr,
    USE2: tl.constexpr, KIND2: tl.constexpr, HEADS2: tl.constexpr, WIDTH2: tl.constexpr, STEP2: tl.constexpr,
    ALIGN2: tl.constexpr, PITCH2: tl.constexpr, BLOCK_H2: tl.constexpr, BLOCK_2: tl.constexpr,
    USE3: tl.constexpr, KIND3: tl.constexpr, HEADS3: tl.constexpr, WIDTH3: tl.constexpr, STEP3: tl.constexpr,
    ALIGN3: tl.constexpr, PITCH3: tl.constexpr, BLOCK_H3: tl.constexpr, BLOCK_3: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Tokens `BLOCK_M i` to `BLOCK_M (i + 1)` of one window, protected ones included.

    USE of x: MEASURED: its norms; JOINED: with its branch, which is stored as well; SCALED: the branch has a gain. With
    a PITCH rows of unit vectors follow. Of z1, z2, z3: see above. Norms lie in scratch.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < total
    token = window * total + row
    place = row - leading
    if USE != NOTHING:
        column = tl.arange(0, BLOCK_D)
        mask = real[:, None] & (column < WIDTH)[None, :]
        values = tl.load(x + window * x_window * ALIGN + row[:, None] * STEP + column[None, :], mask=mask, other=0.0)
        if USE != MEASURED:
            factor = 1.0
            if USE == SCALED:
                factor = tl.load(gain + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
            at = token[:, None] * WIDTH + column[None, :]
            values = with_branch(values, branch, at, factor, mask, USE == SCALED)
            tl.store(out + at, values, mask=mask)
        wide = values.to(tl.float32)
        length = tl.sqrt_rn(tl.sum(wide * wide, axis=1))
        write_lengths(length, scratch, window, place, n, BLOCK_N, ROWS)
        if PITCH > 0:
            at = token[:, None] * PITCH + column[None, :]
            write_pairs(units, at, wide * inverse(length)[:, None], mask, PITCH)
    if USE1:
        length = of_heads(
            z1 + window * z1_window * ALIGN1, z1_head * ALIGN1, rows1, row, real, token, KIND1, HEADS1, WIDTH1, STEP1,
            USE1, PITCH1, BLOCK_H1, BLOCK_1,
        )  # fmt: skip
        if USE1 != STORED:
            write_lengths(length, scratch, window, place, n, BLOCK_N, ROWS)
    if USE2:
        of_heads(
            z2 + window * z2_window * ALIGN2, z2_head * ALIGN2, rows2, row, real, token, KIND2, HEADS2, WIDTH2, STEP2,
            USE2, PITCH2, BLOCK_H2, BLOCK_2,
        )  # fmt: skip
    if USE3:
        of_heads(
            z3 + window * z3_window * ALIGN3, z3_head * ALIGN3, rows3, row, real, token, KIND3, HEADS3, WIDTH3, STEP3,
            USE3, PITCH3, BLOCK_H3, BLOCK_3,
        )  # fmt: skip
