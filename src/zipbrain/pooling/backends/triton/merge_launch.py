"""Sizes and launches of the Triton kernels for step 4 and its gradient, as in `triton_start`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import merge as triton_merge
from zipbrain.pooling.backends.triton.path import few
from zipbrain.pooling.backends.triton.start import (
    MERGE_TILE,
    Added,
    Start,
    View,
    added_kind,
    aligned,
    device_of,
    look,
    power_of_two,
    readable,
)
from zipbrain.pooling.merges import VANISHED

_CROWD = 2  # sources for every token that stays, from which on several are added at a time,
_TOGETHER = 32  # at most so many, by a program
_WARPS = 4  # of so many warps,
_HELD = 2048  # each of which holds so many numbers

_merges: dict[Any, tuple[Start, int]] = {}
_gradients: dict[Any, tuple[Start, int]] = {}


def merge(
    x: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int, mass: Tensor | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None, added: Added | None = None,
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
    added : (branch, gain), optional
        What is still to be added to x.

    Returns
    -------
    merged : Tensor, shape (B, T - r, D)
    mass : Tensor of shape (B, T - r), or None
    normed : Tensor of shape (B, T - r, D), or None
    """
    x = readable(x)
    batch, total, width = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
    out_mass = None if mass is None else torch.empty((batch, stays), dtype=mass.dtype, device=x.device)
    normed = None if norm is None else torch.empty_like(out)
    mass = None if mass is None else mass.contiguous()
    scale, offset, epsilon = (
        (None, None, 0.0) if norm is None else (norm[0].contiguous(), norm[1].contiguous(), norm[2])
    )
    if batch == 0:
        return out, out_mass, normed
    kinds = mode, mass is not None, norm is not None, added_kind(added)
    branch, gain = added or (None, None)
    others = mass, scale, offset, branch, gain
    start, distance = plan_merge(x, stays, r, kinds, others)
    with device_of(x):
        start(
            batch, x, distance, branch, gain, aligned(kept), aligned(source), aligned(target), mass, out, out_mass,
            normed, scale, offset, epsilon, VANISHED, total, r, stays,
        )  # fmt: skip
    return out, out_mass, normed


def merge_gradient(x: Tensor, kept: Tensor, source: Tensor, target: Tensor, above: Tensor) -> Tensor:
    """Gradient of the merge by the largest norm without mass.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features that were merged.
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
        Who went where.
    above : Tensor, shape (B, T - r, D)
        Gradient of the merged features.

    Returns
    -------
    gradient : Tensor, shape (B, T, D)
        Of x. Among members of equal length the first one counts as the longest.
    """
    x, above = readable(x), above.contiguous()
    batch, total, width = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty((batch, total, width), dtype=x.dtype, device=x.device)
    if batch == 0:
        return out
    start, distance = _plan_gradient(x, stays, r, above)
    with device_of(x):
        start(
            batch, x, distance, aligned(kept), aligned(source), aligned(target), above, out, VANISHED,
            total, r, stays,
        )  # fmt: skip
    return out


def plan_merge(
    x: Tensor, stays: int, r: int, kinds: tuple[Any, ...], others: tuple[Tensor | None, ...]
) -> tuple[Start, int]:
    """The kernel that merges tensors of these shapes, and how far windows of x lie apart.

    By shape alone, but for when something is read: a window must get the same numbers in any batch.
    """
    soon, looks = few(x), [None if one is None else (one.dtype, one.data_ptr() % 16) for one in others]
    key = look(x), stays, r, kinds, soon, *looks
    found = _merges.get(key)
    if found is None:
        view, block_m, block_d, warps = _sizes(x)
        together = 1
        if r > _CROWD * stays:  # one after the other would take long, and there are few others to do meanwhile
            block_m, warps, together = 1, _WARPS, max(1, min(_TOGETHER, _WARPS * _HELD // block_d))
        constants = *view.constants[2:], *kinds, block_m, block_d, power_of_two(r, 16), together, soon
        start = Start(triton_merge.merge_kernel, -(-stays // block_m), constants, warps, True)
        found = _merges[key] = start, view.distances[0]
    return found


def _plan_gradient(x: Tensor, stays: int, r: int, above: Tensor) -> tuple[Start, int]:
    key = look(x), stays, r, above.dtype, above.data_ptr() % 16
    found = _gradients.get(key)
    if found is None:
        view, block_m, block_d, warps = _sizes(x)
        constants = *view.constants[2:], block_m, block_d, power_of_two(r, 16)
        start = Start(triton_merge.merge_gradient_kernel, -(-stays // block_m), constants, warps, True)
        found = _gradients[key] = start, view.distances[0]
    return found


def _sizes(x: Tensor) -> tuple[View, int, int, int]:
    """How x is read: rows of a program, their padded width, and warps."""
    block_d = power_of_two(int(x.shape[2]), 16)
    return View(x, 0), max(1, MERGE_TILE // block_d), block_d, min(4, max(1, block_d // MERGE_TILE))
