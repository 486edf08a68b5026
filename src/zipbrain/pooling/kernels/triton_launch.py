"""Sizes and launches of the Triton kernels. Imports triton: import it only where that is known to work."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.kernels import triton_merge, triton_select
from zipbrain.pooling.merges import VANISHED

_FEATURES = 32  # read at a time of a wide row
_BLOCK_J = 32  # keys compared at a time where there are too many for one comparison of all pairs
_FEW = 32  # up to this many sources are matched by the program that selected them
_MERGE_TILE = 512  # features that a warp merges at a time


@dataclass(frozen=True)
class View:
    """A tensor over tokens as a kernel reads it: (B, T, D), or (B, H, T, d) by head or averaged over heads."""

    values: Tensor
    kind: int

    @property
    def start(self) -> tuple[Tensor, int, int]:
        """Address, and how far windows and heads lie apart, in units of the last of `constants`."""
        window, head, unit = self._distances
        return self.values, window // unit, head // unit

    @property
    def constants(self) -> tuple[int, int, int, int, int]:
        """Kind, heads, width, how far tokens lie apart, and the unit of the other distances."""
        heads = 1 if self.values.dim() == 3 else int(self.values.shape[1])
        return self.kind, heads, int(self.values.shape[-1]), self.values.stride(-2), self._distances[2]

    @property
    def _distances(self) -> tuple[int, int, int]:
        window, *between, _, _ = self.values.stride()
        head = between[0] if between else 0
        return window, head, alignment(self.values, window, head)

    @property
    def block(self) -> int:
        """How many features are read at a time."""
        return min(power_of_two(int(self.values.shape[-1]), 16), _FEATURES if self.values.shape[-1] <= 1024 else 64)

    def reads_as(self, other: View) -> bool:
        """Whether another view reads the same vectors, one for each token."""
        mine, theirs = self.values, other.values
        where = mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride()
        return self.kind == other.kind != 2 and where and mine.shape == theirs.shape


def alignment(values: Tensor, *distances: int) -> int:
    """What divides all distances, up to the elements in 16 bytes: the widest load that a kernel may use."""
    size = 16 // values.element_size()
    while any(distance % size for distance in distances):
        size //= 2
    return size


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is not below either number."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def readable(values: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense, else a dense copy; windows, heads and tokens may lie anyhow."""
    return values if values.stride(-1) == 1 or values.shape[-1] == 1 else values.contiguous()


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
    views = [View(readable(values), kind) for values, kind in zip(spaces, kinds, strict=True)]
    first = views[0].values
    batch, total = int(first.shape[0]), int(first.shape[-2])
    n = total - leading - trailing
    integers: Any = {"dtype": torch.int64, "device": first.device}
    kept = torch.empty((batch, total - r), **integers)
    source, target = torch.empty((batch, r), **integers), torch.empty((batch, r), **integers)
    if batch == 0:
        return kept, source, target
    block_n = power_of_two(n, 16)
    scratch = torch.empty((batch, triton_select.SCRATCH_ROWS, block_n), dtype=torch.int32, device=first.device)
    # All of this by shape alone, never by batch: a window must get the same groups in any batch, to the last bit.
    blocks = [view.block for view in views]
    scored, matched = pivots < n - r, r <= _FEW
    same = views[0].reads_as(views[1])
    known = 1 if views[0].reads_as(views[2]) else 2 if scored and views[1].reads_as(views[2]) else 0
    heavy = first.element_size() > 2 or 2 in kinds or block_n > 256
    warps = 4 if block_n <= 128 else 16 if heavy else 8
    block_r = 16 if r <= 16 else 32
    with _device_of(first):
        triton_select.select_kernel[(batch,)](
            *views[0].start, *views[1].start, *views[2].start, kept, source, target, scratch, n, r, pivots, leading,
            trailing, 2.0**20 / pivots, *views[0].constants, *views[1].constants, *views[2].constants,
            scored, same, known, matched, block_n, blocks[0], blocks[1], _BLOCK_J, block_r, blocks[2],
            num_warps=warps,
        )  # fmt: skip
        if not matched:
            block_r, block_k, warps = _match_sizes(views[2], block_n)
            triton_select.match_kernel[(batch, -(-r // block_r))](
                *views[2].start, source, target, scratch, n, r, leading, *views[2].constants, known, block_n, block_r,
                block_k, num_warps=warps,
            )  # fmt: skip
    return kept, source, target


def _match_sizes(view: View, block_n: int) -> tuple[int, int, int]:
    """Sources and features at a time, and warps, of a program that matches: the fastest of 21 on an H200."""
    wide = block_n > 256
    if view.values.element_size() > 2 or view.kind == 1:  # float32 products
        return (16, min(view.block, 16) if wide and view.kind == 0 else view.block, 16)
    if view.kind == 0:
        return 32, min(64, power_of_two(int(view.values.shape[-1]), 16)), 8
    return (16, 16, 8) if wide else (64, view.block, 8)


def merge(
    x: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int, mass: Tensor | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Step 4.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features.
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
        Who goes where, `kept` ascending.
    mode : int
        0 largest norm, 1 mean of the norms, 2 plain mean.
    mass : Tensor of shape (B, T), optional
        Weighs the merge and is merged itself.
    norm : (weight, bias, epsilon), optional
        The LayerNorm that follows.

    Returns
    -------
    merged : Tensor, shape (B, T - r, D)
    mass : Tensor of shape (B, T - r), or None
    normed : Tensor of shape (B, T - r, D), or None
    """
    x = readable(x)
    batch, total, width = x.shape
    stays, r = int(kept.shape[1]), int(source.shape[1])
    out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
    out_mass = None if mass is None else torch.empty((batch, stays), dtype=mass.dtype, device=x.device)
    normed = None if norm is None else torch.empty_like(out)
    scale, offset, epsilon = (None, None, 0.0) if norm is None else norm
    if batch == 0:
        return out, out_mass, normed
    view = View(x, 0)
    block_d = power_of_two(width, 16)
    block_m = max(1, _MERGE_TILE // block_d)
    with _device_of(x):
        triton_merge.merge_kernel[(batch, -(-stays // block_m))](
            *view.start[:2], kept.contiguous(), source.contiguous(), target.contiguous(),
            None if mass is None else mass.contiguous(), out, out_mass, normed,
            None if scale is None else scale.contiguous(), None if offset is None else offset.contiguous(), epsilon,
            VANISHED, total, r, stays, *view.constants[2:], mode, mass is not None,
            norm is not None, block_m, block_d, power_of_two(r, 16), num_warps=min(4, max(1, block_d // _MERGE_TILE)),
        )  # fmt: skip
    return out, out_mass, normed


def _device_of(values: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, which need not be the tensors'."""
    if values.is_cuda and values.device.index != torch.cuda.current_device():
        return torch.cuda.device(values.device)
    return nullcontext()
