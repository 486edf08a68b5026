"""Pairs [attention with its own norm, feed-forward with its own norm] run by one loop: REVE's backbone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.seams.dialects.attention import join_heads, softmax_attention, split_heads
from zipbrain.seams.dialects.base import Attended, PairDialect, hidden_width, register_dialect
from zipbrain.seams.dialects.recognition import NO_MATCH, Recognition, match_forward


@register_dialect
class FusedPair(PairDialect):
    """A pair [attention with norm, to_qkv and to_out, feed-forward] run by the loop of the module around the pairs."""

    name = "fused pair"
    looks_like = "pairs of attention with norm, to_qkv, to_out and a feed-forward net"

    @classmethod
    def recognise_pair(cls, pair: Any) -> Recognition:
        attn, feed = pair
        if not all(isinstance(getattr(attn, name, None), nn.Linear) for name in ("to_qkv", "to_out")):
            return NO_MATCH
        if not isinstance(getattr(attn, "norm", None), nn.Module) or not isinstance(getattr(attn, "heads", None), int):
            return NO_MATCH

        def forward(x: Tensor) -> Tensor:
            x = x + attn(x)
            result: Tensor = x + feed(x)
            return result

        return match_forward(cls, pair, attn.to_qkv.weight, forward)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        attn = block[0]
        q, k, v = (split_heads(part, attn.heads) for part in attn.to_qkv(attn.norm(x)).chunk(3, dim=2))
        scale = q.shape[3] ** -0.5
        mixed, attention = softmax_attention(q, k, v, scale, bias, 0.0, need_map)
        return Attended(x + attn.to_out(join_heads(mixed)), q, k, v, scale, attention=attention)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        result: Tensor = x + block[1](x)
        return result

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block[0]
        dim, inner = attn.to_qkv.in_features, attn.to_qkv.out_features // 3
        return BlockShape(dim, attn.heads, inner // attn.heads, hidden_width(block[1], dim))
