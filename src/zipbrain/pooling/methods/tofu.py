"""ToFu: ToMe's matching, merged with MLERP, in all layers or behind early ones that prune."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import DROPPED, Grouping
from zipbrain.pooling.merges import LargestNorm, MergeRule, Prune
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.tome import bipartite_matching
from zipbrain.pooling.registry import register
from zipbrain.pooling.tokens import Tokens


@register("tofu")
@dataclass(frozen=True)
class ToFu(Method):
    r"""Token Fusion (Kim et al., "Token Fusion: Bridging the Gap between Token Pruning and Token Merging", WACV 2024).

    Groups are ToMe's; a group becomes MLERP, :math:`\frac{\bar x}{\|\bar x\|} \max_g \|x_g\|` with :math:`\bar x` the
    plain mean. Kim et al. drop the sources instead where the network is sensitive to interpolation, in its first half.

    Parameters
    ----------
    merge_from : int or None
        First block (counted from 1) that merges; earlier ones drop their sources. 1, the default, merges throughout,
        which is what ZIPBrain's paper compares with, by the evidence of its tables. None prunes in
        block i if i <= L / 2, as Kim et al. do.

    Notes
    -----
    No official code was found. Ours: the plain mean (no sizes, no proportional attention), the norm divided out is the
    mean's own, at most N // 2 tokens per layer as in ToMe. A public re-implementation in PiToMe divides by the old
    destination's norm and removes the cap; we follow the paper's formula instead.

    Recipes written when None was the default, ``{"name": "tofu"}``, are read as that.
    """

    title = "ToFu"

    merge_from: int | None = 1

    def __post_init__(self) -> None:
        first = self.merge_from
        if first is not None and (not isinstance(first, int) or isinstance(first, bool) or first < 1):
            raise OptionError("merge_from", first, "it must be a block number from 1, or None: the first half prunes")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"k"})

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return (n // 2) * (n - n // 2) * shape.space_width("k")

    @property
    def drops(self) -> bool:
        return self.merge_from != 1

    def limit(self, n: int) -> int:
        return n // 2

    def prunes(self, tokens: Tokens) -> bool:
        """Whether this layer drops its sources."""
        if self.merge_from is None:
            return 2 * tokens.layer <= tokens.depth
        return tokens.layer < self.merge_from

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Prune() if self.prunes(tokens) else LargestNorm()

    def __call__(self, tokens: Tokens) -> Grouping:
        grouping = bipartite_matching(tokens, min(tokens.r, self.limit(tokens.count)))
        if not self.prunes(tokens):
            return grouping
        return replace(grouping, target=torch.full_like(grouping.source, DROPPED), drops=True)
