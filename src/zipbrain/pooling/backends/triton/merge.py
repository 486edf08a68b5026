# mypy: ignore-errors
"""Triton kernels for step 4 and its gradient: every program owns a few kept tokens and what joined them.

Kernel language, see `triton_language`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipbrain.pooling.backends.triton.language import after_others, with_branch

LARGEST_NORM = tl.constexpr(0)  # the mean's direction with the largest member's norm,
MEAN_NORM = tl.constexpr(1)  # with the mean of the members' norms,
PLAIN_MEAN = tl.constexpr(2)  # or the mean itself
NOTHING, SCALED = tl.constexpr(0), tl.constexpr(2)  # what is still to be added to x; 1: a branch as it is
SMALLEST = tl.constexpr(1.1754943508222875e-38)
BITS, TOKEN = tl.constexpr(16), tl.constexpr(2**16 - 1)  # enough for any token
NOBODY = tl.constexpr(2**31 - 1)


@triton.jit
def read_source(
    x, branch, packed, factor, column, inside, WIDTH: tl.constexpr, STEP: tl.constexpr, ADDED: tl.constexpr
):  # fmt: skip
    """The row of one source, with its branch; nothing if there is nobody."""
    token = packed & TOKEN
    mask = inside & (packed < NOBODY)
    values = tl.load(x + token * STEP + column, mask=mask, other=0.0)
    if ADDED != NOTHING:
        values = with_branch(values, branch, token * WIDTH + column, factor, mask, ADDED == SCALED)
    return values


@triton.jit
def layer_norm(result, mask, slope, shift, epsilon, WIDTH: tl.constexpr):
    """LayerNorm (BLOCK_M, BLOCK_D) of what is stored, rounded to its type, as a norm behind it would see it."""
    seen = result.to(tl.float32)
    mean = tl.sum(seen, axis=1) * (1.0 / WIDTH)
    centred = tl.where(mask, seen - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) * (1.0 / WIDTH)
    centred = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + epsilon))[:, None]
    return centred * slope[None, :] + shift[None, :]


@triton.jit(do_not_specialize=["x_window", "total", "r", "stays"])
def merge_kernel(
    x, x_window, branch, gain, kept, source, target, mass, out, out_mass, normed, scale, offset, epsilon, vanished,
    total, r, stays, WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, MODE: tl.constexpr,
    WEIGHED: tl.constexpr, NORMED: tl.constexpr, ADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr, TOGETHER: tl.constexpr, SOON: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Kept tokens `BLOCK_M i` to `BLOCK_M (i + 1)` of one window; NORMED: their LayerNorm as well.

    ADDED: the branch (total, WIDTH) of each window still belongs to x. TOGETHER: how many sources are added at a time:
    1, or more where BLOCK_M is 1. SOON: the norm's weights are read early. DEPENDENT: as in `after_others`.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    x += window * x_window * ALIGN
    kept += window * stays
    source += window * r
    target += window * r
    place = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = place < stays
    column = tl.arange(0, BLOCK_D)
    inside = column < WIDTH
    mask = real[:, None] & inside[None, :]
    own = tl.load(kept + place, mask=real, other=-2)
    rows = tl.load(x + own.to(tl.int32)[:, None] * STEP + column[None, :], mask=mask, other=0.0)
    if NORMED and SOON:  # with few windows nobody would have anything else to do at the end
        slope = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(offset + column, mask=inside, other=0.0).to(tl.float32)
    factor = 1.0
    if ADDED != NOTHING:
        branch += window * total * WIDTH
        if ADDED == SCALED:
            factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
        own_at = own.to(tl.int32)[:, None] * WIDTH + column[None, :]
        wide = factor[None, :] if ADDED == SCALED else factor
        rows = with_branch(rows, branch, own_at, wide, mask, ADDED == SCALED)
    rows = rows.to(tl.float32)
    own_norm = tl.sqrt_rn(tl.sum(rows * rows, axis=1))
    if WEIGHED:
        mass += window * total
        weight = tl.load(mass + own, mask=real, other=1.0).to(tl.float32)
        sums = rows * weight[:, None]
    else:
        weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        sums = rows
    length = own_norm * weight if MODE == MEAN_NORM else own_norm
    joined = tl.zeros((BLOCK_M,), tl.int32)

    # Kept tokens are in ascending order, so what joined this block is what joined a token from its first to its last.
    low = tl.min(tl.where(real, own, total), axis=0)
    high = tl.max(own, axis=0)
    index = tl.arange(0, BLOCK_S)
    names = tl.load(source + index, mask=index < r, other=0).to(tl.int32)
    partner = tl.load(target + index, mask=index < r, other=-1)
    here = (partner >= low) & (partner <= high)
    if TOGETHER == 1:
        # A source's number and its token are one number: the least is the next source.
        waiting = tl.where(here, (index << BITS) + names, NOBODY)
        following = tl.min(waiting, axis=0)
        ahead = read_source(x, branch, following, factor, column, inside, WIDTH, STEP, ADDED)
        while following < NOBODY:  # in ascending order of the sources; the next row is read while one is added
            this, values = following, ahead.to(tl.float32)
            waiting = tl.where(waiting > this, waiting, NOBODY)
            following = tl.min(waiting, axis=0)
            ahead = read_source(x, branch, following, factor, column, inside, WIDTH, STEP, ADDED)
            mine = own == tl.load(target + (this >> BITS))
            norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
            share = tl.load(mass + (this & TOKEN)).to(tl.float32) if WEIGHED else 1.0
            sums += tl.where(mine[:, None], (values * share)[None, :], 0.0)
            weight += tl.where(mine, share, 0.0)
            if MODE == MEAN_NORM:
                length += tl.where(mine, norm * share, 0.0)
            else:
                length = tl.where(mine, tl.maximum(length, norm), length)
            joined += mine.to(tl.int32)
    else:  # many join the one token of this program
        tl.static_assert(BLOCK_M == 1)
        number = tl.where(here, tl.cumsum(here.to(tl.int32), axis=0), 0)
        joins = tl.max(number, axis=0)
        joined += joins
        for first in range(0, joins, TOGETHER):
            wanted = first + 1 + tl.arange(0, TOGETHER)
            token = tl.min(tl.where(number[None, :] == wanted[:, None], names[None, :], NOBODY), axis=1)
            there = token < NOBODY
            both = there[:, None] & inside[None, :]
            values = tl.load(x + token[:, None] * STEP + column[None, :], mask=both, other=0.0)
            if ADDED != NOTHING:
                tokens_at = token[:, None] * WIDTH + column[None, :]
                values = with_branch(values, branch, tokens_at, wide, both, ADDED == SCALED)
            values = values.to(tl.float32)
            norm = tl.sqrt_rn(tl.sum(values * values, axis=1))
            share = there.to(tl.float32)
            if WEIGHED:
                share = tl.load(mass + token, mask=there, other=0.0).to(tl.float32)
                values = values * share[:, None]
            sums += tl.sum(values, axis=0)[None, :]
            weight += tl.sum(share, axis=0)
            if MODE == MEAN_NORM:
                length += tl.sum(norm * share, axis=0)
            else:
                length = tl.maximum(length, tl.max(norm, axis=0))

    if MODE == PLAIN_MEAN:
        merged = tl.div_rn(sums, weight[:, None])
    else:
        if MODE == MEAN_NORM:
            length = tl.div_rn(length, weight)
        found = tl.sqrt_rn(tl.sum(sums * sums, axis=1))
        lost = found * vanished < length  # a sum that vanishes has no direction: the kept token's
        size = tl.maximum(tl.where(lost, own_norm, found), SMALLEST)
        merged = tl.where(lost[:, None], rows, sums) * tl.div_rn(length, size)[:, None]
    result = tl.where((joined > 0)[:, None], merged, rows).to(out.dtype.element_ty)
    at = (window * stays + place)[:, None] * WIDTH + column[None, :]
    tl.store(out + at, result, mask=mask)
    if WEIGHED:
        tl.store(out_mass + window * stays + place, weight.to(out_mass.dtype.element_ty), mask=real)
    if NORMED:
        if not SOON:
            slope = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
            shift = tl.load(offset + column, mask=inside, other=0.0).to(tl.float32)
        values = layer_norm(result, mask, slope, shift, epsilon, WIDTH).to(normed.dtype.element_ty)
        tl.store(normed + at, values, mask=mask)


@triton.jit(do_not_specialize=["x_window", "total", "r", "stays"])
def merge_gradient_kernel(
    x, x_window, kept, source, target, above, out, vanished, total, r, stays,
    WIDTH: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradient of LARGEST_NORM without mass: from `above`, that of the kept tokens, to `out`, that of all tokens.

    A group's token is L s / |s| with the sum s and the largest norm L: every member gets the part of the gradient that
    is perpendicular to s, times L / |s|; the longest one also what falls along s, in its own direction.
    """
    after_others(DEPENDENT)
    window = tl.program_id(0).to(tl.int64)
    x += window * x_window * ALIGN
    kept += window * stays
    source += window * r
    target += window * r
    out += window * total * WIDTH
    place = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = place < stays
    column = tl.arange(0, BLOCK_D)
    inside = column < WIDTH
    mask = real[:, None] & inside[None, :]
    own = tl.load(kept + place, mask=real, other=-2)
    rows = tl.load(x + own.to(tl.int32)[:, None] * STEP + column[None, :], mask=mask, other=0.0).to(tl.float32)
    own_norm = tl.sqrt_rn(tl.sum(rows * rows, axis=1))
    sums, length = rows, own_norm
    longest = tl.full((BLOCK_M,), -1, tl.int32)  # number of the longest source, -1: the kept token itself
    joined = tl.zeros((BLOCK_M,), tl.int32)
    low = tl.min(tl.where(real, own, total), axis=0)
    high = tl.max(own, axis=0)
    index = tl.arange(0, BLOCK_S)
    partner = tl.load(target + index, mask=index < r, other=-1)
    here = (partner >= low) & (partner <= high)
    number = tl.min(tl.where(here, index, BLOCK_S), axis=0)
    while number < BLOCK_S:
        token = tl.load(source + number)
        mine = own == tl.load(target + number)
        values = tl.load(x + token.to(tl.int32) * STEP + column, mask=inside, other=0.0).to(tl.float32)
        norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
        sums += tl.where(mine[:, None], values[None, :], 0.0)
        longest = tl.where(mine & (norm > length), number, longest)
        length = tl.where(mine, tl.maximum(length, norm), length)
        joined += mine.to(tl.int32)
        left = here & (index > number)
        number = tl.min(tl.where(left, index, BLOCK_S), axis=0)

    found = tl.sqrt_rn(tl.sum(sums * sums, axis=1))
    lost = found * vanished < length
    size = tl.maximum(tl.where(lost, own_norm, found), SMALLEST)
    unit = tl.where(lost[:, None], rows, sums) * tl.div_rn(1.0, size)[:, None]
    given = tl.load(above + (window * stays + place)[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    given = given.to(tl.float32)
    along = tl.sum(unit * given, axis=1)
    across = (given - unit * along[:, None]) * tl.div_rn(length, size)[:, None]
    to_own = tl.where((longest < 0) & (own_norm > 0), along * tl.div_rn(1.0, tl.maximum(own_norm, SMALLEST)), 0.0)
    result = tl.where((joined > 0)[:, None], across + rows * to_own[:, None], given)
    tl.store(out + own[:, None] * WIDTH + column[None, :], result.to(out.dtype.element_ty), mask=mask)
    number = tl.min(tl.where(here, index, BLOCK_S), axis=0)
    while number < BLOCK_S:
        token = tl.load(source + number)
        mine = own == tl.load(target + number)
        values = tl.load(x + token.to(tl.int32) * STEP + column, mask=inside, other=0.0).to(tl.float32)
        norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
        told = tl.sum(tl.where((mine & (lost == 0))[:, None], across, 0.0), axis=0)
        back = tl.sum(tl.where(mine & (longest == number), along, 0.0), axis=0)
        told += values * tl.where(norm > 0, back * tl.div_rn(1.0, tl.maximum(norm, SMALLEST)), 0.0)
        # The program of another token may look at this source too: only its own target's program writes.
        ours = tl.max(mine.to(tl.int32), axis=0) > 0
        tl.store(out + token * WIDTH + column, told.to(out.dtype.element_ty), mask=inside & ours)
        left = here & (index > number)
        number = tl.min(tl.where(left, index, BLOCK_S), axis=0)
