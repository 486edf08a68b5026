"""Local merging: ToMe's pairs among neighbours in the sequence only, for time series."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from zipbrain.numerals import whole_number
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import Mean, MergeRule
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.tome import interleave
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import best_column, highest, partition
from zipbrain.pooling.tokens import Tokens


@register("local_merging")
@dataclass(frozen=True)
class LocalMerging(Method):
    r"""Local token merging for time series (Götz et al., ICML 2025, arXiv 2405.17951).

    Unprotected tokens go to A and B by turns. Token :math:`a_i` looks for the most similar :math:`b_j` with
    :math:`|i - j| < k` by the cosine in x, and the r best pairs become their mean: linear in N for a fixed k.

    Parameters
    ----------
    neighbourhood : int
        k; 1 pairs neighbours only. From N / 2 on all pairs are compared.

    Notes
    -----
    Source: the paper. Ours: tokens are compared in x at the seam of every other method; scores are rounded and ties go
    to the lower index; at most N // 2 tokens in a layer. Neighbours are those of the sequence: in LaBraM and BIOT the
    next moment of the same channel, at its end the first one of the next channel.
    """

    title = "Local merging"

    neighbourhood: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbourhood", whole_number("neighbourhood", self.neighbourhood, 1))

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return len(list(_offsets(n - n // 2, n // 2, self.neighbourhood))) * (n // 2) * shape.space_width("x")

    def limit(self, n: int) -> int:
        return n // 2

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Mean()

    def __call__(self, tokens: Tokens) -> Grouping:
        n = tokens.count
        r = min(tokens.r, self.limit(n))
        if r <= 0:
            return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
        unit = Spaces(tokens).unit("x")
        partner, best = _nearest(unit[:, ::2], unit[:, 1::2], self.neighbourhood)  # (B, N - N // 2)
        kept, source = partition(interleave(highest(best, r), 0, n), r, tokens.leading, tokens.trailing)
        target = partner.gather(1, (source - tokens.leading) // 2) * 2 + 1 + tokens.leading
        return Grouping(kept, source, target, tokens.total)


def _offsets(rows: int, columns: int, k: int) -> range:
    """All j - i of pairs with |i - j| < k, for i among so many rows and j among so many columns."""
    return range(max(1 - k, 1 - rows), min(k, columns))


def _nearest(rows: Tensor, columns: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """For every row i the column j with |i - j| < k of the largest cosine, and that cosine: (B, R) each."""
    count, width, cosines = rows.shape[1], columns.shape[1], []
    offsets = _offsets(count, width, k)
    for offset in offsets:
        first, end = max(0, -offset), min(count, width - offset)  # rows that have this neighbour
        cosine = (rows[:, first:end] * columns[:, first + offset : end + offset]).sum(2)
        cosines.append(F.pad(cosine, (first, count - end), value=-4.0))  # below all cosines
    place, best = best_column(torch.stack(cosines, dim=2), None)
    nearest = place + offsets.start + torch.arange(count, device=rows.device)
    return nearest.clamp(0, width - 1), best
