"""DART: keep a few pivots and the tokens that duplicate them least."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.numerals import whole_number
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import DROPPED, Grouping, take
from zipbrain.pooling.merges import MergeRule, Prune
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces, at_least_float32
from zipbrain.pooling.steps import float32_product, highest, highest_relative, largest, partition, rank
from zipbrain.pooling.tokens import Tokens


@register("dart")
@dataclass(frozen=True)
class DART(Method):
    r"""Duplication-Aware Reduction of Tokens (Wen et al., "Stop Looking for Important Tokens", EMNLP 2025).

    Pivots are the P tokens with the largest L1 norm of their keys (heads concatenated). Each pivot in turn keeps the t
    tokens not yet chosen that have the lowest cosine to it; everything else is dropped.

    Parameters
    ----------
    pivots : int
        P; min(P, n_keep) are used.

    Notes
    -----
    Source: the authors' code, which works on one window with Python sets and exceeds its budget. Ours: batched, without
    host synchronisation, never over budget: with n_keep = N - r, :math:`t = \lfloor (n_{keep} - P) / P \rfloor`, and
    the remaining places go to the tokens whose largest cosine to any pivot is lowest; pivots take turns in falling
    order of their norm; cosines are taken on the residual stream x at the seam (the authors: on the normed input of one
    layer, text pivots included, which EEG has not); acts in every reducing layer.
    """

    title = "DART"

    pivots: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "pivots", whole_number("pivots", self.pivots, 1))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"k"})

    @property
    def merges(self) -> bool:
        return False

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return n * min(self.pivots, n - r) * shape.space_width("x")

    @property
    def drops(self) -> bool:
        return True

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Prune()

    def __call__(self, tokens: Tokens) -> Grouping:
        if tokens.r == 0:
            return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
        chosen = self._chosen(tokens)
        kept, source = partition(~chosen, tokens.r, tokens.leading, tokens.trailing)
        return Grouping(kept, source, torch.full_like(source, DROPPED), tokens.total, drops=True)

    def _chosen(self, tokens: Tokens) -> Tensor:
        """Mark the N - r tokens that stay: bool (B, N)."""
        if tokens.k is None:
            raise OptionError("k", None, "DART reads k: give it as a (B, H, T, d) tensor")
        keep = tokens.count - tokens.r
        count = min(self.pivots, keep)
        keys = at_least_float32(tokens.unprotected(tokens.k.detach(), 2))
        norm = keys.abs().sum((1, 3))
        chosen = highest_relative(norm, count)
        unit = Spaces(tokens).unit("x")
        order = self._turns(norm, chosen, count)
        cosine = float32_product(unit, take(unit, order).transpose(1, 2))  # (B, N, P)
        quota = (keep - count) // count
        if quota:
            for pivot in range(count):
                chosen = chosen | self._least(cosine[:, :, pivot], chosen, quota)
        rest = keep - count - quota * count
        if rest:
            chosen = chosen | self._least(cosine.amax(2), chosen, rest)
        return chosen

    @staticmethod
    def _least(cosine: Tensor, chosen: Tensor, count: int) -> Tensor:
        """Mark the `count` lowest cosines among the tokens not yet chosen."""
        return highest(-cosine, count, 1.0, chosen, broken=1)

    @staticmethod
    def _turns(norm: Tensor, chosen: Tensor, count: int) -> Tensor:
        """The pivots in falling order of their norm, ties to the lower index: (B, P)."""
        key = rank(norm, 1 / largest(norm), broken=1)
        return key.masked_fill(~chosen, -(2**62)).topk(count, dim=1).indices
