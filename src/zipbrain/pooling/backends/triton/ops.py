"""The Triton kernels as torch operators, so that a captured graph (compile, export) holds one node for each pooling.

Outside of a capture `triton_path` launches the kernels directly: an operator's dispatch would cost more than they do.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _index(x: Tensor, total: int, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """Empty kept, source and target."""
    batch = x.shape[0]
    kept, source, target = (x.new_empty((batch, size), dtype=torch.int64) for size in (total - r, r, r))
    return kept, source, target


@torch.library.custom_op("zipbrain::group", mutates_args=())
def group(
    z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3: kept, source, target."""
    from zipbrain.pooling.backends.triton import select_launch as triton_select_launch

    return triton_select_launch.group([z1, z2, z3], kinds, r, pivots, leading, trailing)


@group.register_fake
def _(
    z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _index(z1, z1.shape[-2], r)


@torch.library.custom_op("zipbrain::twins", mutates_args=())
def twins(
    x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor | None, order: Tensor, r: int, leading: int, trailing: int,
    same: float, flat: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Steps 1 to 3 of `Twins`: kept, source, target."""
    from zipbrain.pooling.backends.triton import twins_launch as triton_twins_launch

    return triton_twins_launch.group(x, q, k, v, mass, r, leading, trailing, same, flat, order)


@twins.register_fake
def _(
    x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor | None, order: Tensor, r: int, leading: int, trailing: int,
    same: float, flat: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _index(x, x.shape[1], r)


@torch.library.custom_op("zipbrain::pool", mutates_args=())
def pool(
    x: Tensor, z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All four steps by the largest norm, without mass: x, kept, source, target."""
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    found = triton_select_launch.group([z1, z2, z3], kinds, r, pivots, leading, trailing)
    return triton_merge_launch.merge(x, *found, mode=0)[0], *found


@pool.register_fake
def _(
    x: Tensor, z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty((x.shape[0], x.shape[1] - r, x.shape[2])), *_index(x, x.shape[1], r)


@torch.library.custom_op("zipbrain::pool_norm", mutates_args=())
def pool_norm(
    x: Tensor, z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    weight: Tensor, bias: Tensor, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same and the LayerNorm behind it: x, normed x, kept, source, target."""
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    found = triton_select_launch.group([z1, z2, z3], kinds, r, pivots, leading, trailing)
    merged, _, normed = triton_merge_launch.merge(x, *found, mode=0, norm=(weight, bias, epsilon))
    assert normed is not None
    return merged, normed, *found


@pool_norm.register_fake
def _(
    x: Tensor, z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], r: int, pivots: int, leading: int, trailing: int,
    weight: Tensor, bias: Tensor, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    merged = x.new_empty((x.shape[0], x.shape[1] - r, x.shape[2]))
    return merged, torch.empty_like(merged), *_index(x, x.shape[1], r)


@torch.library.custom_op("zipbrain::merge", mutates_args=())
def merge(x: Tensor, mass: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int) -> tuple[Tensor, Tensor]:
    """Step 4 weighted by mass, for any grouping in ascending order: x and mass."""
    from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

    merged, masses, _ = triton_merge_launch.merge(x, kept, source, target, mode, mass)
    assert masses is not None
    return merged, masses


@merge.register_fake
def _(x: Tensor, mass: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], kept.shape[1], x.shape[2])), torch.empty_like(mass[:, : kept.shape[1]])


@torch.library.custom_op("zipbrain::merge_norm", mutates_args=())
def merge_norm(
    x: Tensor, mass: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int, weight: Tensor, bias: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same and the LayerNorm behind it: x, mass, normed x."""
    from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

    merged, masses, normed = triton_merge_launch.merge(x, kept, source, target, mode, mass, (weight, bias, epsilon))
    assert masses is not None
    assert normed is not None
    return merged, masses, normed


@merge_norm.register_fake
def _(
    x: Tensor, mass: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int, weight: Tensor, bias: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    merged = x.new_empty((x.shape[0], kept.shape[1], x.shape[2]))
    return merged, mass.new_empty((x.shape[0], kept.shape[1])), torch.empty_like(merged)


@torch.library.custom_op("zipbrain::follow", mutates_args=())
def follow(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Where original tokens stand after another pooling."""
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch

    return triton_mass_launch.follow(places, source, target)


@follow.register_fake
def _(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return places.new_empty(places.shape)


@torch.library.custom_op("zipbrain::widen", mutates_args=())
def widen(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with more channels, through which a bias enters attention: (B, H, T, d')."""
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch
    from zipbrain.pooling.backends.triton.mass_path import wider

    return triton_mass_launch.widen(q, k, v, bias, scale, wider(q.shape[3]))


@widen.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    from zipbrain.pooling.backends.triton.mass_path import wider

    widened = q.new_empty((*q.shape[:3], wider(q.shape[3])))
    return widened, torch.empty_like(widened), torch.empty_like(widened)
