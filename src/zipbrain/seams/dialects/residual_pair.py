"""A sequence of two residual branches, the block of braindecode's STEEGFormer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zipbrain.seams.dialects.base import register_dialect
from zipbrain.seams.dialects.pre_norm import PreNorm
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss

_PROJECTIONS = ("queries", "keys", "values", "projection")


@register_dialect
class ResidualPair(PreNorm):
    """``Sequential(residual(norm, attention, dropout), residual(norm, feed-forward, dropout))``."""

    name = "residual pair"
    looks_like = "Sequential of two residual branches fn, the first with queries, keys, values, projection"

    @classmethod
    def recognise_parts(cls, block: nn.Module) -> Recognition:
        if not isinstance(block, nn.Sequential) or len(block) != 2:
            return NO_MATCH
        first, second = (getattr(part, "fn", None) for part in block)
        if not isinstance(first, nn.Sequential) or not isinstance(second, nn.Module) or len(first) < 2:
            return NO_MATCH
        if not all(isinstance(getattr(first[1], name, None), nn.Linear) for name in _PROJECTIONS):
            return NO_MATCH
        heads = getattr(first[1], "num_heads", None)
        return MATCH if isinstance(heads, int) else near_miss("its attention has no num_heads")

    @classmethod
    def project(cls, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        norm, attn = block[0].fn[0], block[0].fn[1]
        normed = norm(x)
        return attn.queries(normed), attn.keys(normed), attn.values(normed)

    @classmethod
    def out(cls, block: Any, mixed: Tensor) -> Tensor:
        branch = block[0]
        out: Tensor = branch.fn[1].projection(mixed)
        for part in list(branch.fn)[2:]:
            out = part(out)
        drop = getattr(branch, "drop_path", None)
        return out if drop is None else drop(out)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        result: Tensor = block[1](x)
        return result

    @classmethod
    def heads(cls, block: Any) -> int:
        return int(block[0].fn[1].num_heads)

    @classmethod
    def dropout(cls, block: Any) -> float:
        drop = getattr(block[0].fn[1], "att_drop", 0.0)
        return float(drop.p if isinstance(drop, nn.Dropout) else drop)

    @classmethod
    def weights(cls, block: Any) -> tuple[nn.Linear, nn.Module]:
        return block[0].fn[1].queries, block[1]
