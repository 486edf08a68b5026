"""Twins: tokens that are close in x, q, k and v become one, those of the smallest mass first. Ours, not the paper's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.merges import Mean, MeanNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.composition import Split
from zipbrain.pooling.registry import check_flag, register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import evenly_spread, float32_product, highest, largest, partition
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_partner, cheapest_target

SAME: Final = 2.0**-16  # squared distances below this are rounding, where 2 is the mean one: such tokens are copies
FLAT: Final = 2.0**-32  # a variance below this share of the squared mean is rounding: that space is ignored
RARE: Final = 8  # at most one token in so many is an outlier
OUTLIER: Final = 32.0  # times the (N // RARE + 1)-th largest squared norm; a token with a larger one is an outlier
ROUNDING: Final = 2.0**-80  # a variance without outliers below this share of that with them is rounding


@register("twins")
@dataclass(frozen=True)
class Twins(Method):
    r"""Merge the closest pairs in (x, q, k, v), the lightest first, and remember how many each token stands for.

    1. *Vectors*: q, k and v are averaged over heads. Each of x, q, k and v is centred over the window's tokens and
       divided by the root of its mean squared norm, so that all four count alike; z is the four side by side. Neither
       mean counts outliers: tokens whose squared distance from the centre is more than 32 times the
       :math:`(\lfloor N / 8 \rfloor + 1)`-th largest one, so at most one in eight.
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
    trimmed : bool
        Whether outliers are left out of the means in step 1. A window without any is pooled alike either way.

    Notes
    -----
    Ours. Tokens that are alike in x stay alike behind the feed-forward part; with like queries, keys and values they
    get the same from attention and give the same to it. So one of twice the mass can stand for both. The pairs cost
    N x N x (D + 3d) multiply-adds, d being the width of *one* head.

    The first version compared (q, k, v) as they are, matched by cosine in x and had the rescaled mean everywhere:
    ``Composition("close_pairs", "most_similar", "mean_norm")`` with ``mass=True``. Recipes written then
    (``{"name": "twins", "merge": ...}``) are read as that; those written before there was `trimmed` are read as
    ``trimmed=False``.

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
    trimmed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "softmax", merge_rule(self.softmax))
        object.__setattr__(self, "linear", merge_rule(self.linear))
        check_flag("trimmed", self.trimmed)

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
        rows = side_by_side(Spaces(tokens), self.trimmed)
        mass = masses(tokens, rows)
        # Without outliers no pair costs more. With them, one such cost would make all others equal by rounding.
        most = tokens.count * mass.amax(1, keepdim=True)
        cost = cheapest_partner(rows, mass, _seniority(mass), SAME, most)
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
        mass = masses(tokens, rows)
        cost = cheapest_partner(rows, mass, _seniority(mass))
        return highest(-cost, tokens.r, 1 / largest(cost))


def side_by_side(spaces: Spaces, trimmed: bool = True, names: str = "xqkv") -> Tensor:
    """Step 1, (B, N, F): each space centred, and all scaled alike so that the mean squared distance is 2."""
    parts = [spaces.vectors(space) for space in names]
    rows, widths = torch.cat(parts, dim=2), [int(part.shape[2]) for part in parts]
    centre = rows.mean(1, keepdim=True)
    centred = rows - centre
    squares = _squares(centred, widths)
    variance = everything = squares.mean(1, keepdim=True)  # (B, 1, S)
    one = torch.eye(len(parts), device=rows.device, dtype=rows.dtype)
    own = torch.cat(
        [one[:, i : i + 1].expand(-1, width) for i, width in enumerate(widths)], dim=1
    )  # (S, F): whose it is
    if trimmed:
        usual = squares.topk(rows.shape[1] // RARE + 1, dim=1).values[:, -1:]
        inside = (squares <= OUTLIER * usual) | ~torch.isfinite(usual)
        counted = inside.to(rows.dtype).transpose(1, 2)  # (B, S, N)
        count = counted.sum(2, keepdim=True)
        centre = (float32_product(counted, rows) / count * own).sum(1, keepdim=True)
        centred = rows - centre
        variance = torch.where(inside, _squares(centred, widths), 0.0).sum(1, keepdim=True) / count.transpose(1, 2)
    least = (FLAT * _squares(centre, widths)).clamp_min(torch.finfo(rows.dtype).tiny)
    variance = torch.where(variance < torch.maximum(least, ROUNDING * everything), everything, variance)
    scale = torch.maximum(variance, least).rsqrt() / math.sqrt(len(parts))
    return centred * (scale.transpose(1, 2) * own).sum(1, keepdim=True)


def _squares(rows: Tensor, widths: list[int]) -> Tensor:
    """Squared norms (B, N, S) of rows (B, N, F) in each space."""
    return torch.cat([part.sum(2, keepdim=True) for part in torch.split(rows.square(), widths, dim=2)], dim=2)


def masses(tokens: Tokens, like: Tensor) -> Tensor:
    """(B, N): how many original tokens each stands for."""
    if tokens.mass is None:
        return torch.ones(like.shape[:2], device=like.device, dtype=like.dtype)
    return tokens.unprotected(tokens.mass, 1).to(like.dtype)


def _seniority(mass: Tensor) -> Tensor:
    """Distinct numbers (B, N) that say who may stay for whom: by mass, then in an evenly spread order."""
    return mass + evenly_spread(mass.shape[1], mass.device, mass.dtype)
