"""PiToMe: merge what lies in large clusters of similar tokens, protect what stands alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.merges import Mean, MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.registry import check_flag, register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import falling, float32_product, match_tokens, partition, row_chunks
from zipbrain.pooling.tokens import Tokens

MARGIN: Final = 0.9  # in the first block; it falls linearly and would be 0 behind the last


@register("pitome")
@dataclass(frozen=True)
class PiToMe(Method):
    r"""Spectrum-preserving token merging (Tran et al., NeurIPS 2024, arXiv 2405.16148).

    The energy of a token says how large its cluster is,

    .. math:: E_i = \frac1N \sum_j f(\cos(\bar k_i, \bar k_j)), \qquad
        f(c) = c \text{ if } c \ge m, \text{ else } e^{c - m} - 1,

    with :math:`\bar k` the mean over heads of the keys and the margin :math:`m = 0.9 - 0.9\,l / L` in block l of L,
    counted from 0. The 2r tokens of highest energy, in falling order, go to A and B by turns; each of A merges with the
    most similar of B, weighted by size. All others are protected. Attention knows the sizes as in `ToMe`.

    Parameters
    ----------
    proportional_attention : bool
        Whether attention knows the sizes.

    Notes
    -----
    Source: the paper's equations; its code takes c - m instead of c above the margin, and other margins for other
    models. Ours: at most N // 2 tokens in a layer, as half of the merged ones stay; energies are rounded and ties go to
    the lower index; tokens stay in their original order; the cosine with a zero vector is 0.
    """

    title = "PiToMe"

    proportional_attention: bool = True

    def __post_init__(self) -> None:
        check_flag("proportional_attention", self.proportional_attention)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"k"})

    @property
    def mass(self) -> Mass:
        return Mass(attention=self.proportional_attention, merge=True)

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return (n * n + r * r) * shape.space_width("k")

    def limit(self, n: int) -> int:
        return n // 2

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Mean()

    def __call__(self, tokens: Tokens) -> Grouping:
        r = min(tokens.r, self.limit(tokens.count))
        if r <= 0:
            return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
        unit = Spaces(tokens).unit("k")
        energy = energies(unit, MARGIN - MARGIN * (tokens.layer - 1) / tokens.depth)
        order = falling(energy, 2 * r)
        source, other = order[:, ::2].sort(dim=1).values, order[:, 1::2].sort(dim=1).values
        target = other.gather(1, match_tokens(take(unit, source), take(unit, other), None)[0])
        gone = torch.zeros_like(energy, dtype=torch.bool).scatter(1, source, torch.ones_like(source, dtype=torch.bool))
        kept, _ = partition(gone, r, tokens.leading, tokens.trailing)
        return Grouping(kept, source + tokens.leading, target + tokens.leading, tokens.total)


def energies(unit: Tensor, margin: float) -> Tensor:
    """Mean over all tokens of the clipped cosine: (B, N) from unit vectors (B, N, F)."""
    columns, chunks = unit.transpose(1, 2), row_chunks(unit.shape[1], unit)
    return torch.cat([_clipped(float32_product(unit[:, some], columns), margin).mean(2) for some in chunks], dim=1)


def _clipped(cosine: Tensor, margin: float) -> Tensor:
    return torch.where(cosine >= margin, cosine, torch.exp(cosine - margin) - 1)
