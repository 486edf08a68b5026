"""Pooling by Triton kernels on a CUDA device: groups of ZIPBrain and Twins, merges of every method."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from zipbrain.pooling.backends import plain
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import LargestNorm
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.twins import FLAT, SAME, Twins
from zipbrain.pooling.methods.zipbrain import ZIPBrain
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens

NAME: Final = "Triton kernels"


def refusal(tokens: Tokens, method: Method) -> str:
    """Why the kernels can neither group nor merge these tokens; "" if they can."""
    if not isinstance(method, ZIPBrain | Twins) and type(method.merge_rule(tokens)) not in entry.MODES:
        return f"there are no Triton kernels for {method.title or type(method).__name__}"
    return "" if entry.mergeable(tokens.x, tokens.r) else entry.reason(tokens.x, tokens.r)


def forward(tokens: Tokens, method: Method, weigh: bool, norm: nn.LayerNorm | None) -> Pooled:
    """Group and merge by kernels, each where there is one; by plain operators otherwise."""
    if _is_fused(tokens, method):
        assert isinstance(method, ZIPBrain)
        return _pool_fused(tokens, method, norm)
    tokens = tokens.joined()
    grouping = _group(tokens, method)
    rule = method.merge_rule(tokens)
    if weigh and norm is not None and entry.merges_normed(tokens, rule, norm):
        found = entry.merge_norm(tokens, grouping, rule, norm)
        if found is not None:
            return Pooled(found[0], grouping, found[1], found[2])
    if tokens.mass is None or weigh:
        both = entry.merge(tokens.x, tokens.mass, grouping, rule)
        if both is not None:
            return Pooled(both[0], grouping, both[1])
    return plain.merge(tokens, method, grouping, weigh)


def _is_fused(tokens: Tokens, method: Method) -> bool:
    """True if kernels do the whole of ZIPBrain: its own merge rule, no mass, tensors they can read."""
    if not isinstance(method, ZIPBrain) or type(method.merge) is not LargestNorm or tokens.mass is not None:
        return False
    return entry.usable(tokens, method.spaces)


def _pool_fused(tokens: Tokens, method: ZIPBrain, norm: nn.LayerNorm | None) -> Pooled:
    pivots, branch = method.pivot_count(tokens), tokens.branch
    wants_gradient = torch.is_grad_enabled() and (
        tokens.x.requires_grad or (branch is not None and branch.requires_grad)
    )
    if branch is not None and (wants_gradient or not entry.takes_branch(tokens, method.spaces, branch)):
        tokens = tokens.joined()
        if not entry.usable(tokens, method.spaces):
            return plain.forward(tokens, method, False, norm)
    if wants_gradient:
        grouping = Grouping(*entry.group(tokens, method.spaces, pivots), tokens.total)
        both = entry.merge(tokens.x, None, grouping, method.merge)
        return plain.merge(tokens, method, grouping, False) if both is None else Pooled(both[0], grouping)
    x, normed, found = entry.pool_norm(tokens, method.spaces, pivots, norm)
    return Pooled(x, Grouping(*found, tokens.total), None, normed)


def _group(tokens: Tokens, method: Method) -> Grouping:
    index: tuple[Tensor, Tensor, Tensor]
    if isinstance(method, ZIPBrain) and entry.usable(tokens, method.spaces):
        index = entry.group(tokens, method.spaces, method.pivot_count(tokens))
    elif isinstance(method, Twins) and method.trimmed and entry.usable_by_twins(tokens):
        index = entry.twins(tokens, SAME, FLAT)
    else:
        return method(tokens)
    return Grouping(*index, tokens.total)
