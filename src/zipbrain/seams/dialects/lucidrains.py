"""lucidrains' LinearAttentionTransformer, the encoder of BIOT and TFM-Tokenizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.seams.dialects.attention import join_heads, linear_attention, split_heads
from zipbrain.seams.dialects.base import Attended, Ends, PairDialect, hidden_width, register_dialect
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss


@register_dialect
class LinearAttentionPair(PairDialect):
    """A pair [pre-norm self-attention, pre-norm feed-forward] run by the loop of a ``SequentialSequence``."""

    name = "linear-attention-transformer"
    looks_like = "pairs of PreNorm with fn.to_q, fn.to_k, fn.to_v, fn.to_out and a feed-forward"

    @classmethod
    def recognise_pair(cls, pair: Any) -> Recognition:
        first, second = pair
        attn = getattr(first, "fn", None)
        if not all(isinstance(getattr(attn, name, None), nn.Linear) for name in ("to_q", "to_k", "to_v", "to_out")):
            return NO_MATCH
        if not isinstance(getattr(first, "norm", None), nn.Module) or not hasattr(second, "fn"):
            return NO_MATCH
        if getattr(getattr(attn, "global_attn_fn", None), "__name__", "") != "linear_attn":
            return near_miss("its attention is causal")
        if getattr(attn, "local_attn_heads", 0):
            return near_miss("some of its heads attend locally, on a fixed grid of tokens")
        if getattr(attn, "receives_context", False):
            return near_miss("it attends to another sequence")
        return MATCH

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        normed = block[0].norm(x)
        return cls._attend(block[0].fn, x, normed, normed, bias)

    @classmethod
    def attend_ends(cls, block: Any, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        normed = block[0].norm(x)
        return cls._attend(block[0].fn, ends.of(x), ends.of(normed), normed, bias)

    @classmethod
    def _attend(cls, attn: Any, stream: Tensor, asking: Tensor, normed: Tensor, bias: Tensor | None) -> Attended:
        """Attention of the normed tokens in `asking`, whose residuals are `stream`, to all of `normed`."""
        pairs = ((attn.to_q, asking), (attn.to_k, normed), (attn.to_v, normed))
        q, k, v = (split_heads(project(values), attn.heads) for project, values in pairs)
        mixed = attn.to_out(join_heads(linear_attention(q, k, v, bias)))
        return Attended(stream + attn.dropout(mixed), q, k, v, q.shape[3] ** -0.5, linear=True)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        result: Tensor = x + block[1](x)
        return result

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block[0].fn
        dim, inner = attn.to_q.in_features, attn.to_q.out_features
        return BlockShape(dim, attn.heads, inner // attn.heads, hidden_width(block[1], dim), linear=True)
