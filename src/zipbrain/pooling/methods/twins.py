"""Twins: tokens that are close in x, q, k and v become one, those of the smallest mass first. Ours, not the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.merges import Mean, MeanNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.composition import Split
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import evenly_spread, highest, largest, partition
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_partner, cheapest_target

SAME: Final = 2.0**-16  # squared distances below this are rounding, where 2 is the mean one: such tokens are copies
FLAT: Final = 2.0**-32  # a variance below this share of the squared mean is rounding: that space is ignored


@register("twins")
@dataclass(frozen=True)
class Twins(Method):
    r"""Merge the closest pairs in (x, q, k, v), the lightest first, and remember how many each token stands for.

    1. *Vectors*: q, k and v are averaged over heads. Each of x, q, k and v is centred over the window's tokens and
       divided by the root of its mean squared norm, so that all four count alike; z is the four side by side.
    2. *Pairs*: :math:`c_{ij} = \frac{m_i m_j}{m_i + m_j}\,\lVert z_i - z_j \rVert^2` with m the mass; the cost of
       token i is its least over all j that are heavier, or as heavy and earlier in an evenly spread order. The r
       cheapest tokens go.
    3. *Matching*: each joins the remaining token j with the least :math:`c_{ij}`.
    4. *Merging*: the mass-weighted mean; with softmax attention rescaled to the mass-weighted mean of the norms.

    Mass is used in attention, merge and readout (`zipbrain.Mass`): that is part of the method.

    Parameters
    ----------
    softmax, linear : merge rule
        How features combine in networks with softmax attention and with linear attention.

    Notes
    -----
    Ours. Tokens that are alike in x stay alike behind the feed-forward part; with like queries, keys and values they
    get the same from attention and give the same to it. So one of twice the mass can stand for both. The pairs cost
    N x N x (D + 3d) multiply-adds, d being the width of *one* head.

    The first version compared (q, k, v) as they are, matched by cosine in x and had the rescaled mean everywhere:
    ``Composition("close_pairs", "most_similar", "mean_norm")`` with ``mass=True``. Recipes written then
    (``{"name": "twins", "merge": ...}``) are read as that.

    Examples
    --------
    >>> import torch, zipbrain
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 4).eval()
    >>> zipbrain.compress(model, zipbrain.Twins(), ratio=0.8)(torch.randn(2, 50, 32)).shape  # un-merged for the readout
    torch.Size([2, 50, 32])
    """

    title = "Twins"

    softmax: MergeRule = field(default_factory=MeanNorm)
    linear: MergeRule = field(default_factory=Mean)

    def __post_init__(self) -> None:
        object.__setattr__(self, "softmax", merge_rule(self.softmax))
        object.__setattr__(self, "linear", merge_rule(self.linear))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset("qkv")

    @property
    def mass(self) -> Mass:
        return Mass(attention=True, merge=True, readout=True)

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return n * (n + r) * (shape.space_width("x") + 3 * shape.space_width("q"))

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.linear if tokens.linear else self.softmax

    def __call__(self, tokens: Tokens) -> Grouping:
        rows = side_by_side(Spaces(tokens))
        mass = _masses(tokens, rows)
        cost = cheapest_partner(rows, mass, _seniority(mass), SAME)
        redundant = highest(-cost, tokens.r, 1 / largest(cost))
        kept, source = partition(redundant, tokens.r, tokens.leading, tokens.trailing)
        places = source - tokens.leading
        target = cheapest_target(take(rows, places), mass.gather(1, places), rows, mass, redundant, SAME)
        return Grouping(kept, source, target + tokens.leading, tokens.total)


@register("close_pairs")
@dataclass(frozen=True)
class ClosePairs(Split):
    """The split of the first Twins: as in `Twins`, but with the distances of (q, k, v) as they are."""

    @property
    def reads(self) -> frozenset[str]:
        return frozenset("qkv")

    def macs(self, n: int, r: int, shape: BlockShape) -> int:
        return n * n * 3 * shape.space_width("q")

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        rows = torch.cat([spaces.vectors(space) for space in "qkv"], dim=2)  # (B, N, 3 d)
        mass = _masses(tokens, rows)
        cost = cheapest_partner(rows, mass, _seniority(mass))
        return highest(-cost, tokens.r, 1 / largest(cost))


def side_by_side(spaces: Spaces) -> Tensor:
    """Step 1, (B, N, F): all four centred, with a mean squared norm of 1/4, so that the mean squared distance is 2."""
    parts = []
    for space in "xqkv":
        vectors = spaces.vectors(space)
        mean = vectors.mean(1, keepdim=True)
        centred = vectors - mean
        variance = centred.square().sum(2, keepdim=True).mean(1, keepdim=True)  # (B, 1, 1)
        least = (FLAT * mean.square().sum(2, keepdim=True)).clamp_min(torch.finfo(mean.dtype).tiny)
        parts.append(centred * (0.5 * torch.maximum(variance, least).rsqrt()))
    return torch.cat(parts, dim=2)


def _masses(tokens: Tokens, like: Tensor) -> Tensor:
    """(B, N): how many original tokens each stands for."""
    if tokens.mass is None:
        return torch.ones(like.shape[:2], device=like.device, dtype=like.dtype)
    return tokens.unprotected(tokens.mass, 1).to(like.dtype)


def _seniority(mass: Tensor) -> Tensor:
    """Distinct numbers (B, N) that say who may stay for whom: by mass, then in an evenly spread order."""
    return mass + evenly_spread(mass.shape[1], mass.device, mass.dtype)
