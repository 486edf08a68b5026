"""Sizes and launches of the Triton kernel before step 1, as in `triton_start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import prepare as triton_prepare
from zipbrain.pooling.backends.triton.start import (
    MERGE_TILE,
    Added,
    Start,
    View,
    added_kind,
    power_of_two,
)

_TOKENS = 4  # of a program that reads heads
_HELD = 1024  # numbers that a warp holds
_MEASURED, _JOINED = triton_prepare.MEASURED.value, triton_prepare.JOINED.value
_LENGTH, _STORED = triton_prepare.LENGTH.value, triton_prepare.STORED.value
_AS_UNITS, _BOTH = triton_prepare.AS_UNITS.value, triton_prepare.BOTH.value


@dataclass(frozen=True)
class Prepare:
    """How tensors of certain shapes are prepared."""

    distances: tuple[int, ...]  # of windows of x; of windows and heads of z1, z2 and z3
    used: tuple[bool, ...]  # whether x, z1, z2 and z3 are read
    writes: tuple[int | None, ...]  # which rows are written of each of them,
    instead_of: tuple[int | None, ...]  # and which are read in place of z1, z2 and z3 afterwards
    widths: tuple[int, ...]  # of the rows
    dtype: torch.dtype  # of the rows
    start: Start

    def empty(self, batch: int, total: int, device: torch.device) -> list[Tensor]:
        """Room for the rows (B, T, width)."""
        return [torch.empty((batch, total, width), dtype=self.dtype, device=device) for width in self.widths]

    def instead(self, spaces: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """What is read afterwards in place of z1, z2 and z3."""
        return [given if which is None else rows[which] for given, which in zip(spaces, self.instead_of, strict=True)]

    def __call__(
        self, x: Any, added: tuple[Any, Any] | None, whole: Any, spaces: Sequence[Any], rows: Sequence[Any],
        scratch: Any, batch: int, total: int, n: int, leading: int, stream: int | None = None, crowded: bool = False,
    ) -> None:  # fmt: skip
        """Start it: x, its branch, what they add up to, z1 to z3, their rows, scratch, and sizes."""
        written = [None if which is None else rows[which] for which in self.writes]
        given = [x if self.used[0] else None, self.distances[0], *(added or (None, None)), whole, written[0]]
        for place in range(3):
            given += [spaces[place] if self.used[1 + place] else None, *self.distances[1 + 2 * place : 3 + 2 * place]]
            given.append(written[1 + place])
        self.start(batch, *given, scratch, total, n, leading, stream=stream, crowded=crowded)


class Before:
    """What has to be done before step 1, if anything.

    Parameters
    ----------
    spaces : list of Tensor
        What z1, z2 and z3 read; their last axes are dense.
    kinds : list of int
        0 as it is, 1 mean over heads, 2 per head.
    scored : bool
        Whether z2 is read at all.
    join : (x, (branch, gain)), optional
        Where z1 is x and something is still to be added to it; ``spaces`` then has their sum.
    units : bool
        Whether norms in z1 are wanted, and rows of unit vectors. Else only means over heads are made, as they are.
    """

    def __init__(
        self, spaces: list[Tensor], kinds: list[int], scored: bool, join: tuple[Tensor, Added] | None = None,
        units: bool = True,
    ) -> None:  # fmt: skip
        self._join, self._units = join, units
        self._views = [View(values, kind) for values, kind in zip(spaces, kinds, strict=True)]
        self._uses = [0, 0, 0]
        self._writes: list[int | None] = [None, None, None, None]  # x, z1, z2, z3
        self._instead_of: list[int | None] = [None, None, None]
        self._widths: list[int] = []
        made = (1, 2) if units else (1,)
        if units and kinds[0] in made:
            self._uses[0] = _LENGTH
        read = not units, scored, True  # where norms are known, z1 is read again only if another space is the same
        for place, view in enumerate(self._views):
            if view.kind in made and read[place]:
                self._store(place, view)
        self._of_x = 0 if join is None else _JOINED - 1 + added_kind(join[1])  # with or without a gain
        if units and kinds[0] == 0 and join is None and any(self._uses):
            self._of_x = _MEASURED
        if self._of_x and kinds[2] == 0 and spaces[2].dtype == torch.float32:  # products of float32 take long
            self._writes[0] = self._instead_of[2] = self._make(self._views[2])
        self.wanted = any(self._uses) or self._of_x > 0
        self.measures = self._of_x > 0 or self._uses[0] in (_LENGTH, _BOTH)

    def _store(self, place: int, view: View) -> None:
        first = next(other for other in range(place + 1) if self._views[other].alike(view))
        if self._writes[1 + first] is None:
            self._uses[first] = _BOTH if self._uses[first] else _AS_UNITS if self._units else _STORED
            self._writes[1 + first] = self._make(view)
        if place > 0 or not self._units:
            self._instead_of[place] = self._writes[1 + first]

    def _make(self, view: View) -> int:
        """Rows like that, which get the next number."""
        self._widths.append(self._pitch(view))
        return len(self._widths) - 1

    def _pitch(self, view: View) -> int:
        """Numbers of a row: a mean, filled up with zeros, or x, or all heads; twice as many for unit vectors."""
        heads, width = view.constants[1:3]
        size = power_of_two(width, 16) if view.kind == 1 else -(-heads * width // 8) * 8
        return 2 * size if self._units else size

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self._units else torch.float32

    def views(self) -> list[View]:
        """What is read afterwards in place of z1, z2 and z3: tensors like those."""
        z1 = self._views[0].values
        size = max(z1.shape[0], 1), z1.shape[-2]
        rows = [torch.empty((*size, width), dtype=self._dtype, device=z1.device) for width in self._widths]
        views = list(self._views)
        for place, which in enumerate(self._instead_of):
            if which is not None and self._units:
                _, heads, width, *_ = views[place].constants
                parts = 1 if views[place].kind == 1 else heads
                views[place] = View(
                    rows[which], 3, parts, power_of_two(width, 16) if views[place].kind == 1 else parts * width
                )
            elif which is not None:
                views[place] = View(rows[which], 0)
        return views

    def plan(self, block_n: int = 0, scratch_rows: int = 0) -> Prepare:
        """The kernel, for a window's scratch of this size."""
        first = View(self._views[0].values if self._join is None else self._join[0], 0)
        total, width = int(first.values.shape[-2]), int(first.values.shape[-1])
        block_d = power_of_two(width, 16)
        blocks = [(power_of_two(view.constants[1]), power_of_two(view.constants[2], 16)) for view in self._views]
        held = [  # numbers of a token that are held at a time
            one * (heads if view.kind == 2 else 1)
            for use, view, (heads, one) in zip(self._uses, self._views, blocks, strict=True) if use
        ]  # fmt: skip
        most = max([*held, block_d if self._of_x else 0])
        block_m = min(_TOKENS, max(1, 8 * _HELD // most)) if held else max(1, MERGE_TILE // block_d)
        warps = min(8, max(1, block_m * most // _HELD))
        pitch = 0 if self._writes[0] is None else self._widths[self._writes[0]]
        constants = [self._of_x, *first.constants[2:], pitch, block_d]
        for use, view, block in zip(self._uses, self._views, blocks, strict=True):
            constants += [use, *view.constants, self._pitch(view), *block]
        sizes = block_m, block_n, scratch_rows
        start = Start(triton_prepare.prepare_kernel, -(-total // block_m), (*constants, *sizes), warps, True)
        distances = first.distances[0], *(number for view in self._views for number in view.distances)
        used = self._of_x > 0, *(use > 0 for use in self._uses)
        made = tuple(self._writes), tuple(self._instead_of), tuple(self._widths), self._dtype
        return Prepare(distances, used, *made, start)
