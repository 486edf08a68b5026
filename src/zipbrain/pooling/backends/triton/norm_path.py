"""ZIPBrain with the LayerNorm behind it, and what was pooled before pooled again. Needs no triton to be imported."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.pooling.backends.triton.path import (
    MOST_TOKENS,
    few,
    followed,
    interpreting,
    ordinary,
    read,
    taken,
)
from zipbrain.pooling.module_hooks import has_hooks
from zipbrain.pooling.tokens import Branch, Tokens


def pool_norm(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: nn.LayerNorm | None,
    found: tuple[Tensor, Tensor, Tensor] | None = None, branch: Branch | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Decide, unless that was `found` before, merge by the largest norm and apply a norm: x and normed x.

    A branch for which `takes_branch` is true is added to ``tokens.x`` in passing.
    """
    assert branch is None or takes_branch(tokens, spaces, branch)
    added = None if branch is None else (branch.values, branch.scale)
    x = tokens.x.detach()
    if found is None and torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        values, kinds = read(tokens, spaces)
        counts = tokens.r, pivots, tokens.leading, tokens.trailing
        if norm is None or not takes(norm, x):
            merged: Tensor = triton_ops.pool(x, *values, kinds, *counts)[0]
            return merged, None
        both = triton_ops.pool_norm(x, *values, kinds, *counts, norm.weight, norm.bias, norm.eps)
        return both[0], both[1]
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    after = (norm.weight, norm.bias, norm.eps) if norm is not None and takes(norm, x) else None
    known = found is None and (norm is None or after is not None) and x.shape[0] > 0
    rest = added
    if found is None:
        values, kinds = read(tokens, spaces)
        counts = tokens.r, pivots, tokens.leading, tokens.trailing
        if added is None or "x" not in spaces:
            found = triton_select_launch.group(values, kinds, *counts)
        else:
            kept, source, target, x = triton_select_launch.group_joined(x, added, values, kinds, *counts)
            found, rest = (kept, source, target), None
    merged, _, normed = triton_merge_launch.merge(x, *found, mode=0, norm=after, added=rest)
    if known:  # behind the launches: what is used again must have been built
        _remember(tokens, spaces, pivots, after, added)
    return merged, normed


def takes_branch(tokens: Tokens, spaces: tuple[str, str, str], branch: Branch) -> bool:
    """Whether the kernels can add a branch to x in passing: dense, of the same kind as x, its scale a row."""
    x, values, scale = tokens.x, branch.values, branch.scale
    if torch.compiler.is_compiling() or x.stride(-1) != 1 or not _fits(x, branch):
        return False
    if values.dtype != x.dtype or not ordinary(values, x.device):
        return False
    if scale is not None and (scale.dtype != x.dtype or scale.device != x.device or not scale.is_contiguous()):
        return False
    if scale is not None and torch._C._functorch.is_functorch_wrapped_tensor(scale):
        return False
    return _in_passing(tokens, spaces)


def _fits(x: Tensor, branch: Branch) -> bool:
    """Whether a branch has the size that a kernel expects."""
    values, scale = branch.values, branch.scale
    return values.shape == x.shape and values.is_contiguous() and (scale is None or scale.shape == x.shape[2:])


def _in_passing(tokens: Tokens, spaces: tuple[str, str, str]) -> bool:
    """Whether a branch can wait for the merge, or for the kernel that measures x for the pivots."""
    return "x" not in spaces or (spaces[0] == "x" and tokens.count <= MOST_TOKENS)


_ready: dict[Any, Any] = {}  # what `pool_norm` has pooled before, and how


def pool_norm_again(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: nn.LayerNorm | None, branch: Branch | None = None
) -> tuple[Tensor, Tensor | None] | None:
    """`pool_norm` for tensors like some before, without looking at everything again; None: there were none."""
    x = tokens.x
    if not taken(x) or torch.compiler.is_compiling() or followed():
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or (torch.is_grad_enabled() and x.requires_grad):
        return None
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return None
    after = None
    if norm is not None:
        if not takes(norm, x):
            return None
        weights = norm._parameters
        after = weights["weight"], weights["bias"], norm.eps
    if tokens.count > MOST_TOKENS or (branch is not None and not _fits(x, branch)):
        return None
    if branch is not None and not _in_passing(tokens, spaces):
        tokens, branch = replace(tokens, x=branch.added_to(x)), None
    added = None if branch is None else (branch.values, branch.scale)
    ready = _ready.get(_key(tokens, spaces, pivots, after, added))
    if ready is None or not x.shape[0] or not (ready.built or interpreting()):
        return None
    values = tuple([getattr(tokens, space[0]) for space in spaces])
    pooled: tuple[Tensor, Tensor | None] = ready(tokens.x, values, after, added)
    return pooled


def _key(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: Any, added: Any
) -> tuple[Any, ...]:  # fmt: skip
    """All that decides how tensors are pooled, but for what `pool_norm_again` asks itself."""
    read = [getattr(tokens, letter) for letter in _letters(spaces)]
    looks = [
        None if one is None else (type(one), one.shape[1:], one.stride(), one.dtype, one.device, one.data_ptr() % 16)
        for one in (tokens.x, *read, *(norm[:2] if norm else ()), *(added or ()))
    ]
    counts = tokens.r, tokens.leading, tokens.trailing, pivots
    return spaces, counts, few(tokens.x), norm is None, added is None, *looks


@cache
def _letters(spaces: tuple[str, str, str]) -> tuple[str, ...]:
    """What the spaces read besides x, each once."""
    return tuple(sorted({space[0] for space in spaces} - {"x"}))


def _remember(tokens: Tokens, spaces: tuple[str, str, str], pivots: int, after: Any, added: Any) -> None:
    from zipbrain.pooling.backends.triton import ready as triton_ready

    own = [getattr(tokens, letter) for letter in ("x", *_letters(spaces))]
    if len({values.data_ptr() for values in own}) < len(own):  # one reads another's memory by chance
        return
    values, kinds = read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    ready = triton_ready.make(tokens.x, values, kinds, *counts, after, added)
    if ready is not None:
        _ready[_key(tokens, spaces, pivots, after, added)] = ready


def takes(norm: nn.LayerNorm, x: Tensor) -> bool:
    """Whether the merge kernel can apply a LayerNorm to what it merges, with the same result."""
    if type(norm) is not nn.LayerNorm or has_hooks(norm):
        return False
    weights = norm._parameters  # asking a module for what is in there is slow
    weight, bias = weights.get("weight"), weights.get("bias")
    if weight is None or bias is None or torch.is_autocast_enabled(x.device.type):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if not torch.compiler.is_compiling() and (wrapped(weight) or wrapped(bias)):
        return False
    fits = norm.normalized_shape == (x.shape[2],) and weight.dtype == x.dtype and weight.device == x.device
    return fits and not (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad))
