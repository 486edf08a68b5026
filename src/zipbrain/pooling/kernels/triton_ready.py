"""Pooling again what was pooled before, at the least cost to the host. Imports triton, as `triton_start` does.

Launched one by one from Python, kernels on a fast GPU wait for the host. What follows from shapes, strides and types
was looked at when such tensors came for the first time; here that is found again under one key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.kernels import triton_merge_launch, triton_select_launch
from zipbrain.pooling.kernels.triton_path import MOST_TOKENS
from zipbrain.pooling.kernels.triton_select_launch import Group
from zipbrain.pooling.kernels.triton_start import Added, Start, added_kind
from zipbrain.pooling.merges import VANISHED


@dataclass(frozen=True)
class Ready:
    """Steps 1 to 4 by the largest norm, without mass, for tensors of certain shapes; and the LayerNorm behind it."""

    group: Group
    merge: tuple[Start, int]  # and how far windows of x lie apart
    joins: bool  # the groups depend on x, to which a branch still belongs
    kinds: tuple[int, ...]
    counts: tuple[int, int, int, int, int]  # unprotected tokens, those that go, pivots, leading, trailing
    total: int
    normed: bool

    @cached_property
    def _starts(self) -> list[Start]:
        return [self.merge[0], *self.group.starts]

    @property
    def built(self) -> bool:
        """Whether all kernels have been started before: only then do they take addresses in place of tensors."""
        return all([start.built is not None for start in self._starts])

    def __call__(
        self, x: Tensor, spaces: tuple[Tensor, ...], norm: tuple[Tensor, Tensor, float] | None, added: Added | None
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D) -> merged x and normed x (B, T - r, D)."""
        batch, _, width = x.shape
        n, r, _, leading, _ = self.counts
        stays, how, before = self.total - r, self.group, self.group.prepare
        # Addresses in place of tensors: Triton would ask the driver about each of them.
        stream, at = (
            (None, _itself) if not x.is_cuda else (torch._C._cuda_getCurrentRawStream(x.device.index), _address)
        )
        widths = () if before is None else before.widths
        sizes = tuple([batch * self.total * one for one in widths])
        room = _Room(x, (batch * stays, batch * r, batch * r), batch * how.rows * how.block_n, sizes)
        kept, source, target, scratch, *rows = room.places
        out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
        normed = torch.empty_like(out) if self.normed else None
        read, branch, gain = at(x), None, None
        if added is not None:
            branch, gain = at(added[0]), at(added[1])
        alone, whole = read, None
        if self.joins:
            whole = torch.empty((batch, self.total, width), dtype=x.dtype, device=x.device)
            read = at(whole)
        places = [read if kind == 0 else at(values) for kind, values in zip(self.kinds, spaces, strict=True)]
        if before is not None:
            joined = (branch, gain) if self.joins else None
            before(alone, joined, at(whole), places, rows, scratch, batch, self.total, n, leading, stream=stream)
            places = before.instead(places, rows)
        if self.joins:
            branch, gain = None, None
        how(places, kept, source, target, scratch, batch, self.counts, stream)
        scale, offset, epsilon = (None, None, 0.0) if norm is None else (at(norm[0]), at(norm[1]), norm[2])
        start, distance = self.merge
        start(
            batch, read, distance, branch, gain, kept, source, target, None, at(out), None, at(normed), scale, offset,
            epsilon, VANISHED, self.total, r, stays, stream=stream,
        )  # fmt: skip
        return out, normed


def _itself(values: Tensor | None) -> Any:
    return values


def _address(values: Tensor | None) -> Any:
    return None if values is None else values.data_ptr()


class _Room:
    """Memory for indices (int64), scratch (int32) and rows (float16): one piece on a GPU, for addresses suffice."""

    def __init__(self, x: Tensor, indices: tuple[int, ...], scratch: int, rows: tuple[int, ...]) -> None:
        if x.is_cuda:
            starts = [0]  # in units of 8 bytes, aligned to 16
            for size in (*indices, (scratch + 1) // 2, *((row + 3) // 4 for row in rows)):
                starts.append(starts[-1] + size + size % 2)
            self._memory: Any = torch.empty(starts.pop(), dtype=torch.int64, device=x.device)
            base = self._memory.data_ptr()
            self.places: list[Any] = [base + 8 * start for start in starts]
        else:  # Triton's interpreter wants tensors
            self.places = [torch.empty(size, dtype=torch.int64) for size in indices]
            self.places.append(torch.empty(scratch, dtype=torch.int32))
            self.places += [torch.empty(row, dtype=torch.float16) for row in rows]


def make(
    x: Tensor, spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    norm: tuple[Tensor, Tensor, float] | None, added: Added | None,
) -> Ready | None:  # fmt: skip
    """What pools tensors like these, or None where their memory must be looked at each time."""
    dense = all(values.stride(-1) == 1 for values in (x, *spaces))
    if not dense:
        return None
    n = int(x.shape[1]) - leading - trailing
    if n > MOST_TOKENS or (norm is not None and not all(part.is_contiguous() for part in norm[:2])):
        return None
    join, merged, rest = None, x, added
    if added is not None and 0 in kinds:
        merged, rest, join = torch.empty(x.shape, dtype=x.dtype, device=x.device), None, (x, added)
        spaces = [merged if kind == 0 else values for kind, values in zip(kinds, spaces, strict=True)]
    group = triton_select_launch.plan_group(spaces, kinds, r, pivots, leading, trailing, join)
    scale, offset = (None, None) if norm is None else norm[:2]
    how = 0, False, norm is not None, added_kind(rest)
    others = None, scale, offset, *(rest or (None, None))
    stays = int(x.shape[1]) - r
    merge = triton_merge_launch.plan_merge(merged, stays, r, how, others, group.split_before)
    counts = n, r, pivots, leading, trailing
    return Ready(group, merge, join is not None, tuple(kinds), counts, int(x.shape[1]), norm is not None)
