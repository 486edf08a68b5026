"""The kernels as functions of tensors and numbers, and as torch operators of the same name for captured graphs.

Where an operator returns an optional tensor, an empty one stands for None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _index(like: Tensor, total: int, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """Empty kept, source and target."""
    kept, source, target = (like.new_empty((like.shape[0], n), dtype=torch.int64) for n in (total - r, r, r))
    return kept, source, target


def group(z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3: kept, source, target."""
    from zipbrain.pooling.backends.triton import language, select

    kept, source, target, _ = select.group([z1, z2, z3], kinds, language.Counts(*counts), z1)
    return kept, source, target


group_op = torch.library.custom_op("zipbrain::group", group, mutates_args=())


@group_op.register_fake
def _(z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    return _index(z1, z1.shape[-2], counts[0])


def twins(
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mass: Tensor | None,
    order: Tensor,
    counts: list[int],
    least: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3 of `Twins`: kept, source, target; `least` distance of two tokens and variance of a space."""
    from zipbrain.pooling.backends.triton import language, twins

    return twins.group(x, (q, k, v), mass, order, language.Counts(*counts), least)


twins_op = torch.library.custom_op("zipbrain::twins", twins, mutates_args=())


@twins_op.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _index(x, x.shape[1], others[-2][0])


def pool(
    x: Tensor,
    z1: Tensor,
    z2: Tensor,
    z3: Tensor,
    kinds: list[int],
    counts: list[int],
    branch: Tensor | None,
    gain: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All four steps by the largest norm, without mass, and the LayerNorm behind it: x, normed x, groups.

    x still lacks its branch, if there is one; spaces of kind 0 are x.
    """
    from zipbrain.pooling.backends.triton import language, merge, select

    added = None if branch is None else (branch.contiguous(), gain)  # a compiler may have changed strides
    x = x if branch is None else language.dense(x)
    early, late = (added, None) if 0 in kinds else (None, added)  # added before tokens are compared, or behind it
    kept, source, target, joined = select.group([z1, z2, z3], kinds, language.Counts(*counts), x, early)
    norm = None if weight is None or bias is None else (weight, bias, epsilon)
    merged, _, normed = merge.merge(joined, (kept, source, target), 0, None, norm, late)
    return merged, x.new_empty(0) if normed is None else normed, kept, source, target


pool_op = torch.library.custom_op("zipbrain::pool", pool, mutates_args=())


@pool_op.register_fake
def _(
    x: Tensor, z1: Tensor, z2: Tensor, z3: Tensor, kinds: list[int], counts: list[int], *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r, weight = counts[0], others[-3]
    merged = x.new_empty((x.shape[0], x.shape[1] - r, x.shape[2]))
    return merged, x.new_empty(0) if weight is None else torch.empty_like(merged), *_index(x, x.shape[1], r)


def merge(
    x: Tensor,
    mass: Tensor | None,
    kept: Tensor,
    source: Tensor,
    target: Tensor,
    mode: int,
    weight: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Step 4 for any grouping in ascending order, weighted by mass, and the LayerNorm behind it: x, mass, normed x."""
    from zipbrain.pooling.backends.triton import merge

    norm = None if weight is None or bias is None else (weight, bias, epsilon)
    merged, masses, normed = merge.merge(x, (kept, source, target), mode, mass, norm)
    return merged, x.new_empty(0) if masses is None else masses, x.new_empty(0) if normed is None else normed


merge_op = torch.library.custom_op("zipbrain::merge", merge, mutates_args=())


@merge_op.register_fake
def _(x: Tensor, mass: Tensor | None, kept: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    merged = x.new_empty((x.shape[0], kept.shape[1], x.shape[2]))
    masses, weight = x.new_empty(0) if mass is None else mass.new_empty(kept.shape), others[-3]
    return merged, masses, x.new_empty(0) if weight is None else torch.empty_like(merged)


def follow(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Places of original tokens after another pooling."""
    from zipbrain.pooling.backends.triton import match

    return match.follow(places, source, target)


follow_op = torch.library.custom_op("zipbrain::follow", follow, mutates_args=())


@follow_op.register_fake
def _(places: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return places.new_empty(places.shape)
