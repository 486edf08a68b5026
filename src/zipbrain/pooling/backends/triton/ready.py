"""Pooling again what was pooled before, at the least cost to the host. Imports triton, as `triton_start` does.

Launched one by one from Python, kernels on a fast GPU wait for the host. What follows from shapes, strides and types
was looked at when such tensors came for the first time; here that is found again under one key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import (
    merge_launch as triton_merge_launch,
)
from zipbrain.pooling.backends.triton import (
    select_launch as triton_select_launch,
)
from zipbrain.pooling.backends.triton.path import MOST_TOKENS
from zipbrain.pooling.backends.triton.select_launch import Group
from zipbrain.pooling.backends.triton.start import Added, Start, added_kind
from zipbrain.pooling.merges import VANISHED


@dataclass
class Ready:
    """Steps 1 to 4 by the largest norm, without mass, for tensors of certain shapes; and the LayerNorm behind it."""

    group: Group
    merge: tuple[Start, int]  # and how far windows of x lie apart
    joins: bool  # the groups depend on x, to which a branch still belongs
    kinds: tuple[int, ...]
    counts: tuple[int, int, int, int, int]  # unprotected tokens, those that go, pivots, leading, trailing
    normed: bool
    pieces: list[tuple[int, torch.dtype]]  # of memory, for each window
    _rooms: dict[int, Room] = field(default_factory=dict)  # by number of windows
    _built: bool = False

    @property
    def built(self) -> bool:
        """Whether all kernels have been started before: only then do they take addresses in place of tensors."""
        if not self._built:
            self._built = all(start.built is not None for start in (self.merge[0], *self.group.starts))
        return self._built

    def __call__(
        self, x: Tensor, spaces: tuple[Tensor, ...], norm: tuple[Tensor, Tensor, float] | None, added: Added | None
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D) -> merged x and normed x (B, T - r, D)."""
        batch, total, width = x.shape
        room = self._rooms.get(batch)
        if room is None:
            room = self._rooms[batch] = Room(*[(batch * count, dtype) for count, dtype in self.pieces])
        n, r, _, leading, _ = self.counts
        stays, how, before = total - r, self.group, self.group.prepare
        if x.is_cuda:  # addresses in place of tensors: Triton would ask the driver about each of them
            stream, at = torch._C._cuda_getCurrentRawStream(x.device.index), _address
            memory = x.new_empty(room.size, dtype=torch.uint8)
            base = memory.data_ptr()
            pieces: list[Any] = [base + start for start in room.starts]
            out = x.new_empty((batch, stays, width))
        else:  # Triton's interpreter wants tensors
            stream, at = None, _itself
            pieces = [torch.empty(count, dtype=dtype) for count, dtype in room.pieces]
            out = torch.empty((batch, stays, width), dtype=x.dtype)
        kept, source, target, scratch, *rows = pieces
        normed = torch.empty_like(out) if self.normed else None
        read, branch, gain, whole = at(x), None, None, None
        if added is not None:
            branch, gain = at(added[0]), at(added[1])
        alone = read
        if self.joins:
            read = whole = rows.pop()
        places = [read if kind == 0 else at(values) for kind, values in zip(self.kinds, spaces, strict=True)]
        if before is not None:
            joined = (branch, gain) if self.joins else None
            before(alone, joined, whole, places, rows, scratch, batch, total, n, leading, stream=stream)
            places = before.instead(places, rows)
        if self.joins:
            branch, gain = None, None
        how(places, kept, source, target, scratch, batch, self.counts, stream)
        scale, offset, epsilon = (None, None, 0.0) if norm is None else (at(norm[0]), at(norm[1]), norm[2])
        start, distance = self.merge
        start(
            batch, read, distance, branch, gain, kept, source, target, None, at(out), None, at(normed), scale, offset,
            epsilon, VANISHED, total, r, stays, stream=stream,
        )  # fmt: skip
        return out, normed


def _itself(values: Tensor | None) -> Any:
    return values


def _address(values: Tensor | None) -> Any:
    return None if values is None else values.data_ptr()


class Room:
    """Pieces of memory: on a GPU one piece is asked for, since addresses suffice."""

    def __init__(self, *pieces: tuple[int, torch.dtype]) -> None:
        self.pieces = pieces
        self.starts: list[int] = []  # in bytes, where a load of 16 bytes may begin
        self.size = 0
        for count, dtype in pieces:
            self.starts.append(self.size)
            self.size += -(-count * dtype.itemsize // 16) * 16


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
    merge = triton_merge_launch.plan_merge(merged, stays, r, how, others)
    counts = n, r, pivots, leading, trailing
    total, width = int(x.shape[1]), int(x.shape[2])
    indices = [(count, torch.int64) for count in (stays, r, r)]
    before = group.prepare
    rows = [] if before is None else [(total * one, before.dtype) for one in before.widths]
    whole = [] if join is None else [(total * width, x.dtype)]
    pieces = [*indices, (group.rows * group.block_n, torch.int32), *rows, *whole]
    return Ready(group, merge, join is not None, tuple(kinds), counts, norm is not None, pieces)
