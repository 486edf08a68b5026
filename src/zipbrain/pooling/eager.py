"""NumPy twins of the decisions in `steps` and of the paper's merge, for CPU tensors outside of a graph.

The arrays here are a few hundred numbers per window, where a torch operator costs ten times the arithmetic. Nothing is
copied between torch and NumPy: both see the same memory. Tests hold every function to its twin.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RESOLUTION: Final = 2.0**-20
_LOWEST: Final = -(2**62)

_switched_on = True


def switch(on: bool) -> bool:
    """Turn the NumPy twins on or off for this process; returns the setting before. Off, plain torch runs everywhere."""
    global _switched_on
    before, _switched_on = _switched_on, on
    return before


def usable(values: Tensor) -> bool:
    """Whether a tensor is an ordinary CPU tensor outside of any capture."""
    return (
        _switched_on
        and type(values) is Tensor
        and values.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
    )


def highest(score: Tensor, count: int, scale: float | Tensor, closed: Tensor | None) -> Tensor:
    """Twin of `steps.highest`."""
    values: NDArray[Any] = score.numpy()
    n = values.shape[1]
    factor: Any = scale.numpy() if isinstance(scale, Tensor) else values.dtype.type(scale)
    with np.errstate(invalid="ignore", over="ignore"):
        key = np.rint(values * (factor / values.dtype.type(RESOLUTION))).astype(np.int64)
        key *= n
    key -= np.arange(n)
    if closed is not None:
        key[closed.numpy()] = _LOWEST
    edge = np.partition(key, n - count, axis=1)[:, n - count, None]
    return torch.from_numpy(key >= edge)


def partition(redundant: Tensor, r: int, leading: int, trailing: int) -> tuple[Tensor, Tensor]:
    """Twin of `steps.partition`."""
    gone: NDArray[np.bool_] = redundant.numpy()
    batch, n = gone.shape
    source = gone.nonzero()[1].reshape(batch, r)
    kept = (~gone).nonzero()[1].reshape(batch, n - r)
    if leading:
        source += leading
        kept += leading
    if leading or trailing:
        every = np.empty((batch, leading + n - r + trailing), dtype=np.int64)
        every[:, :leading] = np.arange(leading)
        every[:, leading : leading + n - r] = kept
        every[:, leading + n - r :] = np.arange(leading + n, leading + n + trailing)
        kept = every
    return torch.from_numpy(kept), torch.from_numpy(source)


def best_column(cosine: Tensor, closed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Twin of the choice in `steps.match_tokens`; overwrites `cosine`."""
    values: NDArray[Any] = cosine.numpy()
    if closed is not None:
        values += closed.numpy()[:, None, :] * values.dtype.type(-4)
    best = values.max(axis=2)
    edge = best - values.dtype.type(RESOLUTION)
    column = (values >= edge[:, :, None]).argmax(axis=2)
    lost = np.isnan(best)
    if lost.any():  # a row with NaN takes its first open column
        first = np.zeros_like(column[:, :1]) if closed is None else (~closed.numpy()).argmax(axis=1)[:, None]
        column = np.where(lost, first, column)
    return torch.from_numpy(column), torch.from_numpy(best)


def merge_largest_norm(x: Tensor, kept: Tensor, source: Tensor, target: Tensor, vanished: float) -> Tensor:
    """Twin of `merges.LargestNorm` without mass, for float32 and float64 without gradient.

    Works on the rows of all windows together: the distinct targets are summed with their sources, rescaled, and
    written over their places among the kept rows.
    """
    batch, total, width = x.shape
    rows = x.reshape(batch * total, width)
    offset = np.arange(batch)[:, None] * total
    keep = kept.numpy() + offset
    goal, member = np.unique(target.numpy() + offset, return_inverse=True)  # distinct targets, and whose is whose
    sources = rows.index_select(0, torch.from_numpy((source.numpy() + offset).ravel()))
    targets = rows.index_select(0, torch.from_numpy(goal))
    length: NDArray[Any] = torch.linalg.vector_norm(targets, dim=1).numpy()
    alone = length.copy()
    group = member.ravel()
    np.maximum.at(length, group, torch.linalg.vector_norm(sources, dim=1).numpy())
    sums = targets.index_add(0, torch.from_numpy(group), sources)
    found: NDArray[Any] = torch.linalg.vector_norm(sums, dim=1).numpy()
    lost = found * found.dtype.type(vanished) < length
    if lost.any():
        sums[torch.from_numpy(lost)] = targets[torch.from_numpy(lost)]
        found = np.where(lost, alone, found)
    scale = length / np.maximum(found, np.finfo(found.dtype).tiny)
    sums *= torch.from_numpy(scale).unsqueeze(1)
    merged = rows.index_select(0, torch.from_numpy(keep.ravel()))
    place = np.searchsorted(keep.ravel(), goal)  # windows follow each other, so all kept rows are ascending
    merged.index_copy_(0, torch.from_numpy(place), sums)
    return merged.view(batch, -1, width)
