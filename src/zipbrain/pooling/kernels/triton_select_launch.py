"""Sizes and launches of the Triton kernels for steps 1 to 3, as in `triton_start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.kernels import triton_prepare_launch, triton_select
from zipbrain.pooling.kernels.triton_path import MOST_TOKENS
from zipbrain.pooling.kernels.triton_prepare_launch import Prepare
from zipbrain.pooling.kernels.triton_start import (
    Added,
    Start,
    View,
    device_of,
    look,
    power_of_two,
    readable,
)

_BLOCK_J = 32  # keys compared at a time where there are too many for one comparison of all pairs
_FEW, _FEW_WIDE = 32, 16  # up to this many sources are matched by the program that selected them; in float32
_NARROW = 64  # rows of float32 of up to so many features cost no more than half precision's
_COSINES = 32  # memory for cosines comes in steps of so many sources: one kernel serves many layers


@dataclass(frozen=True)
class Group:
    """How to group tensors of certain shapes."""

    prepare: Prepare | None  # what comes before
    distances: tuple[tuple[int, int], ...]
    block_n: int
    rows: int  # of a window's scratch
    lengths: Start | None  # norms of every head before the pivots
    select: Start | None
    scores: Start | None  # of every head behind the pivots,
    rest: Start | None  # and what follows from them
    cosines: Start | None  # of many sources,
    closest: Start | None  # and who is the closest

    @property
    def starts(self) -> list[Start]:
        """All of its kernels, in order."""
        before = None if self.prepare is None else self.prepare.start
        found = before, self.lengths, self.select, self.scores, self.rest, self.cosines, self.closest
        return [start for start in found if start is not None]

    def __call__(
        self, spaces: Sequence[Any], kept: Any, source: Any, target: Any, scratch: Any, batch: int,
        counts: tuple[int, int, int, int, int], stream: int | None = None,
    ) -> None:  # fmt: skip
        """Start all kernels behind `prepare`; counts: unprotected tokens, those that go, pivots, leading, trailing."""
        z1, z2, z3 = spaces
        first, second, third = self.distances
        n, r, pivots, leading, trailing = counts
        given = (
            z1, *first, z2, *second, z3, *third, kept, source, target, scratch, n, r, pivots, leading, trailing,
            2.0**20 / pivots,
        )  # fmt: skip
        if self.lengths is not None:
            self.lengths(batch, z1, *first, scratch, n, leading, pivots, stream=stream)
        if self.select is not None:
            self.select(batch, *given, stream=stream)
        if self.scores is not None and self.rest is not None:
            self.scores(batch, z2, *second, scratch, n, leading, pivots, stream=stream)
            self.rest(batch, *given, stream=stream)
        if self.cosines is not None and self.closest is not None:
            self.cosines(batch, z3, *third, source, scratch, n, r, leading, stream=stream)
            self.closest(batch, target, scratch, n, r, leading, stream=stream)


_groups: dict[Any, Group] = {}


def group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3.

    Parameters
    ----------
    spaces : list of Tensor
        What z1, z2 and z3 read: (B, T, D) or (B, H, T, d).
    kinds : list of int
        0 as it is, 1 mean over heads, 2 per head.
    r, pivots, leading, trailing : int
        Tokens that go, pivots, protected tokens at the start and at the end.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    """
    if spaces[0].shape[-2] - leading - trailing > MOST_TOKENS:
        from zipbrain.pooling.kernels import triton_long_launch

        return triton_long_launch.group(spaces, kinds, r, pivots, leading, trailing)
    return _group(None, None, [readable(values) for values in spaces], kinds, r, pivots, leading, trailing)


def group_joined(
    x: Tensor, added: Added, spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Steps 1 to 3 where z1 is x and a branch still belongs to x; at most `MOST_TOKENS` tokens.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features, the last axis dense.
    added : (branch, gain)
        What is to be added to x.
    spaces, kinds, r, pivots, leading, trailing
        As in `group`; where a kind is 0, x with its branch is read instead.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    whole : Tensor, shape (B, T, D)
        x with its branch.
    """
    whole = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    others = [whole if kind == 0 else readable(values) for kind, values in zip(kinds, spaces, strict=True)]
    return *_group((x, added), whole, others, kinds, r, pivots, leading, trailing), whole


def _group(
    join: tuple[Tensor, Added] | None, whole: Tensor | None, spaces: list[Tensor], kinds: list[int], r: int,
    pivots: int, leading: int, trailing: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    z1 = spaces[0]
    batch, total, device = z1.shape[0], int(z1.shape[-2]), z1.device
    kept = torch.empty((batch, total - r), dtype=torch.int64, device=device)
    source = torch.empty((batch, r), dtype=torch.int64, device=device)
    target = torch.empty((batch, r), dtype=torch.int64, device=device)
    if batch == 0:
        return kept, source, target
    how = plan_group(spaces, kinds, r, pivots, leading, trailing, join)
    scratch = torch.empty((batch, how.rows, how.block_n), dtype=torch.int32, device=device)
    counts = total - leading - trailing, r, pivots, leading, trailing
    x, added = join or (z1, None)
    with device_of(z1):
        if how.prepare is not None:
            means = how.prepare.empty(batch, total, device)
            how.prepare(x, added, whole, spaces, means, scratch, batch, total, counts[0], leading)
            spaces = how.prepare.instead(spaces, means)
        how(spaces, kept, source, target, scratch, batch, counts)
    return kept, source, target


def plan_group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    join: tuple[Tensor, Added] | None = None,
) -> Group:  # fmt: skip
    """How tensors like these, whose last axes are dense, are grouped; join: x, where z1 is x with something added."""
    z1, z2, z3 = spaces
    places = z1.data_ptr(), z2.data_ptr(), z3.data_ptr()
    shared = places[0] == places[1], places[0] == places[2], places[1] == places[2]
    key: tuple[Any, ...] = look(z1), look(z2), look(z3), shared, *kinds, r, pivots, leading, trailing
    if join is not None:
        x, added = join
        key = *key, look(x), *(None if one is None else one.data_ptr() % 16 for one in added)
    how = _groups.get(key)
    if how is None:
        how = _groups[key] = _plan(spaces, kinds, r, pivots, leading, trailing, join)
    return how


def _plan(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    join: tuple[Tensor, Added] | None,
) -> Group:  # fmt: skip
    """By shape alone, never by batch: a window must get the same groups in any batch, to the last bit."""
    total = int(spaces[0].shape[-2])
    n = total - leading - trailing
    block_n = power_of_two(n, 16)
    scored = pivots < n - r
    before = triton_prepare_launch.Before(spaces, kinds, scored, join)
    if before.wanted:
        spaces, kinds = before.instead()
    views = [View(values, kind) for values, kind in zip(spaces, kinds, strict=True)]
    blocks = [view.block for view in views]
    wide = [view.values.element_size() > 2 and view.values.shape[-1] > _NARROW for view in views]
    matched = r <= (_FEW_WIDE if wide[2] else _FEW) and views[2].kind != 2
    same = views[0].reads_as(views[1])
    known = 1 if views[0].reads_as(views[2]) else 2 if scored and views[1].reads_as(views[2]) else 0
    known = 0 if views[2].kind == 3 else known  # vectors of length 1
    parts = [view.constants[1] if view.kind == 2 else 0 for view in views[:2]]  # heads that have programs of their own
    parts[1] *= scored
    given = 1 if before.measures else parts[0]
    first_row = triton_select.SCRATCH_ROWS + given + parts[1]  # of the cosines
    block_r, block_c, block_k, match_warps = _match_sizes(views[2], r)
    for_each = min(block_n // 32, 8) or 1  # warps: a thread for every token
    rows = first_row + (0 if matched else -(-r // _COSINES) * _COSINES)

    def select(stage: int) -> Start:
        found = not matched if stage == 2 else given > 0 and (stage == 1 or not (scored or matched))
        constants = (
            *views[0].constants, *views[1].constants, *views[2].constants, scored, same, known, matched, block_n,
            *blocks[:2], _BLOCK_J, 16 if r <= 16 else 32, blocks[2], given, stage, found, rows,
        )  # fmt: skip
        # Programs that find most of their numbers have 8 warps: for 16 the assembler chooses 32 registers, far too few.
        finds = stage == 1 or parts[0] > 0 or found
        warps = 4 if block_n <= 128 else 16 if (any(wide) or block_n > 256) and not finds else 8
        return Start(triton_select.select_kernel, 1, constants, for_each if found else warps)

    def heads(view: View, block: int, scores: bool, ranks: bool = False) -> Start:
        constants = scores, given, ranks, known, *view.constants[1:], block_n, block, rows
        warps = for_each if ranks else 8 if block_n > 256 else 4
        return Start(triton_select.head_kernel, view.constants[1], constants, warps)

    # Where the norms are known, every head ranks them itself: a launch less, but not for so many that it takes long.
    ranks = given > 0 and block_n <= triton_select.ALL_AT_ONCE.value
    lengths = heads(views[0], blocks[0], False) if parts[0] else None
    scores = heads(views[1], blocks[1], True, ranks) if parts[1] else None
    cosines = closest = None
    if not matched:
        sizes = *views[2].constants, known, block_n, block_r, block_c, block_k, first_row, rows
        cosines = Start(triton_select.cosine_kernel, -(-r // block_r) * -(-n // block_c), sizes, match_warps)
        closest = Start(triton_select.closest_kernel, -(-r // 16), (block_n, 16, first_row, rows), 4)
    distances = tuple(view.distances for view in views)
    first = select(0) if scores is None else None if ranks else select(1)
    rest = None if scores is None else select(2)
    prepare = before.plan(block_n, rows) if before.wanted else None
    how = Group(prepare, distances, block_n, rows, lengths, first, scores, rest, cosines, closest)
    for place, start in enumerate(how.starts):
        start.chained = place > 0
    return how


def _match_sizes(view: View, r: int) -> tuple[int, int, int, int]:
    """Sources, tokens and features at a time, and warps, of a program that finds cosines: the fastest on an H200."""
    features = int(view.values.shape[-1])
    if view.kind == 2 and r <= 32:
        tile = 16, 32
    elif view.kind == 2:
        tile = (16, 64) if view.values.element_size() == 2 and features > 16 else (32, 64)
    else:
        tile = (64, 64) if 32 < r <= 64 else (32, 64)
    return *tile, min(power_of_two(features, 16), 64), 4
