# mypy: ignore-errors
"""What Triton kernels share: how they wait, read, rank, multiply and write.

Kernel language, not Python: compiled for a GPU, or run by Triton's interpreter (TRITON_INTERPRET=1 before triton is
imported). Everything is accumulated in float32, whatever the inputs are. No program writes where another one of the
same launch writes or reads, so there are no atomics and the result depends on neither the order nor the number of
windows.
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
UNIT = tl.constexpr(3)  # or a row of one or more vectors of length 1, every number as the sum of two float16
TINY = tl.constexpr(1e-18)  # norms below it count as this, as in `spaces`
SMALLEST = tl.constexpr(1.1754943508222875e-38)  # float32's smallest normal number
RESOLUTION = tl.constexpr(2.0**-20)
BROKEN = tl.constexpr(1572864.0)  # 1.5 * 2**20: beyond any score; a thousand times it is still an int32
CLOSED = tl.constexpr(-(2**30))  # below all keys, which are at least -1.5 * 2**29
# Rows of scratch. GONE: whether a token is a pivot, where scores come in parts; then a source's number plus 1, or 0.
KEYS, GONE, SHARES, LENGTHS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SCORES = tl.constexpr(4)  # from here on those of partial scores and of cosines, if any
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # its dot product takes bfloat16 for integers
UNROLLED = tl.constexpr(512)  # wider rows are gone through in a loop, which takes less time to compile
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
def units(base, index, inside, first, WIDTH: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Features `first` to `first + BLOCK` of UNIT vectors."""
    values = read(base, index, inside, 0, 0, first, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
    values += read(base + STEP // 2, index, inside, 0, 0, first, X, 1, WIDTH, STEP, BLOCK).to(tl.float32)
    return values


@triton.jit
def over_pivots(values, pivot):
    """Sums of features over the pivots."""
    return tl.sum(tl.where(pivot[:, None], values, 0.0), axis=0)


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
def higher(key, other):
    """How many of the others are higher than each key."""
    return tl.sum(is_negative(key[:, None] - other[None, :]), axis=1)


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
    if BLOCK_N <= AT_ONCE and FOUND:
        above = tl.sum(is_negative(key[None, :] - key[:, None]), axis=0)
    elif BLOCK_N <= AT_ONCE:
        above = higher(key, key)
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
def scores_of_free(score, free):
    """Scores (rows, columns) where a column is free, -inf elsewhere; NaN counts as inf."""
    return tl.where(free[None, :], tl.where(score == score, score, float("inf")), float("-inf"))


@triton.jit
def least_of_best(best):
    """What is as good as the best of each row: within 2**-20.

    In a row with NaN, or with infinity, for no cosine is that, everything is.
    """
    return tl.where(best < float("inf"), best - RESOLUTION, float("-inf"))


@triton.jit
def first_column(score, free, index, least, NOBODY: tl.constexpr):
    """The lowest free column of each row whose score is not below `least`."""
    near = free[None, :] & (score >= least[:, None])
    return tl.min(tl.where(near, index[None, :], NOBODY), axis=1)


@triton.jit
def best_column(score, free, index, BLOCK_N: tl.constexpr):
    """The lowest free column of each row whose score is within 2**-20 of the best."""
    score = scores_of_free(score, free)
    return first_column(score, free, index, least_of_best(tl.max(score, axis=1)), BLOCK_N)


@triton.jit
def top_of(score, inside):
    """The largest finite one of non-negative scores inside."""
    return tl.max(tl.where(inside & (score < float("inf")), score, 0.0), axis=0)


@triton.jit
def share_of(top):
    """What multiplies scores to steps of 2**-20 of the largest one."""
    return tl.div_rn(1.0, tl.maximum(top, SMALLEST)) * (1.0 / RESOLUTION)


@triton.jit
def longest(
    length, scratch, index, inside, n, pivots, FOUND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_J: tl.constexpr
):  # fmt: skip
    """Mark the pivots."""
    key = tl.where(inside, keys(length, share_of(top_of(length, inside)), index, 1, BLOCK_N), CLOSED)
    return highest(key, scratch + KEYS * BLOCK_N, index, n, pivots, ALL_AT_ONCE, FOUND, BLOCK_N, BLOCK_J) & inside


@triton.jit
def write_part(redundant, inside, index, earlier, kept, source, leading):
    """Write who stays of some tokens and who goes, both ascending, behind `earlier` ones that go.

    Returns how many go before each token.
    """
    gone = redundant.to(tl.int32)
    before = earlier + tl.cumsum(gone, axis=0) - gone
    names = (leading + index).to(tl.int64)
    tl.store(source + before, names, mask=redundant)
    tl.store(kept + leading + index - before, names, mask=inside & (redundant == 0))
    return before


@triton.jit
def write_ends(index, kept, n, r, leading, trailing, BLOCK_N: tl.constexpr):
    """Write that protected tokens at both ends stay."""
    for first in range(0, leading + trailing, BLOCK_N):
        end = first + index
        behind = end >= leading
        tl.store(
            kept + tl.where(behind, end + n - r, end), tl.where(behind, end + n, end).to(tl.int64),
            mask=end < leading + trailing,
        )  # fmt: skip


@triton.jit
def write_split(redundant, inside, index, kept, source, n, r, leading, trailing, BLOCK_N: tl.constexpr):
    """Write who stays, protected tokens at both ends included, and who goes, both ascending.

    Returns how many go before each token.
    """
    before = write_part(redundant, inside, index, 0, kept, source, leading)
    write_ends(index, kept, n, r, leading, trailing, BLOCK_N)
    return before
