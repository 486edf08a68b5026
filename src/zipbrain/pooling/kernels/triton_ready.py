"""Pooling again what was pooled before, at the least cost to the host. Imports triton, as `triton_launch` does.

Launched one by one from Python, kernels on a fast GPU wait for the host. What follows from shapes, strides and types
was looked at when such tensors came for the first time; here that is found again under one key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.kernels import triton_launch, triton_merge, triton_select
from zipbrain.pooling.kernels.triton_launch import Group, Start
from zipbrain.pooling.kernels.triton_path import MOST_TOKENS
from zipbrain.pooling.merges import VANISHED


@dataclass(frozen=True)
class Ready:
    """Steps 1 to 4 by the largest norm, without mass, for tensors of certain shapes; and the LayerNorm behind it."""

    group: Group
    merge: Start
    distance: int  # of windows of x, as the merge counts it
    counts: tuple[int, int, int, int, int]  # unprotected tokens, those that go, pivots, leading, trailing
    total: int
    normed: bool

    @property
    def built(self) -> bool:
        """Whether all kernels have been started before: only then do they take addresses in place of tensors."""
        others = (self.group.select, self.group.match, self.merge)
        return all(start is None or start.built is not None for start in others)

    def __call__(
        self, x: Tensor, spaces: tuple[Tensor, Tensor, Tensor], norm: tuple[Tensor, Tensor, float] | None
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D) -> merged x and normed x (B, T - r, D)."""
        batch, width = x.shape[0], x.shape[2]
        n, r, pivots, leading, trailing = self.counts
        stays = self.total - r
        how = self.group
        room = _Room(x, batch * stays, batch * r, batch * r, batch * triton_select.SCRATCH_ROWS * how.block_n)
        kept, source, target, scratch = room.places
        z1, z2, z3 = spaces
        first, second, third = how.distances
        how.select(
            batch, z1, *first, z2, *second, z3, *third, kept, source, target, scratch, n, r, pivots, leading, trailing,
            2.0**20 / pivots,
        )  # fmt: skip
        if how.match is not None:
            how.match(batch, z3, *third, source, target, scratch, n, r, leading)
        out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
        normed = torch.empty_like(out) if self.normed else None
        scale, offset, epsilon = (None, None, 0.0) if norm is None else norm
        self.merge(
            batch, x, self.distance, kept, source, target, None, out, None, normed, scale, offset, epsilon, VANISHED,
            self.total, r, stays,
        )  # fmt: skip
        return out, normed


class _Room:
    """Memory for kept, source, target (int64) and scratch (int32): one piece on a GPU, whose kernels take addresses."""

    def __init__(self, x: Tensor, *sizes: int) -> None:
        kept, source, target, scratch = sizes
        if x.is_cuda:
            starts = [0, kept + kept % 2]  # in units of 8 bytes, aligned to 16
            starts.append(starts[-1] + source + source % 2)
            starts.append(starts[-1] + target + target % 2)
            self._memory: Any = torch.empty(starts[-1] + (scratch + 1) // 2, dtype=torch.int64, device=x.device)
            base = self._memory.data_ptr()
            self.places: list[Any] = [base + 8 * start for start in starts]
        else:  # Triton's interpreter wants tensors
            self.places = [torch.empty(size, dtype=torch.int64) for size in (kept, source, target)]
            self.places.append(torch.empty(scratch, dtype=torch.int32))


def make(
    x: Tensor, spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    norm: tuple[Tensor, Tensor, float] | None,
) -> Ready | None:  # fmt: skip
    """What pools tensors like these, or None where their memory must be looked at each time."""
    dense = all(values.stride(-1) == 1 for values in (x, *spaces))
    others = {values.data_ptr() for values in spaces}
    if not dense or len(others) < len({id(values) for values in spaces}):  # one reads another's memory by chance
        return None
    n = int(x.shape[1]) - leading - trailing
    if n > MOST_TOKENS or (norm is not None and not all(part.is_contiguous() for part in norm[:2])):
        return None
    group = triton_launch.plan_group(spaces, kinds, r, pivots, leading, trailing)
    scale, offset = (None, None) if norm is None else norm[:2]
    start, distance = triton_launch.plan_merge(
        triton_merge.merge_kernel, x, int(x.shape[1]) - r, r, (0, False, norm is not None), (None, scale, offset)
    )
    return Ready(group, start, distance, (n, r, pivots, leading, trailing), int(x.shape[1]), norm is not None)
