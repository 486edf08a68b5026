"""Carrying mass, and heads of odd width, in a few Triton kernels. Needs no triton to be imported itself."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from zipbrain.pooling.backends.triton.norm_path import takes
from zipbrain.pooling.backends.triton.path import (
    LONGEST,
    MODES,
    MOST_FEATURES,
    MOST_PROGRAMS,
    MOST_SOURCES,
    available,
    capable,
    followed,
    in_reach,
    mergeable,
    ordinary,
    taken,
)
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import MergeRule
from zipbrain.pooling.tokens import Tokens

ELEMENTS: Final = 1024  # that a program widens of each of q, k and v


def wider(width: int) -> int:
    """Channels of a head with at least one more, a multiple of 8 as fused attention wants it on a GPU."""
    return width + 8 - width % 8


def follow(places: Tensor, grouping: Grouping) -> Tensor | None:
    """Where original tokens stand after another pooling, in one kernel, or None where it can't.

    Parameters
    ----------
    places : Tensor of int64, shape (B, T0)
        Where they stood before it; -1 where they were dropped.
    grouping : Grouping
        Who went where.
    """
    source, target = grouping.source, grouping.target
    if not taken(places) or _left_alone() or grouping.appended:
        return None
    if not 0 < source.shape[1] <= MOST_SOURCES or grouping.removed != source.shape[1] or places.shape[1] > LONGEST:
        return None
    if not all(ordinary(values, places.device, (torch.int64,)) for values in (places, source, target)):
        return None
    if not available() or (places.is_cuda and not capable(places.device)):
        return None
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        found: Tensor = triton_ops.follow(places, source, target)
        return found
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch

    return triton_mass_launch.follow(places, source, target)


def with_mass(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """What attention reads instead of q, k, v and a bias, in one kernel, or None where it can't.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, H, T, d)
        Queries, keys, values.
    bias : Tensor, shape (B, T)
        To be added to the logits of every key.
    scale : float
        Factor on q k^T.

    Returns
    -------
    q, k, v : Tensor, shape (B, H, T, d')
        [q, 1, 1, ...], [k, bias / scale, 0, ...] and [v, 0, 0, ...], dense, with d' = `wider` (d).
    """
    if bias.dtype != torch.float32 or not ordinary(bias, q.device) or not _widenable(q, k, v, wider(q.shape[3])):
        return None
    if torch.is_grad_enabled() and bias.requires_grad:
        return None
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        widened: tuple[Tensor, Tensor, Tensor] = triton_ops.widen(q, k, v, bias, scale)
        return widened
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch

    return triton_mass_launch.widen(q, k, v, bias, scale, wider(q.shape[3]))


def padded(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Heads with zeros up to a multiple of 8, in one kernel, where fused attention would pad each by itself, or None.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, H, T, d)
        Queries, keys, values in half precision.

    Returns
    -------
    q, k, v : Tensor, shape (B, H, T, d')
    """
    width = int(q.shape[3])
    if width % 8 == 0 or q.dtype == torch.float32 or torch.compiler.is_compiling():
        return None
    if not _widenable(q, k, v, wider(width)):
        return None
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch

    return triton_mass_launch.widen(q, k, v, None, 1.0, wider(width))


def _widenable(q: Tensor, k: Tensor, v: Tensor, wide: int) -> bool:
    """Whether the kernel can widen these heads."""
    if not taken(q) or _left_alone() or torch.is_autocast_enabled(q.device.type):
        return False
    if torch.is_grad_enabled() and any(values.requires_grad for values in (q, k, v)):
        return False
    if not q.shape == k.shape == v.shape or not q.dtype == k.dtype == v.dtype:
        return False
    heads, tokens, width = q.shape[1:]
    if not 0 < width <= MOST_FEATURES or heads * -(-tokens * wide // ELEMENTS) > MOST_PROGRAMS:
        return False
    if not all(ordinary(values, q.device) for values in (q, k, v)):
        return False
    if not in_reach(q) or not all(values.stride() == q.stride() or in_reach(values) for values in (k, v)):
        return False
    return available() and (not q.is_cuda or capable(q.device))


def merges_normed(tokens: Tokens, rule: MergeRule, norm: nn.LayerNorm | None) -> bool:
    """Whether `merge_norm` can take these tokens with their mass, if no token is dropped or appended."""
    x, mass = tokens.x, tokens.mass
    if norm is None or mass is None or mass.dtype != torch.float32 or type(rule) not in MODES:
        return False
    if torch.is_grad_enabled() and (x.requires_grad or mass.requires_grad):
        return False
    if not mergeable(x, tokens.r) or _left_alone() or not ordinary(mass, x.device):
        return False
    return takes(norm, x)


def merge_norm(
    tokens: Tokens, grouping: Grouping, rule: MergeRule, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Merge features weighted by mass, and mass, and apply a norm where `merges_normed` says so: x, mass, normed x."""
    if grouping.drops or grouping.appended or grouping.weight is not None or not 0 < grouping.removed <= MOST_SOURCES:
        return None
    assert tokens.mass is not None
    x, mass, index = tokens.x.detach(), tokens.mass.detach(), (grouping.kept, grouping.source, grouping.target)
    mode, after = MODES[type(rule)], (norm.weight, norm.bias, norm.eps)
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        found: tuple[Tensor, Tensor, Tensor] = triton_ops.merge_norm(x, mass, *index, mode, *after)
        return found
    from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

    merged, masses, normed = triton_merge_launch.merge(x, *index, mode, mass, after)
    assert masses is not None
    assert normed is not None
    return merged, masses, normed


def _left_alone() -> bool:
    """Whether the plain operators stay what they are: somebody follows them, or they go into an exported program."""
    return followed() or torch.compiler.is_exporting()
