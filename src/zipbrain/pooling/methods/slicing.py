"""Free slicing: the limit that no token reduction method can beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zipbrain.pooling.grouping import DROPPED, Grouping
from zipbrain.pooling.merges import MergeRule
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.registry import Part, register
from zipbrain.pooling.tokens import Tokens


@register("first_tokens")
@dataclass(frozen=True)
class FirstTokens(Part):
    """Drop the last r unprotected tokens with a view where possible."""

    leading: int = 0
    trailing: int = 0

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        stays = grouping.tokens - grouping.removed
        if self.trailing == 0:
            return x[:, :stays]
        return torch.cat((x[:, : stays - self.trailing], x[:, -self.trailing :]), dim=1)


@register("free_slicing")
@dataclass(frozen=True)
class FreeSlicing(Method):
    """Slice the last r unprotected tokens off, at no cost and with no regard for what they say.

    The same network with the same token counts and no work for choosing or merging: ``T_method / T_slice`` is a
    method's overhead, whatever the machine. For timing only.
    """

    title = "free slicing"
    slices = True

    @property
    def merges(self) -> bool:
        return False

    @property
    def drops(self) -> bool:
        return True

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return FirstTokens(tokens.leading, tokens.trailing)

    def __call__(self, tokens: Tokens) -> Grouping:
        batch, total, r = tokens.x.shape[0], tokens.total, tokens.r
        index = torch.arange(total, device=tokens.x.device).expand(batch, total)
        end = total - tokens.trailing
        kept = index[:, : end - r]
        if tokens.trailing:
            kept = torch.cat((kept, index[:, end:]), dim=1)
        source = index[:, end - r : end]
        return Grouping(kept, source, torch.full_like(source, DROPPED), total, drops=True)
