"""Pooling by plain torch operators: any method on any device, and the reference for every other backend."""

from __future__ import annotations

from functools import partial
from typing import Final

from torch import nn

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import group_sum
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens

NAME: Final = "plain operators"


def forward(tokens: Tokens, method: Method, weigh: bool, norm: nn.LayerNorm | None) -> Pooled:
    """Group by the method's own operators and merge by its rule."""
    tokens = tokens.joined()
    if tokens.r == 0:
        identity = partial(Grouping.identity, tokens.x.shape[0], tokens.total, tokens.x.device)
        return Pooled(tokens.x, identity, tokens.mass)
    if method.slices and tokens.trailing == 0 and tokens.mass is None:
        return Pooled(tokens.x[:, : tokens.total - tokens.r], partial(method, tokens))
    return merge(tokens, method, method(tokens), weigh)


def merge(tokens: Tokens, method: Method, grouping: Grouping, weigh: bool) -> Pooled:
    """Features and masses of every group, by the method's merge rule; `weigh`: mass weighs the merge."""
    mass = tokens.mass
    x = method.merge_rule(tokens)(tokens.x, grouping, mass if weigh else None)
    if mass is not None:
        columns = mass.unsqueeze(2)
        mass = group_sum(grouping, grouping.take_kept(columns), grouping.take_source(columns)).squeeze(2)
    return Pooled(x, grouping, mass)
