"""Blocks of layer_norm_att, mhsa, layer_norm_ff, feed_forward: braindecode's PBT."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zipbrain.seams.dialects.base import register_dialect
from zipbrain.seams.dialects.pre_norm import PreNorm
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss


@register_dialect
class Patched(PreNorm):
    """``x += mhsa(layer_norm_att(x))``, ``x += feed_forward(layer_norm_ff(x))``, queries, keys and values in one."""

    name = "patched transformer"
    looks_like = "layer_norm_att, mhsa with attn and proj, layer_norm_ff, feed_forward"

    @classmethod
    def recognise_parts(cls, block: nn.Module) -> Recognition:
        parts: dict[str, Any] = dict(block.named_children())
        if not {"layer_norm_att", "mhsa", "layer_norm_ff", "feed_forward"} <= set(parts):
            return NO_MATCH
        attn = parts["mhsa"]
        if not all(isinstance(getattr(attn, name, None), nn.Linear) for name in ("attn", "proj")):
            return NO_MATCH
        return MATCH if isinstance(getattr(attn, "n_head", None), int) else near_miss("its attention has no n_head")

    @classmethod
    def project(cls, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = block.mhsa.attn(block.layer_norm_att(x)).chunk(3, dim=2)
        return q, k, v

    @classmethod
    def out(cls, block: Any, mixed: Tensor) -> Tensor:
        out: Tensor = block.mhsa.resid_drop_prob(block.mhsa.proj(mixed))
        return out

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        result: Tensor = x + block.feed_forward(block.layer_norm_ff(x))
        return result

    @classmethod
    def heads(cls, block: Any) -> int:
        return int(block.mhsa.n_head)

    @classmethod
    def dropout(cls, block: Any) -> float:
        return float(block.mhsa.drop_prob)

    @classmethod
    def weights(cls, block: Any) -> tuple[nn.Linear, nn.Module]:
        return block.mhsa.attn, block.feed_forward

    @classmethod
    def inner(cls, block: Any) -> int:
        return int(block.mhsa.attn.out_features) // 3
