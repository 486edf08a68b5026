"""Sizes and launches of the Triton kernel before step 1, as in `triton_start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.kernels import triton_prepare
from zipbrain.pooling.kernels.triton_start import MERGE_TILE, Added, Start, View, added_kind, power_of_two

_TOKENS = 4  # of a program that reads heads
_LENGTH, _STORED, _UNIT, _BOTH, _MEASURED = 1, 2, 3, 4, 1  # as the kernel calls them


@dataclass(frozen=True)
class Prepare:
    """How tensors of certain shapes are prepared."""

    distances: tuple[int, ...]  # of windows of x; of windows and heads of z1, z2 and z3
    used: tuple[bool, ...]  # whether x, z1, z2 and z3 are read
    means: tuple[int | None, ...]  # for z1, z2 and z3: which mean is read in their place afterwards,
    writes: tuple[int | None, ...]  # and which is written when they are read
    widths: tuple[int, ...]  # of the means
    start: Start

    def empty(self, batch: int, total: int, device: torch.device) -> list[Tensor]:
        """Room for the means (B, T, width)."""
        return [torch.empty((batch, total, width), dtype=torch.float32, device=device) for width in self.widths]

    def instead(self, spaces: Sequence[Any], means: Sequence[Any]) -> list[Any]:
        """What is read afterwards in place of z1, z2 and z3."""
        return [given if mean is None else means[mean] for given, mean in zip(spaces, self.means, strict=True)]

    def __call__(
        self, x: Any, added: tuple[Any, Any] | None, whole: Any, spaces: Sequence[Any], means: Sequence[Any],
        scratch: Any, batch: int, total: int, n: int, leading: int, stream: int | None = None,
    ) -> None:  # fmt: skip
        """Start it: x, its branch, what they add up to, z1 to z3, their means, scratch, and sizes."""
        given = [x if self.used[0] else None, self.distances[0], *(added or (None, None)), whole]
        for place in range(3):
            mean = self.writes[place]
            given += [spaces[place] if self.used[1 + place] else None, *self.distances[1 + 2 * place : 3 + 2 * place]]
            given.append(None if mean is None else means[mean])
        self.start(batch, *given, scratch, total, n, leading, stream=stream)


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
    lengths : bool
        Whether norms in z1 are wanted, and means of length 1. Else z1 is a mean like the others, and means stay as long
        as they are.
    """

    def __init__(
        self, spaces: list[Tensor], kinds: list[int], scored: bool, join: tuple[Tensor, Added] | None,
        lengths: bool = True,
    ) -> None:  # fmt: skip
        self._spaces, self._kinds, self._join, self._lengths = spaces, kinds, join, lengths
        self._views = [View(values, kind) for values, kind in zip(spaces, kinds, strict=True)]
        self._uses = [0, 0, 0]
        self._means: list[int | None] = [None, None, None]
        self._writes: list[int | None] = [None, None, None]
        self._widths: list[int] = []
        if lengths and kinds[0] == 1:
            self._uses[0] = _LENGTH
        read = not lengths, scored, True  # where norms are known, z1 is read again only if another space is the same
        for place, view in enumerate(self._views):
            if view.kind == 1 and read[place]:
                self._store(place, view)
        self._of_x = 0 if join is None else 1 + added_kind(join[1])
        if lengths and kinds[0] == 0 and join is None and any(self._uses):
            self._of_x = _MEASURED
        self.wanted = any(self._uses) or self._of_x > 0
        self.measures = self._of_x > 0 or self._uses[0] in (_LENGTH, _BOTH)

    def _store(self, place: int, view: View) -> None:
        first = next(other for other in range(place + 1) if self._views[other].reads_as(view))
        if self._means[first] is None:
            self._uses[first] = _BOTH if self._uses[first] else _UNIT if self._lengths else _STORED
            self._means[first] = self._writes[first] = len(self._widths)
            self._widths.append(_padded(view))
        self._means[place] = self._means[first]

    def _read(self) -> list[int | None]:
        """For z1, z2 and z3: which mean is read in their place; where norms are known z1 is not read any more."""
        return [None if self._lengths else self._means[0], *self._means[1:]]

    def instead(self) -> tuple[list[Tensor], list[int]]:
        """Tensors like those that are read afterwards in place of z1, z2 and z3, and their kinds."""
        z1 = self._spaces[0]
        size = max(z1.shape[0], 1), z1.shape[-2]
        means = [torch.empty((*size, width), dtype=torch.float32, device=z1.device) for width in self._widths]
        spaces, kinds = list(self._spaces), list(self._kinds)
        for place, mean in enumerate(self._read()):
            if mean is not None:
                spaces[place], kinds[place] = means[mean], 3 if self._lengths else 0
        return spaces, kinds

    def plan(self, block_n: int, rows: int) -> Prepare:
        """The kernel, for a window's scratch of this size."""
        first = View(self._spaces[0] if self._join is None else self._join[0], 0)
        total, width = int(first.values.shape[-2]), int(first.values.shape[-1])
        block_d = power_of_two(width, 16)
        block_m = max(_TOKENS if any(self._uses) else 1, MERGE_TILE // block_d if self._of_x else 1)
        constants = [self._of_x, *first.constants[2:], block_d]
        for use, view in zip(self._uses, self._views, strict=True):
            constants += [use, *view.constants[1:], _padded(view)]
        sizes = block_m, block_n, rows
        warps = min(4, max(1, block_m * block_d // 1024)) if self._of_x else 1
        start = Start(triton_prepare.prepare_kernel, -(-total // block_m), (*constants, *sizes), warps, chained=False)
        distances = first.distances[0], *(number for view in self._views for number in view.distances)
        used = self._of_x > 0, *(use > 0 for use in self._uses)
        return Prepare(distances, used, tuple(self._read()), tuple(self._writes), tuple(self._widths), start)


def _padded(view: View) -> int:
    """Features of a stored mean: zeros fill it up."""
    return power_of_two(int(view.values.shape[-1]), 16)
