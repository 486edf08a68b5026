# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernel before step 1: adds a branch to x, measures norms in z1 and writes unit vectors in z2 and z3.

One program splits a window. It finds norms in z1, and rows of unit vectors in z2 and z3, made here by many programs:
the mean over heads, or all heads behind each other, whose product is the sum of the heads' cosines. Every number of a
row is the sum of two float16, whose products are exact and fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipbrain.pooling.backends.triton import language as zl
from zipbrain.pooling.backends.triton.language import Layout

Branch = tuple[Tensor, Tensor | None]  # values (B, T, D) that still belong to x, dense, and their gain (D,)

_TOKENS = 4  # of a program that reads heads
_HELD = 1024  # numbers held by a warp
_ROW = 512  # features of x held by a warp

NOTHING, MEASURED, JOINED, SCALED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # uses of x
# Uses of heads: norms; mean vectors as they are; unit vectors; norms and unit vectors.
LENGTH, STORED, AS_UNITS, BOTH = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)


@dataclass(frozen=True)
class HeadSizes:
    """What is read of one space, and the rows of ``pitch`` numbers that are written."""

    use: int = 0
    layout: Layout = zl.UNREAD
    pitch: int = 0
    block_h: int = 1
    block: int = 1


@dataclass(frozen=True)
class PrepareSizes:
    """Compile-time numbers of `prepare_kernel`; ``rows`` of ``block_n`` numbers are a window's scratch."""

    use: int
    x: Layout
    pitch: int
    block_d: int
    z1: HeadSizes
    z2: HeadSizes
    z3: HeadSizes
    block_m: int
    block_n: int = 0
    rows: int = 0


@triton.jit
def write_pairs(rows, at, values, mask, PITCH: tl.constexpr):
    """Write each number as the sum of two float16, the second half a row behind the first."""
    high = values.to(tl.float16)
    tl.store(rows + at, high, mask=mask)
    tl.store(rows + at + PITCH // 2, (values - high.to(tl.float32)).to(tl.float16), mask=mask)


@triton.jit
def prepare_heads(z, window_step, head_step, rows, window, row, real, token, S: tl.constexpr):
    """Norms of some tokens of one window in one space; rows are written if wanted."""
    z += window * window_step * S.layout.align
    step = head_step * S.layout.align
    column = tl.arange(0, S.block)
    inside = column < S.layout.width
    if S.layout.kind == zl.MEAN:
        at = z + row[:, None] * S.layout.step + column[None, :]
        mask = real[:, None] & inside[None, :]
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        for head in tl.static_range(1, S.layout.heads):
            values += tl.load(at + head * step, mask=mask, other=0.0).to(tl.float32)
        values = values * (1.0 / S.layout.heads)
        length = tl.sqrt_rn(tl.sum(values * values, axis=1))
        place = token[:, None] * S.pitch + column[None, :]
        if S.use == STORED:
            tl.store(rows + place, values, mask=real[:, None])  # zeros fill a row
        elif S.use != LENGTH:
            write_pairs(rows, place, values * zl.inverse(length)[:, None], real[:, None], S.pitch)
    else:
        head = tl.arange(0, S.block_h)
        at = z + row[:, None, None] * S.layout.step + head[None, :, None] * step + column[None, None, :]
        mask = real[:, None, None] & (head < S.layout.heads)[None, :, None] & inside[None, None, :]
        values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        lengths = tl.sqrt_rn(tl.sum(values * values, axis=2))
        if S.use != LENGTH:
            place = token[:, None, None] * S.pitch + head[None, :, None] * S.layout.width + column[None, None, :]
            write_pairs(rows, place, values * zl.inverse(lengths)[:, :, None], mask, S.pitch)
        length = tl.sum(lengths, axis=1) * (1.0 / S.layout.heads)
    return length


@triton.jit
def write_lengths(length, scratch, window, place, n, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Write norms of unprotected tokens, as bits."""
    at = scratch + window * (ROWS * BLOCK_N) + zl.LENGTHS * BLOCK_N + place
    tl.store(at, length.to(tl.int32, bitcast=True), mask=(place >= 0) & (place < n))


_DISTANCES = ["x_window", "z1_window", "z1_head", "z2_window", "z2_head", "z3_window", "z3_head"]


@triton.jit(do_not_specialize=[*_DISTANCES, "total", "n", "leading"])
def prepare_kernel(
    x,
    x_window,
    branch,
    gain,
    out,
    units,
    z1,
    z1_window,
    z1_head,
    rows1,
    z2,
    z2_window,
    z2_head,
    rows2,
    z3,
    z3_window,
    z3_head,
    rows3,
    scratch,
    total,
    n,
    leading,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tokens `block_m i` to `block_m (i + 1)` of one window, protected ones included; norms in z1 go to scratch.

    x: MEASURED for its norms; JOINED with its branch, and stored; SCALED: the branch has a gain.
    """
    zl.wait_for_previous(OVERLAP)
    window = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * S.block_m + tl.arange(0, S.block_m)
    real = row < total
    token = window * total + row
    place = row - leading
    if S.use != NOTHING:
        column = tl.arange(0, S.block_d)
        mask = real[:, None] & (column < S.x.width)[None, :]
        values = tl.load(
            x + window * x_window * S.x.align + row[:, None] * S.x.step + column[None, :], mask=mask, other=0.0
        )
        if S.use != MEASURED:
            factor = 1.0
            if S.use == SCALED:
                factor = tl.load(gain + column, mask=column < S.x.width, other=0.0).to(tl.float32)[None, :]
            at = token[:, None] * S.x.width + column[None, :]
            values = zl.with_branch(values, branch, at, factor, mask, S.use == SCALED)
            tl.store(out + at, values, mask=mask)
        wide = values.to(tl.float32)
        length = tl.sqrt_rn(tl.sum(wide * wide, axis=1))
        write_lengths(length, scratch, window, place, n, S.block_n, S.rows)
        if S.pitch > 0:
            at = token[:, None] * S.pitch + column[None, :]
            write_pairs(units, at, wide * zl.inverse(length)[:, None], mask, S.pitch)
    if S.z1.use != NOTHING:
        length = prepare_heads(z1, z1_window, z1_head, rows1, window, row, real, token, S.z1)
        if S.z1.use != STORED:
            write_lengths(length, scratch, window, place, n, S.block_n, S.rows)
    if S.z2.use != NOTHING:
        prepare_heads(z2, z2_window, z2_head, rows2, window, row, real, token, S.z2)
    if S.z3.use != NOTHING:
        prepare_heads(z3, z3_window, z3_head, rows3, window, row, real, token, S.z3)


@dataclass(frozen=True)
class Preparation:
    """What is made of x and the heads before step 1, if anything."""

    sizes: PrepareSizes
    warps: int
    written: tuple[int | None, ...]  # which rows are written of x, z1, z2 and z3,
    instead_of: tuple[int | None, ...]  # and which are read in place of z1, z2 and z3 afterwards
    widths: tuple[int, ...]  # of the rows
    dtype: torch.dtype  # of the rows
    layouts: tuple[Layout, ...]  # of what is read afterwards in place of z1, z2 and z3

    @property
    def has_work(self) -> bool:
        """True if the kernel has anything to do."""
        sizes = self.sizes
        return any(use for use in (sizes.use, sizes.z1.use, sizes.z2.use, sizes.z3.use))

    @property
    def has_norms(self) -> bool:
        """True if norms in z1 lie in scratch afterwards."""
        return self.sizes.use > 0 or self.sizes.z1.use in (LENGTH.value, BOTH.value)

    def run(
        self,
        spaces: list[Tensor],
        leading: int,
        n: int,
        scratch: Tensor | None = None,
        x: Tensor | None = None,
        branch: Branch | None = None,
        joined: Tensor | None = None,
    ) -> list[Tensor]:
        """Start the kernel and return what is read in place of z1, z2 and z3; ``joined`` gets x with its branch."""
        x = spaces[0] if x is None else x
        batch, total, device = x.shape[0], int(spaces[0].shape[-2]), x.device
        rows = [torch.empty((batch, total, width), dtype=self.dtype, device=device) for width in self.widths]
        outputs = [None if which is None else rows[which] for which in self.written]
        sizes = self.sizes
        if scratch is not None:
            sizes = replace(sizes, rows=int(scratch.shape[1]), block_n=int(scratch.shape[2]))
        args: list[Any] = [x, sizes.x.distances(x)[0]] if sizes.use else [None, 0]
        args += [*(branch or (None, None)), joined, outputs[0]]
        for values, how, output in zip(spaces, (sizes.z1, sizes.z2, sizes.z3), outputs[1:], strict=True):
            args += [values, *how.layout.distances(values), output] if how.use else [None, 0, 0, None]
        programs = -(-total // sizes.block_m)
        zl.launch(prepare_kernel, (batch, programs), self.warps, *args, scratch, total, n, leading, sizes=sizes)
        return [values if which is None else rows[which] for values, which in zip(spaces, self.instead_of, strict=True)]


def plan_preparation(
    spaces: tuple[Layout, ...],
    same: tuple[int, ...],
    is_scored: bool,
    added: tuple[Layout, bool] | None = None,
    units: bool = True,
) -> Preparation:
    """What has to be made before step 1.

    Parameters
    ----------
    spaces : tuple of Layout
        Of z1, z2 and z3.
    same : tuple of int
        The first of the spaces that reads the same vectors as each of them.
    is_scored : bool
        False if z2 is not read at all.
    added : (Layout, bool), optional
        Of x, if a branch is still to be added to it, and whether the branch has a gain; z1 is then the sum.
    units : bool
        True for norms in z1 and rows of unit vectors; False for mean vectors over heads as they are.
    """
    uses = [0, 0, 0]
    written: list[int | None] = [None, None, None, None]
    instead_of: list[int | None] = [None, None, None]
    widths: list[int] = []

    def pitch(space: Layout) -> int:
        """Numbers of a row: a mean, filled up with zeros, or x, or all heads; twice as many for unit vectors."""
        size = zl.power_of_two(space.width, 16) if space.kind == 1 else -(-space.heads * space.width // 8) * 8
        return 2 * size if units else size

    if units and spaces[0].kind in (1, 2):
        uses[0] = LENGTH.value
    for place, space in enumerate(spaces):
        is_read = (not units, is_scored, True)[place]  # where norms are known, z1 is not read again
        if not is_read or space.kind not in ((1, 2) if units else (1,)):
            continue
        first = same[place]
        if written[1 + first] is None:
            uses[first] = BOTH.value if uses[first] else AS_UNITS.value if units else STORED.value
            written[1 + first] = len(widths)
            widths.append(pitch(space))
        if place > 0 or not units:
            instead_of[place] = written[1 + first]
    of_x, x = 0, zl.UNREAD
    if added is not None:
        of_x, x = SCALED.value if added[1] else JOINED.value, added[0]
    elif units and spaces[0].kind == 0 and any(uses):
        of_x, x = MEASURED.value, spaces[0]
    if of_x and spaces[2].kind == 0 and spaces[2].bytes == 4:  # products of float32 take long
        written[0] = instead_of[2] = len(widths)
        widths.append(pitch(spaces[2]))
    block_d = zl.power_of_two(x.width, 16) if of_x else 1
    z1, z2, z3 = parts = [
        HeadSizes(use, space, pitch(space), zl.power_of_two(space.heads), zl.power_of_two(space.width, 16))
        if use
        else HeadSizes()
        for use, space in zip(uses, spaces, strict=True)
    ]
    held = [part.block * (part.block_h if part.layout.kind == 2 else 1) for part in parts if part.use]
    most = max([*held, block_d])  # numbers of a token that are held at a time
    block_m = min(_TOKENS, max(1, 8 * _HELD // most)) if held else max(1, _ROW // block_d)
    sizes = PrepareSizes(of_x, x, 0 if written[0] is None else widths[written[0]], block_d, z1, z2, z3, block_m)
    layouts = tuple(
        space if which is None else _row_layout(space, widths[which], units)
        for space, which in zip(spaces, instead_of, strict=True)
    )
    return Preparation(
        sizes,
        min(8, max(1, block_m * most // _HELD)),
        tuple(written),
        tuple(instead_of),
        tuple(widths),
        torch.float16 if units else torch.float32,
        layouts,
    )


def _row_layout(space: Layout, pitch: int, units: bool) -> Layout:
    """The layout of rows that are written."""
    if not units:
        return Layout(0, 1, pitch, pitch, 4, 4)
    if space.kind == 1:
        return Layout(zl.UNIT.value, 1, zl.power_of_two(space.width, 16), pitch, 8, 2)
    return Layout(zl.UNIT.value, space.heads, space.heads * space.width, pitch, 8, 2)
