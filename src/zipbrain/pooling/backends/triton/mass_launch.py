"""Sizes and launches of the Triton kernels that carry mass, as in `triton_start`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import mass as triton_mass
from zipbrain.pooling.backends.triton.mass_path import ELEMENTS
from zipbrain.pooling.backends.triton.start import (
    Start,
    View,
    device_of,
    look,
    power_of_two,
    readable,
)

_TOKENS: Final = 64  # that a program follows
_SOURCES: Final = 64  # that they are compared with at a time
_BY_WARP: Final = 1024  # pairs of them


@dataclass(frozen=True)
class _Widen:
    """How to widen tensors of certain shapes."""

    distances: tuple[int, ...]  # windows and heads of q, k and v
    start: Start


_follows: dict[Any, Start] = {}
_widens: dict[Any, _Widen] = {}


def follow(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Where original tokens stand after another pooling.

    Parameters
    ----------
    places : Tensor of int64, shape (B, T0)
        Where they stood before it; -1 where they were dropped.
    source, target : Tensor of int64, shape (B, r)
        Who goes where: targets are kept tokens or -1, kept tokens stay in their order and nothing is appended.

    Returns
    -------
    places : Tensor of int64, shape (B, T0)
    """
    batch, count = places.shape
    r = int(source.shape[1])
    out = torch.empty((batch, count), dtype=torch.int64, device=places.device)
    if not out.numel():
        return out
    source, target = source.contiguous(), target.contiguous()
    key = look(places), r, source.data_ptr() % 16, target.data_ptr() % 16
    start = _follows.get(key)
    if start is None:
        block_s = min(_SOURCES, power_of_two(r, 16))
        sizes = _TOKENS, block_s
        start = _follows[key] = Start(
            triton_mass.follow_kernel, -(-count // _TOKENS), sizes, max(1, _TOKENS * block_s // _BY_WARP)
        )
    with device_of(places):
        start(batch, places, *places.stride(), source, target, out, count, r)
    return out


def widen(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, width: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """[q, 1, 1, ...], [k, bias / scale, 0, ...] and [v, 0, 0, ...], dense; zeros alone if there is no bias.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, H, T, d)
        Queries, keys, values.
    bias : Tensor of float32, shape (B, T), optional
        What attention shall add to the logits of every key.
    scale : float
        Factor on q k^T.
    width : int
        d', more than d.

    Returns
    -------
    q, k, v : Tensor, shape (B, H, T, d')
    """
    shape = *q.shape[:3], width
    new_q, new_k, new_v = (torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(3))
    if not new_q.numel():
        return new_q, new_k, new_v
    q, k, v = readable(q), readable(k), readable(v)
    bias = None if bias is None else bias.contiguous()
    key = look(q), look(k), look(v), None if bias is None else bias.data_ptr() % 16, width
    plan = _widens.get(key)
    if plan is None:
        plan = _widens[key] = _plan(q, k, v, width, bias is not None)
    place = plan.distances
    with device_of(q):
        plan.start(
            shape[0], q, *place[:2], k, *place[2:4], v, *place[4:], bias, new_q, new_k, new_v, float(scale), shape[2]
        )  # fmt: skip
    return new_q, new_k, new_v


def _plan(q: Tensor, k: Tensor, v: Tensor, wide: int, biased: bool) -> _Widen:
    _, heads, tokens, width = q.shape
    views = [View(values, 2) for values in (q, k, v)]
    layouts = [number for view in views for number in view.constants[3:]]
    programs = heads * -(-tokens * wide // ELEMENTS)
    start = Start(triton_mass.widen_kernel, programs, (*layouts, heads, width, wide, ELEMENTS, biased), 4)
    return _Widen(tuple(number for view in views for number in view.distances), start)
