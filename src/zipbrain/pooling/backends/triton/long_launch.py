"""Sizes and launches of the kernels for long windows. Imports triton: import it only where that is known to work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import long as triton_long
from zipbrain.pooling.backends.triton.prepare_launch import Before, Prepare
from zipbrain.pooling.backends.triton.start import (
    Start,
    View,
    device_of,
    look,
    power_of_two,
    readable,
)

_TOKENS = 64  # of a program that scores or ranks
_KEYS = 256  # compared at a time
_CHUNK = 256  # tokens whose pivots are added up by one program
_SPLIT = 1024  # tokens at a time when indices are written
_COLUMNS, _TILES = 64, 4  # tokens compared at a time, and how often, by a program that matches
_WIDEST = 256  # features of a product at a time
_SLENDER = 64  # features that fit at any precision


@dataclass(frozen=True)
class _Plan:
    """How to group tensors of certain shapes."""

    prepare: Prepare | None  # means over heads
    first: Start  # norms in z1
    pivots: Start
    second: Start | None  # norms in z2, unless they are those in z1
    prototype: Start | None  # none where all that are no pivots go
    score: Start | None
    redundant: Start | None
    split: Start
    third: Start | None  # norms in z3, unless they are those in z1 (1) or z2 (2)
    known: int
    closest: tuple[Start, ...]  # the two passes
    match: Start
    padded: int
    heads: tuple[int, ...]  # how many vectors of a token are compared in z1, z2 and z3
    distances: tuple[tuple[int, int], ...]


_plans: dict[Any, _Plan] = {}


def group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3 for any number of tokens; see `triton_select_launch.group`."""
    z1, z2, z3 = (readable(values) for values in spaces)
    batch, total, device = z1.shape[0], int(z1.shape[-2]), z1.device
    n = total - leading - trailing

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=device)

    kept, source, target = (empty(size, dtype=torch.int64) for size in (total - r, r, r))
    if batch == 0:
        return kept, source, target
    places = z1.data_ptr(), z2.data_ptr(), z3.data_ptr()
    shared = places[0] == places[1], places[0] == places[2], places[1] == places[2]
    key = look(z1), look(z2), look(z3), shared, *kinds, r, pivots, leading, trailing
    how = _plans.get(key)
    if how is None:
        how = _plans[key] = _plan([z1, z2, z3], kinds, n, r, pivots)
    first, second, third = how.distances
    chunks = -(-n // _CHUNK)
    with device_of(z1):
        if how.prepare is not None:
            rows = how.prepare.empty(batch, total, device)
            how.prepare(None, None, None, (z1, z2, z3), rows, None, batch, total, n, leading)
            z1, z2, z3 = how.prepare.instead((z1, z2, z3), rows)
        own = length = empty(n)
        gone = empty(n, dtype=torch.int32)
        how.first(batch, z1, *first, length, n, leading)
        how.pivots(batch, length, None, gone, n, pivots, 1.0)
        if how.score is not None:
            assert how.prototype is not None
            assert how.redundant is not None
            if how.second is not None:
                own = empty(how.heads[1], n)
                how.second(batch, z2, *second, own, n, leading)
            closed, score, partial = gone, empty(n), empty(chunks, how.heads[1], how.padded)
            how.prototype(batch, z2, *second, own, closed, partial, n, leading, chunks)
            how.score(batch, z2, *second, own, partial, score, n, leading, chunks)
            gone = empty(n, dtype=torch.int32)
            how.redundant(batch, score, closed, gone, n, r, 2.0**20 / pivots)
        how.split(batch, gone, kept, source, n, r, leading, trailing)
        last = {0: None, 1: length, 2: own}[how.known]
        if how.third is not None:
            last = empty(how.heads[2], n)
            how.third(batch, z3, *third, last, n, leading)
        parts = -(-n // (_TILES * _COLUMNS))
        best, column = empty(parts, r), empty(parts, r, dtype=torch.int32)
        for one in how.closest:
            one(batch, z3, *third, last, gone, source, best, column, n, r, leading, parts)
        how.match(batch, column, target, r, leading, parts)
    return kept, source, target


def _heads(view: View) -> int:
    """How many vectors of a token are compared."""
    return view.constants[1] if view.kind == 2 else 1


def _plan(spaces: list[Tensor], kinds: list[int], n: int, r: int, pivots: int) -> _Plan:
    """By shape alone, never by batch: a window must get the same groups in any batch, to the last bit."""
    scored = pivots < n - r
    before = Before(spaces, kinds, scored, units=False)
    one, two, three = views = before.views()
    tiles = -(-n // _TOKENS)
    per_head = two.kind == 2
    padded = -(-int(two.values.shape[-1]) // two.block) * two.block
    known = 1 if three.reads_as(one) else 2 if scored and two.alike(three) else 0

    def lengths(view: View, each: bool) -> Start:
        return Start(triton_long.lengths_kernel, tiles, (*view.constants, each, _TOKENS, view.block), 4, True)

    def ranks(relative: bool, inverted: bool) -> Start:
        sizes = relative, inverted, 1 if relative else -1, _TOKENS, _KEYS
        return Start(triton_long.rank_kernel, tiles, sizes, 8, True)

    prototype = score = redundant = None
    if scored:
        chunks = power_of_two(-(-n // _CHUNK))
        programs = -(-n // _CHUNK) * (two.constants[1] if per_head else 1) * (padded // two.block)
        sizes = *two.constants, _CHUNK, two.block, padded
        prototype = Start(triton_long.prototype_kernel, programs, sizes, 8, True)
        score = Start(triton_long.score_kernel, tiles, (*two.constants, _TOKENS, two.block, padded, chunks), 4, True)
        redundant = ranks(relative=False, inverted=False)
    features = int(three.values.shape[-1])
    # Float32 products and rows in several pieces take more of the fast memory than the smaller GPUs have.
    few = three.kind != 2 and features <= _SLENDER
    narrow = (three.values.element_size() > 2 and not few) or features > _WIDEST
    block_k = min(power_of_two(features, 16), 64 if narrow else _WIDEST)
    block_r = 16 if r <= 256 or narrow else 64
    parts = -(-n // (_TILES * _COLUMNS))
    padded_parts, programs = power_of_two(parts), parts * -(-r // block_r)
    shape = padded_parts, block_r, _COLUMNS, _TILES, block_k, 1 if narrow else 2
    closest = tuple(
        Start(triton_long.closest_kernel, programs, (*three.constants, second, *shape), 4, True)
        for second in (False, True)
    )
    match = Start(triton_long.first_kernel, -(-r // 64), (padded_parts, 64), 4, True)
    return _Plan(
        before.plan() if before.wanted else None,
        lengths(one, each=False), ranks(relative=True, inverted=not scored),
        lengths(two, each=True) if scored and not two.reads_as(one) else None, prototype, score, redundant,
        Start(triton_long.split_kernel, 1, (_SPLIT,), 4, True), None if known else lengths(three, each=True), known,
        closest, match, padded, tuple(_heads(view) for view in views), tuple(view.distances for view in views),
    )  # fmt: skip
