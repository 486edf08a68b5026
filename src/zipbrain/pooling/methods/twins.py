"""Twins: tokens that ask, offer and say the same become one, the lightest first. Ours, not the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import MeanNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.composition import Composition, MostSimilar, Split
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import cheapest_partner, highest, largest
from zipbrain.pooling.tokens import Tokens

_GOLDEN = 0.6180339887498949


@register("close_pairs")
@dataclass(frozen=True)
class ClosePairs(Split):
    """The lighter token of each of the closest pairs goes, where close means: like queries, keys and values.

    The cost of a pair is Ward's: the squared distance of its (q, k, v), vectors averaged over heads, times
    m_i m_j / (m_i + m_j) with the masses m. Of equally heavy tokens the one that comes first in an evenly spread order
    stays.
    """

    @property
    def reads(self) -> frozenset[str]:
        return frozenset("qkv")

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        rows = torch.cat([spaces.vectors(space) for space in "qkv"], dim=2)  # (B, N, 3 d)
        batch, n = rows.shape[:2]
        if tokens.mass is None:
            mass = torch.ones(batch, n, device=rows.device, dtype=rows.dtype)
        else:
            mass = tokens.unprotected(tokens.mass, 1).to(rows.dtype)
        order = (torch.arange(n, device=rows.device, dtype=torch.float64) * _GOLDEN) % 1.0
        cost = cheapest_partner(rows, mass, mass + 0.5 * order.to(rows.dtype))
        return highest(-cost, tokens.r, 1 / largest(cost))


@register("twins")
@dataclass(frozen=True)
class Twins(Method):
    r"""Merge the closest pairs in (q, k, v), the lightest first, and remember how many each token stands for.

    1. *Pairs*: :math:`c_{ij} = \frac{m_i m_j}{m_i + m_j}\,\lVert (q, k, v)_i - (q, k, v)_j \rVert^2` with q, k, v
       averaged over heads and m the mass; the cost of token i is its least over all j that are heavier, or as heavy
       and earlier in an evenly spread order. The r cheapest tokens go.
    2. *Matching*: each joins the remaining token with the largest cosine in x.
    3. *Merging*: mass-weighted mean direction, rescaled to the mass-weighted mean of the norms.

    Mass is used in attention, merge and readout (`zipbrain.Mass`): that is part of the method.

    Parameters
    ----------
    merge : merge rule
        How features combine.

    Notes
    -----
    Ours. Two tokens with like queries, keys and values get the same from attention and give the same to it, so one of
    twice the mass can stand for both. The pairs cost N x N x 3d multiply-adds, d being the width of *one* head.

    Examples
    --------
    >>> import torch, zipbrain
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 4).eval()
    >>> zipbrain.compress(model, zipbrain.Twins(), ratio=0.8)(torch.randn(2, 50, 32)).shape  # un-merged for the readout
    torch.Size([2, 50, 32])
    """

    merge: MergeRule = field(default_factory=MeanNorm)

    def __post_init__(self) -> None:
        object.__setattr__(self, "merge", merge_rule(self.merge))
        object.__setattr__(self, "_parts", Composition(ClosePairs(), MostSimilar("x"), self.merge))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset("qkv")

    @property
    def mass(self) -> Mass:
        return Mass(attention=True, merge=True, readout=True)

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.merge

    def __call__(self, tokens: Tokens) -> Grouping:
        parts: Composition = getattr(self, "_parts")  # noqa: B009 - set in __post_init__, no field
        return parts(tokens)
