"""ToMe: bipartite soft matching on keys, size-weighted mean, proportional attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import Mean, MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.registry import check_flag, register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import highest, match_tokens, partition
from zipbrain.pooling.tokens import Tokens


def bipartite_matching(tokens: Tokens, r: int) -> Grouping:
    """Groups that join the r tokens of even index with the closest partners of odd index to those partners.

    Indices count all T tokens, protected ones included; r is at most N // 2.
    """
    n = tokens.count
    if r <= 0:
        return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
    unit = Spaces(tokens).unit("k")  # (B, N, d): mean over heads of the keys used in attention
    odd_first = tokens.leading % 2  # the first unprotected token has an odd index
    even, odd = unit[:, odd_first::2], unit[:, 1 - odd_first :: 2]
    partner, best = match_tokens(even, odd, None)  # (B, N/2) each
    kept, source = partition(interleave(highest(best, r), odd_first, n), r, tokens.leading, tokens.trailing)
    first_even, first_odd = tokens.leading + odd_first, tokens.leading + 1 - odd_first
    target = partner.gather(1, (source - first_even) // 2) * 2 + first_odd
    return Grouping(kept, source, target, tokens.total)


def interleave(chosen: Tensor, odd_first: int, n: int) -> Tensor:
    """Flags (B, n) of all tokens: those (B, E) of every second one, False for the others."""
    other = torch.zeros_like(chosen)
    pair = (other, chosen) if odd_first else (chosen, other)
    flags = torch.stack(pair, dim=2).flatten(1)
    return flags[:, :n] if flags.shape[1] >= n else torch.cat((flags, flags.new_zeros((flags.shape[0], 1))), dim=1)


@register("tome")
@dataclass(frozen=True)
class ToMe(Method):
    r"""Token Merging (Bolya et al., "Token Merging: Your ViT But Faster", ICLR 2023).

    Tokens of even index (set A) look for the most similar token of odd index (set B) by
    :math:`\cos(\bar k_a, \bar k_b)`, with :math:`\bar k` the mean over heads of the keys; the r best pairs merge into
    :math:`x_b \leftarrow \sum s_i x_i / \sum s_i`, with :math:`s` the number of original tokens. From the layer after
    the first merge, :math:`\log s_j` is added to the attention logits of key j.

    Parameters
    ----------
    proportional_attention : bool
        Whether attention knows the sizes (the authors turn it off for MAE models used off the shelf).

    Notes
    -----
    At most half of the unprotected tokens can go in one layer: more is cut to N // 2, and counts show it. Even and odd
    are counted on all tokens, CLS included, as in the authors' code (with scattered protected tokens: as if they stood
    in front). Ours: tokens stay in their original order (the authors put A before B); scores are rounded and ties go to
    the lower index; the cosine with a zero vector is 0 (theirs is NaN); for a mean-pooled head,
    ``mass=Mass(readout=True)`` gives their MAE readout (sum of s x over T).
    """

    title = "ToMe"

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
        return (n // 2) * (n - n // 2) * shape.space_width("k")

    def limit(self, n: int) -> int:
        return n // 2

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Mean()

    def __call__(self, tokens: Tokens) -> Grouping:
        return bipartite_matching(tokens, min(tokens.r, self.limit(tokens.count)))
