"""Ward pairs: Twins' cost in x alone, between two halves of the tokens, about as cheap as ToMe. Ours."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import Mean, MeanNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.twins import SAME, masses, side_by_side
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import GOLDEN, evenly_spread, highest, largest, partition
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_pair


@register("ward_pairs")
@dataclass(frozen=True)
class WardPairs(Method):
    r"""Merge the pairs of tokens that cost least by Ward's rule in x, looked for between two halves of the tokens.

    The unprotected tokens go to two halves A and B by an evenly spread order, so that neighbours in time and on the
    next electrode may meet whatever the grid is. Token :math:`a_i` looks for the :math:`b_j` with the least
    :math:`c_{ij} = \frac{m_i m_j}{m_i + m_j}\,\lVert x_i - x_j \rVert^2`, m being the mass; the r cheapest join them by
    the mass-weighted mean, rescaled to the mean of the norms with softmax attention. Mass is used in attention, merge
    and readout, as in `Twins`.

    Parameters
    ----------
    softmax, linear : merge rule
        How features combine in networks with softmax attention and with linear attention.

    Notes
    -----
    Ours: `Twins` with a quarter of the pairs, without q, k and v, and with one product instead of two. For many tokens,
    where comparing all pairs costs as much as a block. At most N // 2 tokens in a layer. Ties as everywhere; outliers
    are left out of the scale as in `Twins`.

    Examples
    --------
    >>> import torch, zipbrain
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 4).eval()
    >>> zipbrain.compress(model, zipbrain.WardPairs(), ratio=0.8)(torch.randn(2, 50, 32)).shape
    torch.Size([2, 50, 32])
    """

    title = "Ward pairs"

    softmax: MergeRule = field(default_factory=MeanNorm)
    linear: MergeRule = field(default_factory=Mean)

    def __post_init__(self) -> None:
        object.__setattr__(self, "softmax", merge_rule(self.softmax))
        object.__setattr__(self, "linear", merge_rule(self.linear))

    @property
    def mass(self) -> Mass:
        return Mass(attention=True, merge=True, readout=True)

    def limit(self, n: int) -> int:
        return n // 2

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return (n // 2) * (n - n // 2) * shape.space_width("x")

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.linear if tokens.linear else self.softmax

    def __call__(self, tokens: Tokens) -> Grouping:
        r = min(tokens.r, self.limit(tokens.count))
        if r <= 0:
            return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
        rows = side_by_side(Spaces(tokens), names="x")
        mass = masses(tokens, rows)
        a, b, places = halves(tokens.count, rows.device)
        partner, cost = cheapest_pair(rows[:, a], mass[:, a], rows[:, b], mass[:, b], SAME)  # (B, N // 2) each
        most = tokens.count * mass.amax(1, keepdim=True)  # as in `Twins`: one outlier must not make all others equal
        cost = torch.minimum(cost, most)
        chosen = highest(-cost, r, 1 / largest(cost))
        redundant = _in_place(chosen, torch.zeros_like(rows[:, : len(b), 0], dtype=torch.bool), places)
        kept, source = partition(redundant, r, tokens.leading, tokens.trailing)
        joined = b[partner]
        target = _in_place(joined, joined.new_zeros((1, 1)).expand(joined.shape[0], len(b)), places)
        return Grouping(kept, source, target.gather(1, source - tokens.leading) + tokens.leading, tokens.total)


def halves(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of A (n // 2) and of B, ascending, and where every token stands when A comes before B."""
    if torch.compiler.is_exporting():  # constants of the graph
        order = sorted(range(n), key=lambda token: token * GOLDEN % 1)  # as `evenly_spread`
        ordered = sorted(order[: n // 2]) + sorted(order[n // 2 :])
        places = sorted(range(n), key=ordered.__getitem__)
        both = torch.tensor(ordered, device=device)
        return both[: n // 2], both[n // 2 :], torch.tensor(places, device=device)
    spread = evenly_spread(n, device, torch.float64).argsort()  # on the device: a captured graph can't copy to it
    a, b = spread[: n // 2].sort().values, spread[n // 2 :].sort().values
    return a, b, torch.cat((a, b)).argsort()


def _in_place(of_a: Tensor, of_b: Tensor, places: Tensor) -> Tensor:
    """Values (B, |A|) and (B, |B|) in the order of all tokens: (B, N)"""
    return torch.cat((of_a, of_b), dim=1)[:, places]
