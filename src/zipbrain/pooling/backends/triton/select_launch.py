"""Sizes and launches of the Triton kernels for steps 1 to 3, as in `triton_start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import match as triton_match
from zipbrain.pooling.backends.triton import select as triton_select
from zipbrain.pooling.backends.triton.language import ALL_AT_ONCE, SCORES
from zipbrain.pooling.backends.triton.path import MOST_TOKENS, few
from zipbrain.pooling.backends.triton.prepare_launch import Before, Prepare
from zipbrain.pooling.backends.triton.start import (
    Added,
    Start,
    View,
    device_of,
    look,
    power_of_two,
    readable,
)

_BLOCK_J = 32  # keys compared at a time where there are too many for one comparison of all pairs
_FEW = 32  # up to this many sources are matched by the program that selected them,
_NARROW = 64  # but not with float32 or unit vectors of more features
_ROOMY = 8  # windows that leave room on a GPU for programs that wait
_FEATURES = 32  # of z3 that are multiplied at a time
_PART = 64  # features of wide rows whose share of the scores is found by one program
_TILE = 32, 64, 3  # tokens by tokens, of all pairs, and loads under way; 64 rows would take other instructions
_MANY = 16  # tokens of which it pays to find the cosines of all pairs
_FEWEST = 64  # tokens that are worth comparisons or products of their own
_UNREAD = (0, 1, 1, 1, 1)  # constants of a space that is not read: one kernel serves all of them


@dataclass(frozen=True)
class Group:
    """How to group tensors of certain shapes."""

    prepare: Prepare | None  # what comes before
    distances: tuple[int, ...]  # of windows in z1, z2 and z3
    read: tuple[bool, bool, bool]  # whether `select` reads z1, z2 and z3
    block_n: int
    rows: int  # of a window's scratch
    scores: Start | None  # of wide rows in z2
    select: Start
    match: Start | None  # many sources, or wide ones
    closest: Start | None  # the same, where `select` has found the cosines of all pairs meanwhile

    @property
    def starts(self) -> list[Start]:
        """All of its kernels, in order."""
        before = None if self.prepare is None else self.prepare.start
        found = before, self.scores, self.select, self.match, self.closest
        return [start for start in found if start is not None]

    def __call__(
        self, spaces: Sequence[Any], kept: Any, source: Any, target: Any, scratch: Any, batch: int,
        counts: tuple[int, int, int, int, int], stream: int | None = None, crowded: bool = False,
    ) -> None:  # fmt: skip
        """Start all kernels behind `prepare`; counts: unprotected tokens, those that go, pivots, leading, trailing."""
        _, z2, z3 = spaces
        first, second, third = self.distances
        n, r, pivots, leading, trailing = counts
        how: dict[str, Any] = {"stream": stream, "crowded": crowded}
        if self.scores is not None:
            self.scores(batch, z2, second, scratch, n, leading, pivots, **how)
        places = [place if used else None for place, used in zip(spaces, self.read, strict=True)]
        counted = n, r, pivots, leading, trailing, 2.0**20 / pivots
        self.select(
            batch, places[0], first, places[1], second, places[2], third, kept, source, target, scratch, *counted, **how
        )
        if self.match is not None:
            stays = leading + n + trailing - r
            self.match(batch, z3, third, kept, source, target, scratch, stays, n, r, leading, **how)
        if self.closest is not None:
            self.closest(batch, target, scratch, n, r, leading, **how)


_groups: dict[Any, Group] = {}


def group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int, beside: bool = False
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
    beside : bool
        Whether other kernels run at the same time.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    """
    if spaces[0].shape[-2] - leading - trailing > MOST_TOKENS:
        from zipbrain.pooling.backends.triton import long_launch as triton_long_launch

        return triton_long_launch.group(spaces, kinds, r, pivots, leading, trailing)
    crowded = beside and spaces[0].shape[0] > _ROOMY
    return _group(None, None, [readable(values) for values in spaces], kinds, r, pivots, leading, trailing, crowded)


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
    pivots: int, leading: int, trailing: int, crowded: bool = False,
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
            rows = how.prepare.empty(batch, total, device)
            sizes = batch, total, counts[0], leading
            how.prepare(x, added, whole, spaces, rows, scratch, *sizes, crowded=crowded)
            spaces = how.prepare.instead(spaces, rows)
        how(spaces, kept, source, target, scratch, batch, counts, crowded=crowded)
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
    alone = few(z1)
    how = _groups.get((alone, key))
    if how is None:
        how = _groups[alone, key] = _plan(spaces, kinds, r, pivots, leading, trailing, join, alone)
    return how


def _plan(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    join: tuple[Tensor, Added] | None, alone: bool,
) -> Group:  # fmt: skip
    """By shape. A window must get the same groups in any batch, to the last bit.

    So whatever depends on the batch (`alone`) is who finds a number and when, never how: cosines by the same products
    in the same order, by the same instructions.
    """
    total = int(spaces[0].shape[-2])
    n = total - leading - trailing
    block_n = power_of_two(n, 16)
    scored = pivots < n - r
    before = Before(spaces, kinds, scored, join)
    views = before.views()
    wide = [view.values.element_size() > 2 and view.features > _NARROW for view in views]
    costly = wide[2] or (views[2].kind == 3 and views[2].features > _NARROW)
    same = scored and views[0].reads_as(views[1])
    known = 1 if views[0].reads_as(views[2]) else 2 if scored and views[1].reads_as(views[2]) else 0
    known = 0 if views[2].kind == 3 else known  # they have length 1
    divided = scored and before.measures and views[1].kind == 3 and block_n <= ALL_AT_ONCE.value
    parts = -(-views[1].features // _PART) if divided and views[1].features > _PART else 0
    measured = views[2].kind == 3 or (known == 1 and before.measures)  # norms in z3 are known before anything else
    beside = alone and measured and n > _MANY and views[2].features > _NARROW
    own = r <= _FEW and not costly  # one program can do all of it
    matched = own and not beside
    first_row = SCORES.value + parts  # of the cosines
    rows = first_row + (block_n if beside else 0)
    read = not before.measures, scored and not parts, matched or beside
    known_of = not before.measures, scored, matched or beside  # spaces of which something must be known
    layouts = [
        number for view, one in zip(views, known_of, strict=True) for number in (view.constants if one else _UNREAD)
    ]
    sizes = [view.block if one else 1 for view, one in zip(views[:2], known_of[:2], strict=True)]
    columns = _columns(n - r)
    block_r, block_k, match_warps, stages = _match_sizes(views[2], r, sum(columns))
    tile = _TILE if beside else (0, 0, 0)
    soon = alone and scored and not parts and views[1].kind == 3 and views[1].features <= sizes[1]
    light = scored and views[1].kind == 3 and views[1].features <= _NARROW  # more would not fit into the registers
    in_two = before.measures and light and not own and block_n > ALL_AT_ONCE.value
    more = _columns(n)[1] if in_two else 0  # tokens beyond a power of two
    small = 16 if r <= 16 or not matched else 32  # sources of the program that selects
    constants = (
        *layouts[2:], before.measures, parts, scored, same, 0 if beside else known, matched, block_n, *sizes,
        _BLOCK_J, small, block_k if known_of[2] else 1, rows, *tile, first_row, soon, more,
    )  # fmt: skip
    taken = *read[:2], own  # decides on warps, and so on the order of sums: not by the batch
    much = any(use and one for use, one in zip(taken, wide, strict=True))
    long = [view.features > _NARROW for view in views]
    much = much or (block_n > 256 and any(use and one for use, one in zip(taken, long, strict=True)))
    for_each = min(block_n // 32, 8) or 1  # warps: a thread for every token
    warps = 4 if block_n <= 128 else 16 if much else 8
    warps = for_each if parts and not matched else warps
    tiles = -(-n // tile[0]) * -(-n // tile[1]) if beside else 0
    select = Start(triton_select.select_kernel, 1 + tiles, constants, warps, True)
    scores = match = closest = None
    if parts:
        chunk = *views[1].constants[2:], block_n, _PART, rows
        scores = Start(triton_select.score_kernel, parts, chunk, for_each, True)
    if beside:
        closest = Start(triton_match.closest_kernel, n, (block_n, first_row, rows), 1, True)
    elif not matched:
        flat = views[2].kind == 3  # four bytes for every number: of many windows more than fits into the cache
        layout = *views[2].constants, known, block_n, *columns, block_r, block_k, stages, rows, flat
        match = Start(triton_match.match_kernel, -(-r // block_r), layout, match_warps, True, flat=flat)
    prepare = before.plan(block_n, rows) if before.wanted else None
    distances = tuple(view.distances[0] for view in views)
    return Group(prepare, distances, read, block_n, rows, scores, select, match, closest)


def _columns(n: int) -> tuple[int, int]:
    """As what n tokens are ranked or multiplied: a power of two, or half of it and a quarter or half of that more."""
    whole = power_of_two(n, 16)
    half = whole // 2
    for more in (half // 4, half // 2):
        if more >= _FEWEST and n <= half + more:
            return half, more
    return whole, 0


def _match_sizes(view: View, r: int, columns: int) -> tuple[int, int, int, int]:
    """Sources and features at a time, warps, and loads under way of a program that matches: the fastest on an H200."""
    wide = view.values.element_size() > 2
    if view.parts > 1 and r <= 16 and columns <= 256:  # rows of several heads, beside attention
        return 16, min(power_of_two(view.features, 16), 2 * _FEATURES), 8, 2
    block_r, block_k = 16 if r <= 16 or wide else 32, min(power_of_two(view.features, 16), _FEATURES)
    size = (columns + block_r) * block_k * view.values.element_size() * (2 if view.kind == 3 else 1)
    warps = 4 if block_r == 32 and columns <= 320 else 16 if wide and columns > 256 else 8
    return block_r, block_k, warps, 3 if 2 * size <= _shared(view.values.device) else 2


@cache
def _shared(device: torch.device) -> int:
    """Bytes of fast memory that a program may have; what the smallest GPUs since Ampere give it where there is none."""
    about = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(about, "shared_memory_per_block_optin", 99 * 1024))
