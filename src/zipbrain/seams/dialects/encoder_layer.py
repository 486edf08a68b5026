"""torch.nn.TransformerEncoderLayer: pre- and post-norm, batch first or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.attention import join_heads, project_apart, softmax_attention, split_heads
from zipbrain.seams.dialects.base import Attended, Dialect, Ends, refuse_arguments, register_dialect
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss, original_class

if TYPE_CHECKING:
    from zipbrain.seams.forward import Site


@register_dialect
class EncoderLayer(Dialect):
    """``nn.TransformerEncoderLayer``; in a post-norm layer the seam lies behind norm1."""

    name = "torch encoder layer"
    looks_like = "torch.nn.TransformerEncoderLayer"

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        if not isinstance(block, nn.TransformerEncoderLayer):
            return NO_MATCH
        kind = original_class(block)
        for name in ("forward", "_sa_block"):
            if getattr(kind, name) is not getattr(nn.TransformerEncoderLayer, name):
                return near_miss(f"{kind.__name__} has its own {name}")
        attn = block.self_attn
        if not attn._qkv_same_embed_dim or attn.bias_k is not None or attn.add_zero_attn:
            return near_miss("its attention has separate key or value widths, key biases or a zero key")
        return MATCH

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        attn = block.self_attn
        normed = block.norm1(x) if block.norm_first else x
        qkv = F.linear(normed, attn.in_proj_weight, attn.in_proj_bias)
        q, k, v = (split_heads(part, attn.num_heads) for part in qkv.chunk(3, dim=2))
        return cls._mix(block, x, (q, k, v), bias, need_map)

    @classmethod
    def attend_ends(cls, block: Any, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        attn = block.self_attn
        normed = block.norm1(x) if block.norm_first else x
        qkv = project_apart(attn.in_proj_weight, attn.in_proj_bias, ends.of(normed), normed, attn.num_heads)
        return cls._mix(block, ends.of(x), qkv, bias, False)

    @classmethod
    def _mix(
        cls, block: Any, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, need_map: bool
    ) -> Attended:
        """The block behind its projections; x holds the tokens that attend."""
        attn, (q, k, v) = block.self_attn, qkv
        scale = q.shape[3] ** -0.5
        dropout = attn.dropout if attn.training else 0.0
        mixed, attention = softmax_attention(q, k, v, scale, bias, dropout, need_map)
        branch = Branch(block.dropout1(attn.out_proj(join_heads(mixed))))
        if block.norm_first:
            return Attended(x, q, k, v, scale, attention=attention, branch=branch)
        return Attended(block.norm1(branch.added_to(x)), q, k, v, scale, attention=attention)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        if block.norm_first:
            return cls.feed_forward_normed(block, x, block.norm2(x))
        result: Tensor = block.norm2(block._ff_block(x) + x)
        return result

    @classmethod
    def next_norm(cls, block: Any) -> nn.LayerNorm | None:
        return block.norm2 if block.norm_first and type(block.norm2) is nn.LayerNorm else None

    @classmethod
    def feed_forward_normed(cls, block: Any, x: Tensor, normed: Tensor) -> Tensor:
        result: Tensor = block._ff_block(normed) + x
        return result

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.self_attn
        return BlockShape(attn.embed_dim, attn.num_heads, attn.head_dim, block.linear1.out_features)

    @classmethod
    def run(cls, host: Any, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        refuse_arguments(host, args, kwargs)
        if x.is_nested:  # nn.TransformerEncoder turns a padding mask into a nested tensor
            raise OptionError("src_key_padding_mask", "a mask", "a compressed model takes no padding mask")
        if x.dim() == 2:  # a single window without a batch dimension
            return site.plan.block(site.index, host, x.unsqueeze(0)).squeeze(0)
        if host.self_attn.batch_first:
            return site.plan.block(site.index, host, x)
        return site.plan.block(site.index, host, x.transpose(0, 1)).transpose(0, 1)

    @classmethod
    def token_axis(cls, host: Any, x: Tensor) -> int:
        return 1 if host.self_attn.batch_first and x.dim() == 3 else 0
