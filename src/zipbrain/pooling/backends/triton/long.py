# mypy: ignore-errors
"""Triton kernels for windows of more tokens than one program holds: steps 1 to 3, one kernel for each dependency.

Kernel language, see `triton_language`. Every program owns a block of tokens of one window; sums over all tokens are
added up in a fixed order. So there are no atomics here either, and a window gets the same groups in any batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    CLOSED,
    PER_HEAD,
    RESOLUTION,
    SMALLEST,
    after_others,
    inverse,
    norms,
    product_of,
    read,
    whole_steps,
)

UNROLLED = tl.constexpr(256)  # wider rows are multiplied in a loop: all pieces at once would not fit


@triton.jit(do_not_specialize=["n", "leading", "z_window", "z_head"])
def lengths_kernel(
    z, z_window, z_head, out, n, leading, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, ALIGN: tl.constexpr, EACH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Norms (B, N), the mean over heads if per head; EACH: (B, heads, N)."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = index < n
    step = z_head * ALIGN
    base = z + window * z_window * ALIGN + leading * STEP
    NUMBER: tl.constexpr = HEADS if KIND == PER_HEAD else 1
    total = tl.zeros((BLOCK_T,), tl.float32)
    for head in tl.static_range(NUMBER):
        length = norms(base, index, inside, head, step, KIND, HEADS, WIDTH, STEP, BLOCK_T, BLOCK)
        if EACH:
            tl.store(out + (window * NUMBER + head) * n + index, length, mask=inside)
        total += length
    if not EACH:
        if KIND == PER_HEAD:
            total = total * (1.0 / HEADS)
        tl.store(out + window * n + index, total, mask=inside)


@triton.jit(do_not_specialize=["n", "count"])
def rank_kernel(
    score, closed, out, n, count, share, RELATIVE: tl.constexpr, INVERTED: tl.constexpr, SIGN: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_J: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Mark (B, N) the `count` highest scores by counting how many are higher; INVERTED: mark the others.

    RELATIVE: scores count as shares of the largest finite one; else `share` multiplies them and some are `closed`.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    score += window * n
    index = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = index < n
    if RELATIVE:
        most = tl.zeros((BLOCK_J,), tl.float32)
        for first in range(0, n, BLOCK_J):
            other = first + tl.arange(0, BLOCK_J)
            theirs = tl.load(score + other, mask=other < n, other=0.0)
            most = tl.maximum(most, tl.where(theirs < float("inf"), theirs, 0.0))
        share = tl.div_rn(1.0, tl.maximum(tl.max(most, axis=0), SMALLEST)) * (1.0 / RESOLUTION)
    key = whole_steps(tl.load(score + index, mask=inside, other=0.0), share, SIGN)
    if not RELATIVE:
        closed += window * n
        key = tl.where(tl.load(closed + index, mask=inside, other=1) == 0, key, CLOSED)
    higher = tl.zeros((BLOCK_T, BLOCK_J), tl.int32)
    for first in range(0, n, BLOCK_J):
        other = first + tl.arange(0, BLOCK_J)
        real = other < n
        theirs = whole_steps(tl.load(score + other, mask=real, other=0.0), share, SIGN)
        if RELATIVE:
            theirs = tl.where(real, theirs, CLOSED)
        else:
            theirs = tl.where(tl.load(closed + other, mask=real, other=1) == 0, theirs, CLOSED)
        before = (theirs[None, :] == key[:, None]) & (other[None, :] < index[:, None])
        higher += ((theirs[None, :] > key[:, None]) | before).to(tl.int32)
    chosen = tl.sum(higher, axis=1) < count
    if INVERTED:
        chosen = chosen == 0
    tl.store(out + window * n + index, chosen.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["n", "leading", "chunks", "z_window", "z_head"])
def prototype_kernel(
    z, z_window, z_head, lengths, pivots, out, n, leading, chunks, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sums of unit vectors (B, chunks, heads, PADDED) over the pivots of each chunk of tokens."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    BLOCKS: tl.constexpr = PADDED // BLOCK
    NUMBER: tl.constexpr = HEADS if KIND == PER_HEAD else 1
    what = tl.program_id(1)
    chunk, head, first = what // (BLOCKS * NUMBER), what // BLOCKS % NUMBER, what % BLOCKS * BLOCK
    base = z + window * z_window * ALIGN + leading * STEP
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = index < n
    values = read(base, index, inside, head, z_head * ALIGN, first, KIND, HEADS, WIDTH, STEP, BLOCK)
    own = inverse(tl.load(lengths + (window * NUMBER + head) * n + index, mask=inside, other=1.0))
    pivot = tl.load(pivots + window * n + index, mask=inside, other=0) != 0
    total = tl.where(pivot[:, None], values.to(tl.float32) * own[:, None], 0.0)
    place = ((window * chunks + chunk) * NUMBER + head) * PADDED + first + tl.arange(0, BLOCK)
    tl.store(out + place, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["n", "leading", "chunks", "z_window", "z_head"])
def score_kernel(
    z, z_window, z_head, lengths, partial, out, n, leading, chunks, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
    PADDED: tl.constexpr, CHUNKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sum (B, N) of the cosines to all pivots, the mean over heads if per head."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    NUMBER: tl.constexpr = HEADS if KIND == PER_HEAD else 1
    index = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = index < n
    base = z + window * z_window * ALIGN + leading * STEP
    partial += window * chunks * NUMBER * PADDED
    chunk = tl.arange(0, CHUNKS)
    score = tl.zeros((BLOCK_T,), tl.float32)
    for head in tl.static_range(NUMBER):
        products = tl.zeros((BLOCK_T, BLOCK), tl.float32)
        for first in tl.static_range(0, PADDED, BLOCK):
            at = partial + (chunk * NUMBER + head)[:, None] * PADDED + first + tl.arange(0, BLOCK)[None, :]
            prototype = tl.sum(tl.load(at, mask=(chunk < chunks)[:, None], other=0.0), axis=0)
            values = read(base, index, inside, head, z_head * ALIGN, first, KIND, HEADS, WIDTH, STEP, BLOCK)
            products += values.to(tl.float32) * prototype[None, :]
        own = inverse(tl.load(lengths + (window * NUMBER + head) * n + index, mask=inside, other=1.0))
        score += tl.sum(products, axis=1) * own
    if KIND == PER_HEAD:
        score = score * (1.0 / HEADS)
    tl.store(out + window * n + index, score, mask=inside)


@triton.jit(do_not_specialize=["n", "r", "leading", "trailing"])
def split_kernel(gone, kept, source, n, r, leading, trailing, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Write who stays, protected tokens at both ends included, and who goes, both ascending."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    total = leading + n + trailing
    gone += window * n
    kept += window * (total - r)
    source += window * r
    left = 0  # how many went before this block
    for first in range(0, n, BLOCK):
        index = first + tl.arange(0, BLOCK)
        inside = index < n
        goes = tl.load(gone + index, mask=inside, other=0)
        before = left + tl.cumsum(goes, axis=0) - goes
        names = (leading + index).to(tl.int64)
        tl.store(source + before, names, mask=inside & (goes != 0))
        tl.store(kept + leading + index - before, names, mask=inside & (goes == 0))
        left += tl.sum(goes, axis=0)
    for first in range(0, leading + trailing, BLOCK):
        end = first + tl.arange(0, BLOCK)
        behind = end >= leading
        tl.store(
            kept + tl.where(behind, end + n - r, end), tl.where(behind, end + n, end).to(tl.int64),
            mask=end < leading + trailing,
        )  # fmt: skip


@triton.jit
def cosines(
    base, rows, asked, columns, inside, head_step, lengths, n, KIND: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Cosines (BLOCK_R, BLOCK_C) of some tokens with some others."""
    cosine = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for head in tl.static_range(HEADS if KIND == PER_HEAD else 1):
        product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        if WIDTH <= UNROLLED:
            for first in tl.static_range(0, WIDTH, BLOCK_K):
                a = read(base, rows, asked, head, head_step, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
                b = read(base, columns, inside, head, head_step, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
                product = product_of(a, b, product)
        else:
            for first in tl.range(0, WIDTH, BLOCK_K, num_stages=1):
                a = read(base, rows, asked, head, head_step, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
                b = read(base, columns, inside, head, head_step, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
                product = product_of(a, b, product)
        row_share = inverse(tl.load(lengths + head * n + rows, mask=asked, other=1.0))
        column_share = inverse(tl.load(lengths + head * n + columns, mask=inside, other=1.0))
        cosine += product * row_share[:, None] * column_share[None, :]
    if KIND == PER_HEAD:
        cosine = cosine * (1.0 / HEADS)
    return cosine


@triton.jit(do_not_specialize=["n", "r", "leading", "parts", "z_window", "z_head"])
def closest_kernel(
    z, z_window, z_head, lengths, gone, source, best, column, n, r, leading, parts, KIND: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, SECOND: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, TILES: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Step 3 for a block of sources and one part of the columns, in two passes.

    The first writes the best cosine of each source in this part, infinite if one is NaN: `best` (B, parts, r). The
    SECOND writes the first column near the best of all parts, N if none is here: `column`, of the same shape. It looks
    again only where that can be.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) % parts
    place = tl.program_id(1) // parts * BLOCK_R + tl.arange(0, BLOCK_R)
    asked = place < r
    rows = tl.load(source + window * r + place, mask=asked, other=leading).to(tl.int32) - leading
    base = z + window * z_window * ALIGN + leading * STEP
    lengths += window * (HEADS if KIND == PER_HEAD else 1) * n
    gone += window * n
    best += window * parts * r
    column += window * parts * r
    here = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK_R,), tl.int32) + n
    least = tl.full((BLOCK_R,), float("inf"), tl.float32)
    last = n
    if SECOND:
        others = tl.arange(0, PARTS)
        known = (others < parts)[:, None] & asked[None, :]
        every = tl.load(best + others[:, None] * r + place[None, :], mask=known, other=float("-inf"))
        least = tl.max(every, axis=0) - RESOLUTION
        least = tl.where(least == float("inf"), float("-inf"), least)  # NaN somewhere: the first free column
        mine = tl.load(best + part * r + place, mask=asked, other=float("-inf"))
        wanted = tl.max((asked & (mine >= least)).to(tl.int32), axis=0)
        last = tl.where(wanted > 0, n, 0)
    start = part * (TILES * BLOCK_C)
    for first in tl.range(start, tl.minimum(start + TILES * BLOCK_C, last), BLOCK_C, num_stages=STAGES):
        columns = first + tl.arange(0, BLOCK_C)
        inside = columns < n
        free = tl.load(gone + columns, mask=inside, other=1) == 0
        cosine = cosines(
            base, rows, asked, columns, inside, z_head * ALIGN, lengths, n, KIND, HEADS, WIDTH, STEP, BLOCK_R, BLOCK_C,
            BLOCK_K,
        )  # fmt: skip
        cosine = tl.where(cosine == cosine, cosine, float("inf"))
        if SECOND:
            near = free[None, :] & (cosine >= least[:, None])
            found = tl.minimum(found, tl.min(tl.where(near, columns[None, :], n), axis=1))
        else:
            here = tl.maximum(here, tl.max(tl.where(free[None, :], cosine, float("-inf")), axis=1))
    if SECOND:
        tl.store(column + part * r + place, found, mask=asked)
    else:
        tl.store(best + part * r + place, here, mask=asked)


@triton.jit(do_not_specialize=["r", "leading", "parts"])
def first_kernel(column, target, r, leading, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """The lowest of the columns that were found in any part."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    others = tl.arange(0, PARTS)
    known = (others < parts)[:, None] & (place < r)[None, :]
    at = column + window * parts * r + others[:, None] * r + place[None, :]
    lowest = tl.min(tl.load(at, mask=known, other=2**30), axis=0)
    tl.store(target + window * r + place, (lowest + leading).to(tl.int64), mask=place < r)
