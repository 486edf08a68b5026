# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels for step 4: every program owns a few kept tokens and their sources; and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.entry import Index
from zipbrain.pooling.backends.triton.language import Layout
from zipbrain.pooling.backends.triton.prepare import Branch
from zipbrain.pooling.merges import VANISHED

Norm = tuple[Tensor, Tensor, float]  # weight, bias and epsilon of a LayerNorm

_TILE = 512  # features that a warp merges at a time

LARGEST_NORM = tl.constexpr(0)  # modes: the mean's direction with the largest member's norm,
MEAN_NORM = tl.constexpr(1)  # with the mean of the members' norms,
PLAIN_MEAN = tl.constexpr(2)  # or the mean itself
NOTHING, SCALED = tl.constexpr(0), tl.constexpr(2)  # branches still to be added to x; 1: without a gain
BITS, TOKEN = tl.constexpr(16), tl.constexpr(2**16 - 1)  # enough for any token
NO_TOKEN = tl.constexpr(2**31 - 1)


@dataclass(frozen=True)
class MergeSizes:
    """Compile-time numbers of `merge_kernel` and `merge_gradient_kernel`."""

    x: Layout
    block_m: int  # kept tokens of a program
    block_d: int
    block_s: int  # sources, padded
    mode: int = 0
    is_weighed: bool = False  # by mass
    is_normed: bool = False  # the LayerNorm behind it as well
    branch: int = 0


@triton.jit
def read_source(x, branch, packed, factor, column, inside, S: tl.constexpr):
    """The row of one source, with its branch; zeros if there is none."""
    token = packed & TOKEN
    mask = inside & (packed < NO_TOKEN)
    values = tl.load(x + token * S.x.step + column, mask=mask, other=0.0)
    if S.branch != NOTHING:
        values = zl.with_branch(values, branch, token * S.x.width + column, factor, mask, S.branch == SCALED)
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
    x,
    x_window,
    branch,
    gain,
    kept,
    source,
    target,
    mass,
    out,
    out_mass,
    normed,
    scale,
    offset,
    epsilon,
    vanished,
    total,
    r,
    stays,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Kept tokens `block_m i` to `block_m (i + 1)` of one window; a branch is (total, width) for each window."""
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    x += window * x_window * S.x.align
    kept += window * stays
    source += window * r
    target += window * r
    place = tl.program_id(1) * S.block_m + tl.arange(0, S.block_m)
    real = place < stays
    column = tl.arange(0, S.block_d)
    inside = column < S.x.width
    mask = real[:, None] & inside[None, :]
    own = tl.load(kept + place, mask=real, other=-2)
    rows = tl.load(x + own.to(tl.int32)[:, None] * S.x.step + column[None, :], mask=mask, other=0.0)
    factor = 1.0
    if S.branch != NOTHING:
        branch += window * total * S.x.width
        if S.branch == SCALED:
            factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
        own_at = own.to(tl.int32)[:, None] * S.x.width + column[None, :]
        wide = factor[None, :] if S.branch == SCALED else factor  # type: ignore[index]
        rows = zl.with_branch(rows, branch, own_at, wide, mask, S.branch == SCALED)
    rows = rows.to(tl.float32)
    own_norm = tl.sqrt_rn(tl.sum(rows * rows, axis=1))
    if S.is_weighed:
        mass += window * total
        weight = tl.load(mass + own, mask=real, other=1.0).to(tl.float32)
        sums = rows * weight[:, None]
    else:
        weight = tl.full((S.block_m,), 1.0, tl.float32)
        sums = rows
    length = own_norm * weight if S.mode == MEAN_NORM else own_norm
    joined = tl.zeros((S.block_m,), tl.int32)

    # Kept tokens ascend, so the sources of this block have targets from its first token to its last.
    low = tl.min(tl.where(real, own, total), axis=0)
    high = tl.max(own, axis=0)
    index = tl.arange(0, S.block_s)
    names = tl.load(source + index, mask=index < r, other=0).to(tl.int32)
    partner = tl.load(target + index, mask=index < r, other=-1)
    here = (partner >= low) & (partner <= high)
    # A source's number and its token are packed in one number: the least is the next source.
    waiting = tl.where(here, (index << BITS) + names, NO_TOKEN)
    following = tl.min(waiting, axis=0)
    ahead = read_source(x, branch, following, factor, column, inside, S)
    while following < NO_TOKEN:  # in ascending order of the sources; the next row is read while one is added
        this, values = following, ahead.to(tl.float32)
        waiting = tl.where(waiting > this, waiting, NO_TOKEN)
        following = tl.min(waiting, axis=0)
        ahead = read_source(x, branch, following, factor, column, inside, S)
        mine = own == tl.load(target + (this >> BITS))
        norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
        share = tl.load(mass + (this & TOKEN)).to(tl.float32) if S.is_weighed else 1.0
        sums += tl.where(mine[:, None], (values * share)[None, :], 0.0)
        weight += tl.where(mine, share, 0.0)
        if S.mode == MEAN_NORM:
            length += tl.where(mine, norm * share, 0.0)
        else:
            length = tl.where(mine, tl.maximum(length, norm), length)
        joined += mine.to(tl.int32)

    if S.mode == PLAIN_MEAN:
        merged = tl.div_rn(sums, weight[:, None])
    else:
        if S.mode == MEAN_NORM:
            length = tl.div_rn(length, weight)
        found = tl.sqrt_rn(tl.sum(sums * sums, axis=1))
        lost = found * vanished < length  # a sum that vanishes has no direction: the kept token's
        size = tl.maximum(tl.where(lost, own_norm, found), zl.SMALLEST)
        merged = tl.where(lost[:, None], rows, sums) * tl.div_rn(length, size)[:, None]
    result = tl.where((joined > 0)[:, None], merged, rows).to(out.dtype.element_ty)
    at = (window * stays + place)[:, None] * S.x.width + column[None, :]
    tl.store(out + at, result, mask=mask)
    if S.is_weighed:
        tl.store(out_mass + window * stays + place, weight.to(out_mass.dtype.element_ty), mask=real)
    if S.is_normed:
        slope = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(offset + column, mask=inside, other=0.0).to(tl.float32)
        values = layer_norm(result, mask, slope, shift, epsilon, S.x.width).to(normed.dtype.element_ty)
        tl.store(normed + at, values, mask=mask)


@triton.jit(do_not_specialize=["x_window", "total", "r", "stays"])
def merge_gradient_kernel(
    x, x_window, kept, source, target, above, out, vanished, total, r, stays, S: tl.constexpr, OVERLAP: tl.constexpr
):
    """Gradient of LARGEST_NORM without mass: from `above` of the kept tokens to `out` of all tokens.

    A group's token is L s / |s| with the sum s and the largest norm L: every member gets the part of the gradient that
    is perpendicular to s, times L / |s|; the longest one also what falls along s, in its own direction.
    """
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    x += window * x_window * S.x.align
    kept += window * stays
    source += window * r
    target += window * r
    out += window * total * S.x.width
    place = tl.program_id(1) * S.block_m + tl.arange(0, S.block_m)
    real = place < stays
    column = tl.arange(0, S.block_d)
    inside = column < S.x.width
    mask = real[:, None] & inside[None, :]
    own = tl.load(kept + place, mask=real, other=-2)
    rows = tl.load(x + own.to(tl.int32)[:, None] * S.x.step + column[None, :], mask=mask, other=0.0).to(tl.float32)
    own_norm = tl.sqrt_rn(tl.sum(rows * rows, axis=1))
    sums, length = rows, own_norm
    longest = tl.full((S.block_m,), -1, tl.int32)  # number of the longest source, -1: the kept token itself
    joined = tl.zeros((S.block_m,), tl.int32)
    low = tl.min(tl.where(real, own, total), axis=0)
    high = tl.max(own, axis=0)
    index = tl.arange(0, S.block_s)
    partner = tl.load(target + index, mask=index < r, other=-1)
    here = (partner >= low) & (partner <= high)
    number = tl.min(tl.where(here, index, S.block_s), axis=0)
    while number < S.block_s:
        token = tl.load(source + number)
        mine = own == tl.load(target + number)
        values = tl.load(x + token.to(tl.int32) * S.x.step + column, mask=inside, other=0.0).to(tl.float32)
        norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
        sums += tl.where(mine[:, None], values[None, :], 0.0)
        longest = tl.where(mine & (norm > length), number, longest)
        length = tl.where(mine, tl.maximum(length, norm), length)
        joined += mine.to(tl.int32)
        left = here & (index > number)
        number = tl.min(tl.where(left, index, S.block_s), axis=0)

    found = tl.sqrt_rn(tl.sum(sums * sums, axis=1))
    lost = found * vanished < length
    size = tl.maximum(tl.where(lost, own_norm, found), zl.SMALLEST)
    unit = tl.where(lost[:, None], rows, sums) * tl.div_rn(1.0, size)[:, None]
    given = tl.load(above + (window * stays + place)[:, None] * S.x.width + column[None, :], mask=mask, other=0.0)
    given = given.to(tl.float32)
    along = tl.sum(unit * given, axis=1)
    across = (given - unit * along[:, None]) * tl.div_rn(length, size)[:, None]
    to_own = tl.where((longest < 0) & (own_norm > 0), along * tl.div_rn(1.0, tl.maximum(own_norm, zl.SMALLEST)), 0.0)
    result = tl.where((joined > 0)[:, None], across + rows * to_own[:, None], given)
    tl.store(out + own[:, None] * S.x.width + column[None, :], result.to(out.dtype.element_ty), mask=mask)
    number = tl.min(tl.where(here, index, S.block_s), axis=0)
    while number < S.block_s:
        token = tl.load(source + number)
        mine = own == tl.load(target + number)
        values = tl.load(x + token.to(tl.int32) * S.x.step + column, mask=inside, other=0.0).to(tl.float32)
        norm = tl.sqrt_rn(tl.sum(values * values, axis=0))
        back_values = tl.sum(tl.where((mine & (lost == 0))[:, None], across, 0.0), axis=0)
        back = tl.sum(tl.where(mine & (longest == number), along, 0.0), axis=0)
        back_values += values * tl.where(norm > 0, back * tl.div_rn(1.0, tl.maximum(norm, zl.SMALLEST)), 0.0)
        # Programs of other tokens may read this source too: only the program of its target writes.
        ours = tl.max(mine.to(tl.int32), axis=0) > 0
        tl.store(out + token * S.x.width + column, back_values.to(out.dtype.element_ty), mask=inside & ours)
        left = here & (index > number)
        number = tl.min(tl.where(left, index, S.block_s), axis=0)


# -- launching ---------------------------------------------------------------------------------------------------------


def merge(
    x: Tensor,
    index: Index,
    mode: int,
    mass: Tensor | None = None,
    norm: Norm | None = None,
    branch: Branch | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Step 4: merged features (B, T - r, D), their mass (B, T - r) and their LayerNorm, None if not wanted.

    ``mode`` is 0 for the largest norm, 1 for the mean of the norms, 2 for the plain mean; ``kept`` ascends. Mass (B, T)
    weighs the merge and is merged itself; a branch is added to x first.
    """
    x, (kept, source, target) = zl.dense(x), (one.contiguous() for one in index)
    batch, total, width = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
    out_mass = None if mass is None else torch.empty((batch, stays), dtype=mass.dtype, device=x.device)
    normed = None if norm is None else torch.empty_like(out)
    if batch == 0:
        return out, out_mass, normed
    mass = None if mass is None else mass.contiguous()
    scale, offset, epsilon = (None, None, 0.0) if norm is None else (*(one.contiguous() for one in norm[:2]), norm[2])
    values, gain = branch or (None, None)
    how = 0 if branch is None else 1 if gain is None else 2
    sizes = MergeSizes(*_sizes(x, r), mode, mass is not None, norm is not None, how)
    args = [x, sizes.x.distances(x)[0], values, gain, kept, source, target, mass, out, out_mass, normed, scale, offset]
    with torch.cuda.device_of(x):
        grid = batch, -(-stays // sizes.block_m)
        zl.launch(merge_kernel, grid, _warps(sizes), *args, epsilon, VANISHED, total, r, stays, sizes=sizes)
    return out, out_mass, normed


def merge_gradient(x: Tensor, index: Index, above: Tensor) -> Tensor:
    """Gradient (B, T, D) of the merge by the largest norm without mass, from that of the merged features.

    Among members of equal length the first one counts as the longest.
    """
    x, above, (kept, source, target) = zl.dense(x), above.contiguous(), (one.contiguous() for one in index)
    batch, total, _ = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if batch == 0:
        return out
    sizes = MergeSizes(*_sizes(x, r))
    args = x, sizes.x.distances(x)[0], kept, source, target, above, out, VANISHED, total, r, stays
    with torch.cuda.device_of(x):
        zl.launch(merge_gradient_kernel, (batch, -(-stays // sizes.block_m)), _warps(sizes), *args, sizes=sizes)
    return out


def _sizes(x: Tensor, r: int) -> tuple[Layout, int, int, int]:
    """How x is read, rows of a program, their padded width, and padded sources."""
    block_d = zl.power_of_two(int(x.shape[2]), 16)
    return Layout.of(x, 0), max(1, _TILE // block_d), block_d, zl.power_of_two(r, 16)


def _warps(sizes: MergeSizes) -> int:
    return min(4, max(1, sizes.block_d // _TILE))


class Merge(torch.autograd.Function):
    """The merge by the largest norm without mass, and its gradient, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, source: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(x, kept, source, target)
        return merge(x, (kept, source, target), mode=0)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        x, kept, source, target = ctx.saved_tensors
        return merge_gradient(x, (kept, source, target), above), None, None, None
