"""Sizes and launches of the Triton kernels for `Twins`, as in `triton_start`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from zipbrain.pooling.backends.triton import twins as triton_twins
from zipbrain.pooling.backends.triton.start import (
    Start,
    View,
    device_of,
    look,
    power_of_two,
    readable,
)
from zipbrain.pooling.steps import evenly_spread

_CHUNK: Final = 32  # features read at a time; none belongs to two spaces
_TILE: Final = 64  # tokens whose pairs with as many others a program compares
_BLOCK_J: Final = 32  # keys compared at a time where there are too many for one comparison of all pairs
_UNIT: Final = 16  # what divides all sizes in the scratch memory


@dataclass(frozen=True)
class _Plan:
    """How to group tensors of certain shapes."""

    distances: tuple[int, ...]  # windows of x, then windows and heads of q, k and v
    breadth: int  # of a row of all pairs, in units
    size: int  # of a window's scratch memory, in units
    centre: Start
    pairs: Start
    part: Start


_plans: dict[Any, _Plan] = {}
_orders: dict[tuple[int, torch.device], Tensor] = {}


def group(
    x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor | None, r: int, leading: int, trailing: int, same: float,
    flat: float, order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Steps 1 to 3 of `Twins`.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features.
    q, k, v : Tensor, shape (B, H, T, d)
        What is averaged over heads.
    mass : Tensor of shape (B, T), optional
        How many original tokens each stands for; 1 if not given.
    r, leading, trailing : int
        Tokens that go, protected tokens at the start and at the end.
    same : float
        What smaller squared distances count as.
    flat : float
        The least variance of a space, as a share of its squared mean.
    order : Tensor of shape (N,), optional
        What `evenly_spread` gives; made and kept here if not given.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    """
    spaces = [readable(values) for values in (x, q, k, v)]
    mass = None if mass is None else mass.contiguous()
    batch, total, device = x.shape[0], x.shape[1], x.device
    n = total - leading - trailing
    kept = torch.empty((batch, total - r), dtype=torch.int64, device=device)
    source = torch.empty((batch, r), dtype=torch.int64, device=device)
    target = torch.empty((batch, r), dtype=torch.int64, device=device)
    if batch == 0:
        return kept, source, target
    weighed = None if mass is None else (mass.dtype, mass.data_ptr() % 16)
    key = *(look(values) for values in spaces), weighed, n, r
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(spaces, mass is not None, n, r)
    if order is None:
        order = _order(n, device)
    scratch = torch.empty((batch, plan.size * _UNIT), dtype=torch.float32, device=device)
    place = plan.distances
    with device_of(x):
        plan.centre(
            batch, spaces[0], place[0], spaces[1], *place[1:3], spaces[2], *place[3:5], spaces[3], *place[5:7],
            scratch, plan.size, n, leading,
        )  # fmt: skip
        plan.pairs(batch, mass, order, scratch, plan.size, plan.breadth, n, leading, total, same, flat)
        plan.part(batch, mass, kept, source, target, scratch, plan.size, plan.breadth, n, r, leading, trailing)
    return kept, source, target


def _plan(spaces: list[Tensor], massed: bool, n: int, r: int) -> _Plan:
    """By shape alone, never by batch: a window must get the same groups in any batch, to the last bit."""
    x, *heads = [View(values, min(place, 1)) for place, values in enumerate(spaces)]
    block_n = power_of_two(n, 16)
    tile = min(_TILE, block_n)
    firsts = [0]  # the first chunk of each space, and behind the last one
    for values in spaces:
        firsts.append(firsts[-1] + -(-int(values.shape[-1]) // _CHUNK))
    *begin, chunks = firsts[1:]
    pitch, breadth = chunks * _CHUNK, -(-n // _UNIT)
    keys = -(-2 * chunks // _UNIT) * _UNIT  # behind the sums of the chunks
    least = keys + block_n
    rows = least + block_n // tile * block_n
    size = rows // _UNIT + n * (pitch // _UNIT + breadth)
    views = *x.constants[2:], *(number for view in heads for number in view.constants[1:])
    centre = Start(
        triton_twins.centre_kernel, chunks, (*views, *begin, chunks, rows, block_n, _CHUNK), 4 if block_n <= 128 else 8,
        waits=True,
    )  # fmt: skip
    across = -(-n // tile)
    sizes = *begin, chunks, power_of_two(chunks, 16), least, rows, massed, block_n, tile, _CHUNK
    pairs = Start(triton_twins.pairs_kernel, across * (across + 1) // 2, sizes, 8 if tile == _TILE else 4, waits=True)
    block_r = 32 if r > 16 and block_n <= 256 else 16
    sizes = keys, least, rows, pitch, massed, block_n, tile, _BLOCK_J, block_r
    part = Start(triton_twins.part_kernel, 1, sizes, 4 if block_n <= 64 else 8 if block_n <= 128 else 16, waits=True)
    distances = x.distances[0], *(number for view in heads for number in view.distances)
    return _Plan(distances, breadth, size, centre, pairs, part)


def _order(n: int, device: torch.device) -> Tensor:
    """`evenly_spread`, kept for the next time; not while a graph is captured, where it is but a promise."""
    found = _orders.get((n, device))
    if found is None:
        found = evenly_spread(n, device, torch.float32)
        if device.type != "cuda":
            _orders[n, device] = found
        elif not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
            _orders[n, device] = found
    return found
