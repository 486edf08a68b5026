# mypy: ignore-errors
"""Triton kernels for steps 1 to 3: one program scores and splits a window and matches its few redundant tokens.

What is read of heads was made into rows of unit vectors before, and norms in z1 were measured: see `triton_prepare`.

Kernel language, not Python: compiled for a GPU, or run by Triton's interpreter (TRITON_INTERPRET=1 before triton is
imported). Everything is accumulated in float32, whatever the inputs are. No program writes where another one of the
same launch writes or reads, so there are no atomics and the result depends on neither the order nor the number of
windows.

One program per window leaves a GPU waiting for memory, not for arithmetic: loops over features and heads are unrolled,
so that all loads are under way at once, and what two steps need is kept.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a Triton of another time: kernels wait for each other's ends

    @triton.jit
    def gdc_launch_dependents():
        pass

    @triton.jit
    def gdc_wait():
        pass


X = tl.constexpr(0)  # kinds of spaces: the token itself,
MEAN = tl.constexpr(1)  # the mean of its vectors over heads,
PER_HEAD = tl.constexpr(2)  # one vector per head and the mean of the scores,
UNIT = tl.constexpr(3)  # or the unit vectors of all heads in a row, every number as the sum of two float16
TINY = tl.constexpr(1e-18)  # norms below it count as this, as in `spaces`
SMALLEST = tl.constexpr(1.1754943508222875e-38)  # float32's smallest normal number
RESOLUTION = tl.constexpr(2.0**-20)
BROKEN = tl.constexpr(1572864.0)  # 1.5 * 2**20: beyond any score; a thousand times it is still an int32
CLOSED = tl.constexpr(-(2**30))  # below all keys, which are at least -1.5 * 2**29
KEYS, GONE, SHARES, LENGTHS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # rows of scratch,
SCORES = tl.constexpr(4)  # behind which those of partial scores and of cosines may follow
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # its dot product takes bfloat16 for integers
ALL_AT_ONCE = tl.constexpr(256)  # up to this many tokens all pairs of keys are compared without a loop


@triton.jit
def after_others(DEPENDENT: tl.constexpr):
    """The start of a kernel: wait for what the ones before have written, then let the next one begin to start.

    DEPENDENT: the GPU can do that (Hopper and later). Without it, or without a kernel that overlaps with this one, all
    that was launched before has ended anyway.
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def read(
    base, rows, real, head, head_step, first, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Features `first` to `first + BLOCK` of some tokens (rows, BLOCK), as stored or as a float32 mean over heads."""
    column = first + tl.arange(0, BLOCK)
    at = base + rows[:, None] * STEP + column[None, :]
    mask = real[:, None] & (column < WIDTH)[None, :]  # zeros beyond the edges
    if KIND == MEAN:
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        if base.dtype.element_ty != tl.float32:  # wider ones would not fit into the registers
            for other in tl.static_range(1, HEADS):
                values += tl.load(at + other * head_step, mask=mask, other=0.0).to(tl.float32)
        else:
            for other in range(1, HEADS):
                values += tl.load(at + other * head_step, mask=mask, other=0.0).to(tl.float32)
        values = values * (1.0 / HEADS)
    else:
        values = tl.load(at + head * head_step, mask=mask, other=0.0)
    return values


@triton.jit
def with_branch(values, branch, at, gain, mask, SCALED: tl.constexpr):
    """Values and what is still to be added to them, rounded to their type, as if it had been added before."""
    more = tl.load(branch + at, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        more = more * gain
    return (values.to(tl.float32) + more).to(values.dtype)


@triton.jit
def norms(
    base, rows, real, head, head_step, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Euclidean norms (BLOCK_N,) of one head."""
    squares = tl.zeros((BLOCK_N, BLOCK), tl.float32)
    for first in tl.static_range(0, WIDTH, BLOCK):
        values = read(base, rows, real, head, head_step, first, KIND, HEADS, WIDTH, STEP, BLOCK).to(tl.float32)
        squares += values * values
    return tl.sqrt_rn(tl.sum(squares, axis=1))


@triton.jit
def inverse(length):
    """1 / length, where a zero vector counts as a very short one."""
    return tl.div_rn(1.0, tl.maximum(length, TINY))


@triton.jit
def whole_steps(score, factor, SIGN: tl.constexpr):
    """Scores as int32 multiples of 2**-20; what is not finite comes first (SIGN 1) or last (-1)."""
    steps = score * factor
    steps = tl.where(tl.abs(steps) < BROKEN, steps, SIGN * BROKEN)
    # Halves to even, by comparing: an addition would be fused with the product above and round something else.
    below = tl.floor(steps)
    whole = below.to(tl.int32)
    half = below + 0.5
    return whole + ((steps > half) | ((steps == half) & (whole % 2 != 0))).to(tl.int32)


@triton.jit
def keys(score, factor, index, SIGN: tl.constexpr, BLOCK_N: tl.constexpr):
    """Distinct int32 in the order of the scores: rounded to multiples of 2**-20, the lower index first."""
    return whole_steps(score, factor, SIGN) * BLOCK_N + (BLOCK_N - 1 - index)


@triton.jit
def is_negative(difference):
    """1 or 0, by the sign bit: two instructions a pair of keys, a comparison takes three. Keys are far from 2**31."""
    return (difference.to(tl.uint32, bitcast=True) >> 31).to(tl.int32)


@triton.jit
def highest(
    key, scratch, index, n, count, AT_ONCE: tl.constexpr, FOUND: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Mark the `count` highest keys, by counting how many are higher than each. No sort, no data-dependent step.

    FOUND: scores were read from memory, not worked out here, and there is a thread for every token. Then, and only
    then, sums over the first axis are faster: a thread has a column to itself, where the other way each row is a sum
    over a warp. With more threads the compiler reads the memory again for every pair.
    """
    if BLOCK_N <= AT_ONCE:
        if FOUND:
            above = tl.sum(is_negative(key[None, :] - key[:, None]), axis=0)
        else:
            above = tl.sum(is_negative(key[:, None] - key[None, :]), axis=1)
    else:
        tl.debug_barrier()  # the keys of the step before have been read by now
        tl.store(scratch + index, key)
        tl.debug_barrier()  # other threads of this program read it
        higher = tl.zeros((BLOCK_N, BLOCK_J), tl.int32)
        for first in range(0, n, BLOCK_J):
            other = first + tl.arange(0, BLOCK_J)
            theirs = tl.load(scratch + other, mask=other < n, other=CLOSED)
            higher += is_negative(key[:, None] - theirs[None, :])
        above = tl.sum(higher, axis=1)
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
    """The lowest free column of each row whose score is within 2**-20 of the best; a row with NaN takes its first."""
    known = free[None, :] & (score == score)
    score = tl.where(known, score, float("-inf"))
    best = tl.max(score, axis=1)
    unknown = tl.max((free[None, :] & (known == 0)).to(tl.int32), axis=1) > 0
    near = free[None, :] & ((score >= (best - RESOLUTION)[:, None]) | unknown[:, None])
    return tl.min(tl.where(near, index[None, :], BLOCK_N), axis=1)


@triton.jit
def relative(score, inside):
    """What multiplies non-negative scores to steps of 2**-20 of the largest finite one inside."""
    top = tl.max(tl.where(inside & (score < float("inf")), score, 0.0), axis=0)
    return tl.div_rn(1.0, tl.maximum(top, SMALLEST)) * (1.0 / RESOLUTION)


@triton.jit
def longest(
    length, scratch, index, inside, n, pivots, FOUND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_J: tl.constexpr
):  # fmt: skip
    """Mark the pivots."""
    key = tl.where(inside, keys(length, relative(length, inside), index, 1, BLOCK_N), CLOSED)
    return highest(key, scratch + KEYS * BLOCK_N, index, n, pivots, ALL_AT_ONCE, FOUND, BLOCK_N, BLOCK_J) & inside


@triton.jit
def write_split(redundant, inside, index, kept, source, n, r, leading, trailing, BLOCK_N: tl.constexpr):
    """Write who stays, protected tokens at both ends included, and who goes, both ascending."""
    gone = redundant.to(tl.int32)
    before = tl.cumsum(gone, axis=0) - gone
    names = (leading + index).to(tl.int64)
    tl.store(source + before, names, mask=redundant)
    tl.store(kept + leading + index - before, names, mask=inside & (redundant == 0))
    for first in range(0, leading + trailing, BLOCK_N):
        end = first + index
        behind = end >= leading
        tl.store(
            kept + tl.where(behind, end + n - r, end), tl.where(behind, end + n, end).to(tl.int64),
            mask=end < leading + trailing,
        )  # fmt: skip


@triton.jit
def cosines(
    base, rows, asked, columns, real, scratch, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Cosines (BLOCK_R, BLOCK_C) of some tokens with others; KNOWN: `scratch` has the inverse norms."""
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    row_squares = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    column_squares = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    for first in tl.static_range(0, WIDTH, BLOCK_K):
        a = read(base, rows, asked, 0, 0, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
        b = read(base, columns, real, 0, 0, first, KIND, HEADS, WIDTH, STEP, BLOCK_K)
        product = product_of(a, b, product)
        if KIND == UNIT:
            low = STEP // 2
            product = product_of(read(base + low, rows, asked, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K), b, product)
            product = product_of(a, read(base + low, columns, real, 0, 0, first, X, 1, WIDTH, STEP, BLOCK_K), product)
        elif not KNOWN:
            wide, tall = a.to(tl.float32), b.to(tl.float32)
            row_squares += wide * wide
            column_squares += tall * tall
    if KIND == UNIT:
        cosine = product * (1.0 / HEADS)
    else:
        if KNOWN:
            shares = scratch + SHARES * BLOCK_N
            row_share = tl.load(shares + rows).to(tl.float32, bitcast=True)
            column_share = tl.load(shares + columns, mask=real, other=0).to(tl.float32, bitcast=True)
        else:
            row_share = inverse(tl.sqrt_rn(tl.sum(row_squares, axis=1)))
            column_share = inverse(tl.sqrt_rn(tl.sum(column_squares, axis=1)))
        cosine = product * row_share[:, None] * column_share[None, :]
    return cosine


@triton.jit
def match(
    base, source, target, scratch, n, r, leading, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Step 3 for the few sources of one window."""
    place = tl.arange(0, BLOCK_R)
    asked = place < r
    rows = tl.load(source + place, mask=asked, other=leading).to(tl.int32) - leading
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    free = tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=1) == 0
    cosine = cosines(
        base, rows, asked, index, inside, scratch, KIND, HEADS, WIDTH, STEP, KNOWN, BLOCK_N, BLOCK_R, BLOCK_N, BLOCK_K
    )
    column = best_column(cosine, free, index, BLOCK_N)
    tl.store(target + place, (column + leading).to(tl.int64), mask=asked)


@triton.jit
def score_of(
    base, index, inside, pivot, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cosines (BLOCK_N,) with the sum of the pivots' unit vectors, and the inverse norms."""
    products = tl.zeros((BLOCK_N, BLOCK), tl.float32)
    if KIND == UNIT:
        own = tl.full((BLOCK_N,), 1.0 / HEADS, tl.float32)
        for first in tl.static_range(0, WIDTH, BLOCK):
            values = read(base, index, inside, 0, 0, first, KIND, HEADS, WIDTH, STEP, BLOCK).to(tl.float32)
            values += read(base + STEP // 2, index, inside, 0, 0, first, KIND, HEADS, WIDTH, STEP, BLOCK).to(tl.float32)
            products += values * tl.sum(tl.where(pivot[:, None], values, 0.0), axis=0)[None, :]
    elif WIDTH <= BLOCK:
        values = read(base, index, inside, 0, 0, 0, KIND, HEADS, WIDTH, STEP, BLOCK).to(tl.float32)
        own = inverse(tl.sqrt_rn(tl.sum(values * values, axis=1)))
        prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
        products += values * prototype[None, :]
    else:
        own = inverse(norms(base, index, inside, 0, 0, KIND, HEADS, WIDTH, STEP, BLOCK_N, BLOCK))
        for first in tl.static_range(0, WIDTH, BLOCK):
            values = read(base, index, inside, 0, 0, first, KIND, HEADS, WIDTH, STEP, BLOCK).to(tl.float32)
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
    KIND1: tl.constexpr, HEADS1: tl.constexpr, WIDTH1: tl.constexpr, STEP1: tl.constexpr, ALIGN1: tl.constexpr,
    KIND2: tl.constexpr, HEADS2: tl.constexpr, WIDTH2: tl.constexpr, STEP2: tl.constexpr, ALIGN2: tl.constexpr,
    KIND3: tl.constexpr, HEADS3: tl.constexpr, WIDTH3: tl.constexpr, STEP3: tl.constexpr, ALIGN3: tl.constexpr,
    GIVEN: tl.constexpr, PARTS: tl.constexpr, SCORED: tl.constexpr, SAME: tl.constexpr, KNOWN: tl.constexpr,
    MATCHED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_1: tl.constexpr, BLOCK_2: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Steps 1 and 2 of one window, and 3 if MATCHED. Spaces are x or rows of UNIT vectors.

    GIVEN: norms in z1 lie in scratch, and z1 is not read. PARTS: so do pivots, and scores by so many parts of z2. SAME:
    z2 is z1. KNOWN: z3 is z1 (1) or z2 (2), whose norms are kept for it. ROWS: of a window's scratch. DEPENDENT: as in
    `after_others`.
    """
    after_others(DEPENDENT)
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
        first_values = read(base, index, inside, 0, 0, 0, KIND1, HEADS1, WIDTH1, STEP1, BLOCK_1).to(tl.float32)
        length = tl.sqrt_rn(tl.sum(first_values * first_values, axis=1))
    else:
        base = z1 + window * z1_window * ALIGN1 + leading * STEP1
        length = norms(base, index, inside, 0, 0, KIND1, HEADS1, WIDTH1, STEP1, BLOCK_N, BLOCK_1)
    if KNOWN == 1:
        tl.store(scratch + SHARES * BLOCK_N + index, inverse(length).to(tl.int32, bitcast=True))
    if PARTS > 0:
        pivot = (tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=0) != 0) & inside
    else:
        pivot = longest(length, scratch, index, inside, n, pivots, False, BLOCK_N, BLOCK_J)

    # Step 2: of the others, the r that are closest to the mean pivot in z2 are redundant.
    if SCORED:
        if PARTS > 0:
            at = scratch + SCORES * BLOCK_N + index
            score = tl.load(at, mask=inside, other=0).to(tl.float32, bitcast=True)
            for part in tl.static_range(1, PARTS):
                score += tl.load(at + part * BLOCK_N, mask=inside, other=0).to(tl.float32, bitcast=True)
            score = score * (1.0 / HEADS2)
        elif SAME:
            own = inverse(length)
            base = z2 + window * z2_window * ALIGN2 + leading * STEP2
            products = tl.zeros((BLOCK_N, BLOCK_2), tl.float32)
            for first in tl.static_range(0, WIDTH2, BLOCK_2):
                if WIDTH2 <= BLOCK_2 and not GIVEN:
                    values = first_values
                else:
                    values = read(base, index, inside, 0, 0, first, KIND2, HEADS2, WIDTH2, STEP2, BLOCK_2)
                    values = values.to(tl.float32)
                prototype = tl.sum(tl.where(pivot[:, None], values * own[:, None], 0.0), axis=0)
                products += values * prototype[None, :]
            score = tl.sum(products, axis=1) * own
        else:
            score, own = score_of(
                z2 + window * z2_window * ALIGN2 + leading * STEP2, index, inside, pivot, KIND2, HEADS2, WIDTH2, STEP2,
                BLOCK_N, BLOCK_2,
            )  # fmt: skip
        if KNOWN == 2:
            tl.store(scratch + SHARES * BLOCK_N + index, own.to(tl.int32, bitcast=True))
        key = tl.where(inside & (pivot == 0), keys(score, share, index, -1, BLOCK_N), CLOSED)
        room = scratch + KEYS * BLOCK_N
        FOUND: tl.constexpr = PARTS > 0 and not MATCHED
        redundant = highest(key, room, index, n, r, ALL_AT_ONCE, FOUND, BLOCK_N, BLOCK_J) & inside
    else:  # nothing is left to choose
        redundant = inside & (pivot == 0)

    write_split(redundant, inside, index, kept, source, n, r, leading, trailing, BLOCK_N)
    tl.store(scratch + GONE * BLOCK_N + index, redundant.to(tl.int32), mask=inside)

    if MATCHED:
        tl.debug_barrier()
        match(
            z3 + window * z3_window * ALIGN3 + leading * STEP3, source, target, scratch, n, r, leading, KIND3, HEADS3,
            WIDTH3, STEP3, KNOWN, BLOCK_N, BLOCK_R, BLOCK_K,
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
    values = read(base, index, inside, 0, 0, part * BLOCK, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
    values += read(base + STEP // 2, index, inside, 0, 0, part * BLOCK, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
    prototype = tl.sum(tl.where(pivot[:, None], values, 0.0), axis=0)
    score = tl.sum(values * prototype[None, :], axis=1)
    tl.store(scratch + (part + SCORES) * BLOCK_N + index, score.to(tl.int32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["n", "r", "leading", "z3_window"])
def cosine_kernel(
    z3, z3_window, source, scratch, n, r, leading, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, ALIGN: tl.constexpr, KNOWN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, FIRST_ROW: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Step 3 behind `select_kernel`, first part: cosines of a block of sources with a block of tokens."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(n, BLOCK_C)
    place = tl.program_id(1) // blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    asked, inside = place < r, column < n
    scratch += window * (ROWS * BLOCK_N)
    rows = tl.load(source + window * r + place, mask=asked, other=leading).to(tl.int32) - leading
    cosine = cosines(
        z3 + window * z3_window * ALIGN + leading * STEP, rows, asked, column, inside, scratch, KIND, HEADS, WIDTH,
        STEP, KNOWN, BLOCK_N, BLOCK_R, BLOCK_C, BLOCK_K,
    )  # fmt: skip
    at = scratch + (place + FIRST_ROW)[:, None] * BLOCK_N + column[None, :]
    tl.store(at, cosine.to(tl.int32, bitcast=True), mask=asked[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["n", "r", "leading"])
def closest_kernel(
    target, scratch, n, r, leading, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, FIRST_ROW: tl.constexpr,
    ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Step 3, second part: the closest token that stays, for a block of sources."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    index = tl.arange(0, BLOCK_N)
    asked, inside = place < r, index < n
    scratch += window * (ROWS * BLOCK_N)
    at = scratch + (place + FIRST_ROW)[:, None] * BLOCK_N + index[None, :]
    cosine = tl.load(at, mask=asked[:, None] & inside[None, :], other=0).to(tl.float32, bitcast=True)
    free = tl.load(scratch + GONE * BLOCK_N + index, mask=inside, other=1) == 0
    column = best_column(cosine, free, index, BLOCK_N)
    tl.store(target + window * r + place, (column + leading).to(tl.int64), mask=asked)
