# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels that group by `Twins`: measure and centre the four spaces, compare all pairs, split and match.

A window's scratch memory holds sums of each chunk of features, keys, least costs by tile, squared norms of tokens in
each chunk, centred rows, and squared distances. The rows are stored before their spread is known; programs that read
them scale them. All pairs are compared once: a tile of pairs serves its rows and, turned, its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.language import Layout
from zipbrain.pooling.methods.twins import OUTLIER, RARE, ROUNDING

_CHUNK = 32  # features read at a time; none belongs to two spaces
_TILE = 64  # tokens whose pairs with as many others a program compares
_UNIT = 16  # divides all sizes in the scratch memory
_SUMS = 3  # of a chunk: variance without outliers and with them, square of the mean

UNIT = tl.constexpr(_UNIT)  # of sizes that come as numbers: the compiler must know what divides them
MOST_TILES = tl.constexpr(16)  # in a row of all pairs
SUMS = tl.constexpr(_SUMS)
ONE_IN = tl.constexpr(RARE)
BEYOND = tl.constexpr(OUTLIER)
NOTHING = tl.constexpr(ROUNDING)
AT_ONCE = tl.constexpr(128)  # as in `highest`: more would not fit into the registers beside the rest


@dataclass(frozen=True)
class TwinsSizes:
    """Compile-time numbers of the four kernels; ``keys``, ``least``, ``norms`` and ``rows`` are places in scratch."""

    x: Layout
    q: Layout
    k: Layout
    v: Layout
    has_mass: bool
    q_first: int  # first chunks of q, k and v
    k_first: int
    v_first: int
    chunks: int
    keys: int
    least: int
    norms: int
    rows: int
    block_n: int
    tile: int
    block_r: int
    block_s: int  # chunks, padded
    chunk: int = _CHUNK
    block_j: int = 32  # keys compared at a time where all pairs at once are too many


@triton.jit
def is_usual(scratch, first, last, n, S: tl.constexpr):
    """Mask (block_n,) of the tokens that are no outliers, by their norms, in the space of chunks `first` to `last`."""
    index = tl.arange(0, S.block_n)
    inside = index < n
    norm = tl.zeros((S.block_n,), tl.float32)
    for chunk in range(first, last):
        norm += tl.load(scratch + S.norms + chunk * S.block_n + index, mask=inside, other=0.0)
    # Bits of non-negative numbers are ordered as they are, NaN above all: the largest that enough tokens reach.
    bits = tl.where(inside, norm.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    usual = tl.full([], 0, tl.int32)
    for place in tl.static_range(31):
        higher = usual | (1 << (30 - place))
        usual = tl.where(tl.sum((bits >= higher).to(tl.int32), axis=0) > n // ONE_IN, higher, usual)
    last_usual = usual.to(tl.float32, bitcast=True)
    return inside & ((norm <= BEYOND * last_usual) | ((last_usual < float("inf")) == 0))


@triton.jit
def centre(
    z, window_step, head_step, first, last, scratch, n, leading, L: tl.constexpr, S: tl.constexpr, P: tl.constexpr
):
    """Write one chunk of features, in a space that has chunks `first` to `last`.

    P = 0 writes the squared norms of all tokens, P = 1 rows centred without outliers, their squares and the mean's.
    """
    window, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    base = z + window * window_step * L.align + leading * L.step
    index = tl.arange(0, S.block_n)
    inside = index < n
    feature = (chunk - first) * S.chunk
    values = zl.read(base, index, inside, 0, head_step * L.align, feature, L, S.chunk).to(tl.float32)
    usual = is_usual(scratch, first, last, n, S) if P == 1 else inside
    count = tl.sum(usual.to(tl.float32), axis=0)
    mean = tl.div_rn(tl.sum(tl.where(usual[:, None], values, 0.0), axis=0), count)
    centred = tl.where(inside[:, None], values - mean[None, :], 0.0)
    squares = tl.sum(centred * centred, axis=1)
    norms = scratch + S.norms + chunk * S.block_n + index
    if P == 0:
        tl.store(norms, squares, mask=inside)
    else:
        column = chunk * S.chunk + tl.arange(0, S.chunk)
        rows = scratch + S.rows + index[:, None] * (S.chunks * S.chunk) + column[None, :]
        tl.store(rows, centred, mask=inside[:, None])
        sums = scratch + SUMS * chunk
        every = tl.load(norms, mask=inside, other=0.0)
        tl.store(sums, tl.div_rn(tl.sum(tl.where(usual, squares, 0.0), axis=0), count))
        tl.store(sums + 1, tl.div_rn(tl.sum(every, axis=0), n.to(tl.float32)))
        tl.store(sums + 2, tl.sum(mean * mean, axis=0))


_DISTANCES = ["x_window", "q_window", "q_head", "k_window", "k_head", "v_window", "v_head"]


@triton.jit(do_not_specialize=[*_DISTANCES, "size", "n", "leading"])
def centre_kernel(
    x,
    x_window,
    q,
    q_window,
    q_head,
    k,
    k_window,
    k_head,
    v,
    v_window,
    v_head,
    scratch,
    size,
    n,
    leading,
    P: tl.constexpr,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One chunk of features of one window, measured (P = 0) or centred (P = 1)."""
    zl.wait_for_previous(OVERLAP)
    chunk = tl.program_id(1)
    scratch += tl.program_id(0).to(tl.int64) * size * UNIT
    if chunk < S.q_first:
        centre(x, x_window, 0, 0, S.q_first, scratch, n, leading, S.x, S, P)
    elif chunk < S.k_first:
        centre(q, q_window, q_head, S.q_first, S.k_first, scratch, n, leading, S.q, S, P)
    elif chunk < S.v_first:
        centre(k, k_window, k_head, S.k_first, S.v_first, scratch, n, leading, S.k, S, P)
    else:
        centre(v, v_window, v_head, S.v_first, S.chunks, scratch, n, leading, S.v, S, P)


@triton.jit
def scale_of(variances, everything, means, here, flat):
    """0.5 / sqrt(mean squared norm) of a space, as the plain operators compute it."""
    variance, full = tl.sum(tl.where(here, variances, 0.0), axis=0), tl.sum(tl.where(here, everything, 0.0), axis=0)
    least = tl.sum(tl.where(here, means, 0.0), axis=0) * flat
    least = tl.where(least < zl.SMALLEST, zl.SMALLEST, least)  # NaN stays
    variance = tl.where((variance < least) | (variance < NOTHING * full), full, variance)
    both = tl.where((variance == variance) & (least == least), tl.maximum(variance, least), float("nan"))
    return tl.div_rn(0.5, tl.sqrt_rn(both))


@triton.jit
def cheapest(cost, free, AXIS: tl.constexpr):
    """The least of the free costs along an axis; NaN if one of them is NaN, infinite if none is free."""
    known = free & (cost == cost)
    least = tl.min(tl.where(known, cost, float("inf")), axis=AXIS)
    unknown = tl.max((free & (known == 0)).to(tl.int32), axis=AXIS) > 0
    return tl.where(unknown, float("nan"), least)


@triton.jit
def masses(mass, at, inside, HAS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of some tokens in float32, 1 without mass."""
    return tl.load(mass + at, mask=inside, other=1.0).to(tl.float32) if HAS_MASS else tl.full((BLOCK,), 1.0, tl.float32)


@triton.jit(do_not_specialize=["size", "breadth", "n", "leading", "total"])
def pairs_kernel(
    mass, order, scratch, size, breadth, n, leading, total, same, flat, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Squared distances of one tile of pairs, and the least costs of its rows and columns."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    scratch += window * size * UNIT
    pair = tl.program_id(1)  # of (0, 0), (0, 1), (1, 1), (0, 2), ...
    number = tl.arange(0, MOST_TILES)
    right = tl.sum((number * (number + 1) // 2 <= pair).to(tl.int32), axis=0) - 1
    left = pair - right * (right + 1) // 2

    some = tl.arange(0, S.block_s)
    variances = tl.load(scratch + SUMS * some, mask=some < S.chunks, other=0.0)
    full = tl.load(scratch + SUMS * some + 1, mask=some < S.chunks, other=0.0)
    means = tl.load(scratch + SUMS * some + 2, mask=some < S.chunks, other=0.0)
    x_scale = scale_of(variances, full, means, some < S.q_first, flat)
    q_scale = scale_of(variances, full, means, (some >= S.q_first) & (some < S.k_first), flat)
    k_scale = scale_of(variances, full, means, (some >= S.k_first) & (some < S.v_first), flat)
    v_scale = scale_of(variances, full, means, (some >= S.v_first) & (some < S.chunks), flat)

    ours = left * S.tile + tl.arange(0, S.tile)
    theirs = right * S.tile + tl.arange(0, S.tile)
    column = tl.arange(0, S.chunk)
    our_rows = scratch + S.rows + ours[:, None] * (S.chunks * S.chunk) + column[None, :]
    their_rows = scratch + S.rows + theirs[:, None] * (S.chunks * S.chunk) + column[None, :]
    we, they = ours < n, theirs < n
    product = tl.zeros((S.tile, S.tile), tl.float32)
    our_squares = tl.zeros((S.tile, S.chunk), tl.float32)
    their_squares = tl.zeros((S.tile, S.chunk), tl.float32)
    for chunk in range(S.chunks):
        scale = tl.where(chunk < S.k_first, q_scale, tl.where(chunk < S.v_first, k_scale, v_scale))
        scale = tl.where(chunk < S.q_first, x_scale, scale)
        a = tl.load(our_rows + chunk * S.chunk, mask=we[:, None], other=0.0) * scale
        b = tl.load(their_rows + chunk * S.chunk, mask=they[:, None], other=0.0) * scale
        product = zl.product_of(a, b, product)
        our_squares += a * a
        their_squares += b * b
    distance = tl.sum(our_squares, axis=1)[:, None] + tl.sum(their_squares, axis=1)[None, :] - 2.0 * product
    distance = tl.where(distance < same, same, distance)  # NaN stays

    if S.has_mass:
        mass += window * total + leading
    m, theirs_m = masses(mass, ours, we, S.has_mass, S.tile), masses(mass, theirs, they, S.has_mass, S.tile)
    if S.has_mass:
        cost = tl.div_rn(distance, tl.div_rn(1.0, m)[:, None] + tl.div_rn(1.0, theirs_m)[None, :])
    else:
        cost = 0.5 * distance
    rank = m + tl.load(order + ours, mask=we, other=0.0)
    their_rank = theirs_m + tl.load(order + theirs, mask=they, other=0.0)
    senior = ((their_rank[None, :] <= rank[:, None]) == 0) & they[None, :]
    junior = ((rank[:, None] <= their_rank[None, :]) == 0) & we[:, None]
    least = scratch + S.least
    distances = scratch + S.rows + n * (S.chunks * S.chunk)
    step = breadth * UNIT
    tl.store(least + right * S.block_n + ours, cheapest(cost, senior, 1), mask=we)
    tl.store(distances + ours[:, None] * step + theirs[None, :], distance, mask=we[:, None] & they[None, :])
    if left != right:
        tl.store(least + left * S.block_n + theirs, cheapest(cost, junior, 0), mask=they)
        turned = tl.trans(distance)
        tl.store(distances + theirs[:, None] * step + ours[None, :], turned, mask=they[:, None] & we[None, :])


@triton.jit(do_not_specialize=["size", "breadth", "n", "r", "leading", "trailing"])
def part_kernel(
    mass, kept, source, target, scratch, size, breadth, n, r, leading, trailing, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Split one window: the r cheapest tokens go, each to the remaining one that costs least."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    total = leading + n + trailing
    kept += window * (total - r)
    source += window * r
    target += window * r
    scratch += window * size * UNIT
    index = tl.arange(0, S.block_n)
    inside = index < n

    least = scratch + S.least
    cost = tl.load(least + index, mask=inside, other=float("inf"))
    for start in range(S.tile, n, S.tile):
        other = tl.load(least + start // S.tile * S.block_n + index, mask=inside, other=float("inf"))
        cost = tl.where((other < cost) | (other != other), other, cost)
    if S.has_mass:
        mass += window * total + leading
    theirs = masses(mass, index, inside, S.has_mass, S.block_n)
    # The most senior token has no partner: it costs twice as much as the most expensive of the others.
    alone = cost == float("inf")
    limit = n.to(tl.float32) * tl.max(tl.where(inside, theirs, 0.0), axis=0)  # none costs more, outliers apart
    cost = tl.where((cost > limit) & (alone == 0), limit, cost)
    most = tl.max(tl.where(inside & (cost < float("inf")), cost, 0.0), axis=0)
    broken = tl.max((inside & (cost != cost)).to(tl.int32), axis=0) > 0
    cost = tl.where(alone, tl.where(broken, float("nan"), tl.maximum(2.0 * most, zl.SMALLEST)), cost)
    key = tl.where(inside, zl.keys(-cost, zl.share_of(zl.top_of(cost, inside)), index, -1, S.block_n), zl.CLOSED)
    ranks = (scratch + S.keys).to(tl.pointer_type(tl.int32), bitcast=True)
    redundant = zl.highest(key, ranks, index, n, r, AT_ONCE, False, S.block_n, S.block_j) & inside
    zl.write_part(redundant, inside, index, 0, kept, source, leading)
    zl.write_ends(index, kept, n, r, leading, trailing, S.block_n)
    tl.debug_barrier()  # other threads of this program read `source`

    free = inside & (redundant == 0)
    distances = scratch + S.rows + n * (S.chunks * S.chunk)
    step = breadth * UNIT
    for start in range(0, r, S.block_r):
        place = start + tl.arange(0, S.block_r)
        asked = place < r
        rows = tl.load(source + place, mask=asked, other=leading).to(tl.int32) - leading
        wanted = asked[:, None] & free[None, :]
        price = tl.load(distances + rows[:, None] * step + index[None, :], mask=wanted, other=0.0)
        if S.has_mass:
            m = masses(mass, rows, asked, S.has_mass, S.block_r)
            price = price * tl.div_rn(theirs[None, :], m[:, None] + theirs[None, :])
        else:
            price = 0.5 * price
        column = zl.best_column(-price, free, index, S.block_n)
        tl.store(target + place, (column + leading).to(tl.int64), mask=asked)


def group(
    x: Tensor, heads: tuple[Tensor, ...], mass: Tensor | None, order: Tensor, counts: zl.Counts, least: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3 of `Twins` by x (B, T, D) and q, k, v (B, H, T, d) averaged over heads: kept, source, target.

    ``order`` is `evenly_spread`. ``least`` holds the least squared distance of two tokens, and the least variance of a
    space as a share of its squared mean. Without mass every token stands for one.
    """
    x, q, k, v = spaces = [zl.dense(values) for values in (x, *heads)]
    mass = None if mass is None else mass.contiguous()
    batch, total, r, leading = x.shape[0], int(x.shape[1]), counts.r, counts.leading
    n = total - leading - counts.trailing
    kept, source, target = zl.empty_index(x, total, r)
    if batch == 0:
        return kept, source, target
    block_n = zl.power_of_two(n, 16)
    tile = min(_TILE, block_n)
    ends = list(accumulate(-(-int(values.shape[-1]) // _CHUNK) for values in spaces))  # chunks up to each space's last
    keys = -(-_SUMS * ends[3] // _UNIT) * _UNIT  # behind the sums of the chunks
    costs = keys + block_n
    norms = costs + block_n // tile * block_n
    rows = norms + ends[3] * block_n
    breadth = -(-n // _UNIT)  # of a row of all pairs, in units
    size = rows // _UNIT + n * (ends[3] * _CHUNK // _UNIT + breadth)  # of a window's scratch, in units
    layouts = [Layout.of(values, min(place, 1)) for place, values in enumerate(spaces)]
    block_r = 32 if r > 16 and block_n <= 256 else 16
    places = *ends, keys, costs, norms, rows, block_n, tile, block_r, zl.power_of_two(ends[3], 16)
    sizes = TwinsSizes(layouts[0], layouts[1], layouts[2], layouts[3], mass is not None, *places)
    scratch = torch.empty((batch, size * _UNIT), dtype=torch.float32, device=x.device)
    read: list[Any] = [x, layouts[0].distances(x)[0]]
    for values, layout in zip((q, k, v), layouts[1:], strict=True):
        read += [values, *layout.distances(values)]
    across = -(-n // tile)
    with torch.cuda.device_of(x):
        warps = 4 if block_n <= 128 else 8
        for step in (0, 1):
            zl.launch(centre_kernel, (batch, ends[3]), warps, *read, scratch, size, n, leading, step, sizes=sizes)
        args: list[Any] = [mass, order, scratch, size, breadth, n, leading, total, *least]
        zl.launch(pairs_kernel, (batch, across * (across + 1) // 2), 8 if tile == _TILE else 4, *args, sizes=sizes)
        args = [mass, kept, source, target, scratch, size, breadth, n, r, leading, counts.trailing]
        warps = 4 if block_n <= 64 else 8 if block_n <= 128 else 16
        zl.launch(part_kernel, (batch, 1), warps, *args, sizes=sizes)
    return kept, source, target
