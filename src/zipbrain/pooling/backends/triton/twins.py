# mypy: ignore-errors
"""Triton kernels that group by `Twins`: centre the four spaces, compare all pairs, split and match.

Kernel language, see `triton_language`. A window's scratch memory is laid out as `triton_twins_launch` says: sums of
each chunk of features, keys, least costs by tile, centred rows, and squared distances. The rows are stored before their
spread is known; who reads them scales them. All pairs are compared once: a tile of pairs serves its rows and, turned,
its columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import (
    CLOSED,
    MEAN,
    SMALLEST,
    X,
    after_others,
    best_column,
    highest,
    keys,
    product_of,
    read,
    share_of,
    top_of,
    write_split,
)

UNIT = tl.constexpr(16)  # of the sizes that come as numbers: the compiler must know what divides them
MOST_TILES = tl.constexpr(16)  # in a row of all pairs
AT_ONCE = tl.constexpr(128)  # as in `highest`: more would not fit into the registers beside the rest


@triton.jit
def centre(
    base, head_step, chunk, first, rows, sums, n, KIND: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    STEP: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Chunk `chunk` of all, from feature `first` of its space on: centred rows, their squares and the mean's."""
    index = tl.arange(0, BLOCK_N)
    inside = index < n
    values = read(base, index, inside, 0, head_step, first, KIND, HEADS, WIDTH, STEP, CHUNK).to(tl.float32)
    mean = tl.div_rn(tl.sum(values, axis=0), n.to(tl.float32))
    centred = tl.where(inside[:, None], values - mean[None, :], 0.0)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    tl.store(rows + index[:, None] * (CHUNKS * CHUNK) + column[None, :], centred, mask=inside[:, None])
    tl.store(sums + 2 * chunk, tl.sum(tl.sum(centred * centred, axis=1), axis=0))
    tl.store(sums + 2 * chunk + 1, tl.sum(mean * mean, axis=0))


# Numbers that change from layer to layer are no part of what is compiled, see `triton_select`.
_DISTANCES = ["x_window", "q_window", "q_head", "k_window", "k_head", "v_window", "v_head"]


@triton.jit(do_not_specialize=[*_DISTANCES, "size", "n", "leading"])
def centre_kernel(
    x, x_window, q, q_window, q_head, k, k_window, k_head, v, v_window, v_head, scratch, size, n, leading,
    X_WIDTH: tl.constexpr, X_STEP: tl.constexpr, X_ALIGN: tl.constexpr,
    Q_HEADS: tl.constexpr, Q_WIDTH: tl.constexpr, Q_STEP: tl.constexpr, Q_ALIGN: tl.constexpr,
    K_HEADS: tl.constexpr, K_WIDTH: tl.constexpr, K_STEP: tl.constexpr, K_ALIGN: tl.constexpr,
    V_HEADS: tl.constexpr, V_WIDTH: tl.constexpr, V_STEP: tl.constexpr, V_ALIGN: tl.constexpr,
    Q_FIRST: tl.constexpr, K_FIRST: tl.constexpr, V_FIRST: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One chunk of features of one window; chunks of q, k and v begin at Q_FIRST, K_FIRST and V_FIRST."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    sums = scratch + window * size * UNIT
    rows = sums + ROWS
    if chunk < Q_FIRST:
        base = x + window * x_window * X_ALIGN + leading * X_STEP
        centre(base, 0, chunk, chunk * CHUNK, rows, sums, n, X, 1, X_WIDTH, X_STEP, CHUNKS, BLOCK_N, CHUNK)
    elif chunk < K_FIRST:
        base = q + window * q_window * Q_ALIGN + leading * Q_STEP
        first = (chunk - Q_FIRST) * CHUNK
        centre(
            base, q_head * Q_ALIGN, chunk, first, rows, sums, n, MEAN, Q_HEADS, Q_WIDTH, Q_STEP, CHUNKS, BLOCK_N, CHUNK
        )  # fmt: skip
    elif chunk < V_FIRST:
        base = k + window * k_window * K_ALIGN + leading * K_STEP
        first = (chunk - K_FIRST) * CHUNK
        centre(
            base, k_head * K_ALIGN, chunk, first, rows, sums, n, MEAN, K_HEADS, K_WIDTH, K_STEP, CHUNKS, BLOCK_N, CHUNK
        )  # fmt: skip
    else:
        base = v + window * v_window * V_ALIGN + leading * V_STEP
        first = (chunk - V_FIRST) * CHUNK
        centre(
            base, v_head * V_ALIGN, chunk, first, rows, sums, n, MEAN, V_HEADS, V_WIDTH, V_STEP, CHUNKS, BLOCK_N, CHUNK
        )  # fmt: skip


@triton.jit
def scale_of(squares, means, here, n, flat):
    """Half of one over the root of a space's mean squared norm, as the plain operators have it."""
    variance = tl.div_rn(tl.sum(tl.where(here, squares, 0.0), axis=0), n.to(tl.float32))
    least = tl.sum(tl.where(here, means, 0.0), axis=0) * flat
    both = tl.maximum(tl.maximum(variance, least), SMALLEST)
    both = tl.where((variance == variance) & (least == least), both, float("nan"))
    return tl.div_rn(0.5, tl.sqrt_rn(both))


@triton.jit
def cheapest(cost, free, AXIS: tl.constexpr):
    """The least of the free costs along an axis; NaN if one of them is NaN, infinite if none is free."""
    known = free & (cost == cost)
    least = tl.min(tl.where(known, cost, float("inf")), axis=AXIS)
    unknown = tl.max((free & (known == 0)).to(tl.int32), axis=AXIS) > 0
    return tl.where(unknown, float("nan"), least)


@triton.jit
def masses(mass, at, inside, MASSED: tl.constexpr, BLOCK: tl.constexpr):
    """How many original tokens each stands for, in float32."""
    return tl.load(mass + at, mask=inside, other=1.0).to(tl.float32) if MASSED else tl.full((BLOCK,), 1.0, tl.float32)


@triton.jit(do_not_specialize=["size", "breadth", "n", "leading", "total"])
def pairs_kernel(
    mass, order, scratch, size, breadth, n, leading, total, same, flat,
    Q_FIRST: tl.constexpr, K_FIRST: tl.constexpr, V_FIRST: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_S: tl.constexpr,
    LEAST: tl.constexpr, ROWS: tl.constexpr, MASSED: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
    CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Squared distances of one tile of pairs, and the least costs of its rows and columns."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    scratch += window * size * UNIT
    pair = tl.program_id(1)  # of (0, 0), (0, 1), (1, 1), (0, 2), ...
    number = tl.arange(0, MOST_TILES)
    right = tl.sum((number * (number + 1) // 2 <= pair).to(tl.int32), axis=0) - 1
    left = pair - right * (right + 1) // 2

    some = tl.arange(0, BLOCK_S)
    squares = tl.load(scratch + 2 * some, mask=some < CHUNKS, other=0.0)
    means = tl.load(scratch + 2 * some + 1, mask=some < CHUNKS, other=0.0)
    x_scale = scale_of(squares, means, some < Q_FIRST, n, flat)
    q_scale = scale_of(squares, means, (some >= Q_FIRST) & (some < K_FIRST), n, flat)
    k_scale = scale_of(squares, means, (some >= K_FIRST) & (some < V_FIRST), n, flat)
    v_scale = scale_of(squares, means, (some >= V_FIRST) & (some < CHUNKS), n, flat)

    ours = left * TILE + tl.arange(0, TILE)
    theirs = right * TILE + tl.arange(0, TILE)
    column = tl.arange(0, CHUNK)
    our_rows = scratch + ROWS + ours[:, None] * (CHUNKS * CHUNK) + column[None, :]
    their_rows = scratch + ROWS + theirs[:, None] * (CHUNKS * CHUNK) + column[None, :]
    we, they = ours < n, theirs < n
    product = tl.zeros((TILE, TILE), tl.float32)
    our_squares = tl.zeros((TILE, CHUNK), tl.float32)
    their_squares = tl.zeros((TILE, CHUNK), tl.float32)
    for chunk in range(CHUNKS):
        scale = tl.where(chunk < K_FIRST, q_scale, tl.where(chunk < V_FIRST, k_scale, v_scale))
        scale = tl.where(chunk < Q_FIRST, x_scale, scale)
        a = tl.load(our_rows + chunk * CHUNK, mask=we[:, None], other=0.0) * scale
        b = tl.load(their_rows + chunk * CHUNK, mask=they[:, None], other=0.0) * scale
        product = product_of(a, b, product)
        our_squares += a * a
        their_squares += b * b
    distance = tl.sum(our_squares, axis=1)[:, None] + tl.sum(their_squares, axis=1)[None, :] - 2.0 * product
    distance = tl.where(distance < same, same, distance)  # NaN stays

    if MASSED:
        mass += window * total + leading
    m, theirs_m = masses(mass, ours, we, MASSED, TILE), masses(mass, theirs, they, MASSED, TILE)
    if MASSED:
        cost = tl.div_rn(distance, tl.div_rn(1.0, m)[:, None] + tl.div_rn(1.0, theirs_m)[None, :])
    else:
        cost = 0.5 * distance
    rank = m + tl.load(order + ours, mask=we, other=0.0)
    their_rank = theirs_m + tl.load(order + theirs, mask=they, other=0.0)
    senior = ((their_rank[None, :] <= rank[:, None]) == 0) & they[None, :]
    junior = ((rank[:, None] <= their_rank[None, :]) == 0) & we[:, None]
    least = scratch + LEAST
    distances = scratch + ROWS + n * (CHUNKS * CHUNK)
    step = breadth * UNIT
    tl.store(least + right * BLOCK_N + ours, cheapest(cost, senior, 1), mask=we)
    tl.store(distances + ours[:, None] * step + theirs[None, :], distance, mask=we[:, None] & they[None, :])
    if left != right:
        tl.store(least + left * BLOCK_N + theirs, cheapest(cost, junior, 0), mask=they)
        turned = tl.trans(distance)
        tl.store(distances + theirs[:, None] * step + ours[None, :], turned, mask=they[:, None] & we[None, :])


@triton.jit(do_not_specialize=["size", "breadth", "n", "r", "leading", "trailing"])
def part_kernel(
    mass, kept, source, target, scratch, size, breadth, n, r, leading, trailing, KEYS: tl.constexpr,
    LEAST: tl.constexpr, ROWS: tl.constexpr, PITCH: tl.constexpr, MASSED: tl.constexpr, BLOCK_N: tl.constexpr,
    TILE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_R: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Of one window: the r cheapest tokens go, each to the remaining one that costs least."""
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    total = leading + n + trailing
    kept += window * (total - r)
    source += window * r
    target += window * r
    scratch += window * size * UNIT
    index = tl.arange(0, BLOCK_N)
    inside = index < n

    least = scratch + LEAST
    cost = tl.load(least + index, mask=inside, other=float("inf"))
    for start in range(TILE, n, TILE):
        other = tl.load(least + start // TILE * BLOCK_N + index, mask=inside, other=float("inf"))
        cost = tl.where((other < cost) | (other != other), other, cost)
    # Nobody is senior to one token: it would cost twice as much as the most expensive of the others.
    alone = cost == float("inf")
    most = tl.max(tl.where(inside & (cost < float("inf")), cost, 0.0), axis=0)
    broken = tl.max((inside & (cost != cost)).to(tl.int32), axis=0) > 0
    cost = tl.where(alone, tl.where(broken, float("nan"), tl.maximum(2.0 * most, SMALLEST)), cost)
    key = tl.where(inside, keys(-cost, share_of(top_of(cost, inside)), index, -1, BLOCK_N), CLOSED)
    room = (scratch + KEYS).to(tl.pointer_type(tl.int32), bitcast=True)
    redundant = highest(key, room, index, n, r, AT_ONCE, False, BLOCK_N, BLOCK_J) & inside
    write_split(redundant, inside, index, kept, source, n, r, leading, trailing, BLOCK_N)
    tl.debug_barrier()  # other threads of this program read `source`

    if MASSED:
        mass += window * total + leading
    theirs = masses(mass, index, inside, MASSED, BLOCK_N)
    free = inside & (redundant == 0)
    distances = scratch + ROWS + n * PITCH
    step = breadth * UNIT
    for start in range(0, r, BLOCK_R):
        place = start + tl.arange(0, BLOCK_R)
        asked = place < r
        rows = tl.load(source + place, mask=asked, other=leading).to(tl.int32) - leading
        wanted = asked[:, None] & free[None, :]
        price = tl.load(distances + rows[:, None] * step + index[None, :], mask=wanted, other=0.0)
        if MASSED:
            m = masses(mass, rows, asked, MASSED, BLOCK_R)
            price = price * tl.div_rn(theirs[None, :], m[:, None] + theirs[None, :])
        else:
            price = 0.5 * price
        column = best_column(-price, free, index, BLOCK_N)
        tl.store(target + place, (column + leading).to(tl.int64), mask=asked)
