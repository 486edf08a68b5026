"""Blocks whose queries and keys are rotated by position, LUNA's: positions travel with the tokens that are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.seams.dialects.attention import join_heads, softmax_attention
from zipbrain.seams.dialects.base import Attended, Dialect, hidden_width, register_dialect
from zipbrain.seams.dialects.recognition import NO_MATCH, Recognition, match_forward
from zipbrain.seams.dialects.timm_like import TimmLike, residual_branch


@register_dialect
class Rotary(Dialect):
    """``x += attn(norm1(x))`` with rotary positions, ``x += mlp(norm2(x))``.

    A merged token attends from the place of the token that was kept.
    """

    name = "rotary"
    looks_like = "norm1, attn with qkv_proj, rotary_emb and proj, norm2, mlp"
    positional = True

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        parts: dict[str, Any] = dict(block.named_children())
        if not {"norm1", "attn", "norm2", "mlp"} <= set(parts):
            return NO_MATCH
        attn = parts["attn"]
        if not all(isinstance(getattr(attn, name, None), nn.Linear) for name in ("qkv_proj", "proj")):
            return NO_MATCH
        if not isinstance(getattr(attn, "rotary_emb", None), nn.Module) or not hasattr(attn, "num_heads"):
            return NO_MATCH
        return match_forward(cls, block, attn.qkv_proj.weight)

    @classmethod
    def attend(  # type: ignore[override]
        cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool, positions: Tensor
    ) -> Attended:
        attn = block.attn
        qkv = attn.qkv_proj(block.norm1(x))
        width = qkv.shape[2] // (3 * attn.num_heads)
        q, k, v = qkv.reshape(*x.shape[:2], 3, attn.num_heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        angles = attn.rotary_emb(positions.to(q.dtype)).unsqueeze(1)  # (B, 1, T, d)
        q, k = (_rotate(part, angles).to(v.dtype) for part in (q, k))
        scale, dropout = float(attn.scale), float(attn.attn_drop) if attn.training else 0.0
        mixed, attention = softmax_attention(q, k, v, scale, bias, dropout, need_map)
        output = attn.proj_drop(attn.proj(join_heads(mixed)))
        return Attended(x, q, k, v, scale, attention=attention, branch=residual_branch(block, output, 1))

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return TimmLike.feed_forward(block, x)

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.attn
        dim, inner = attn.qkv_proj.in_features, attn.qkv_proj.out_features // 3
        return BlockShape(dim, attn.num_heads, inner // attn.num_heads, hidden_width(block.mlp, dim))


def _rotate(values: Tensor, angles: Tensor) -> Tensor:
    """Turn every pair of neighbouring features by its angle. (B, H, T, d)"""
    even, odd = values[..., 0::2], values[..., 1::2]
    turned = torch.stack((-odd, even), dim=-1).flatten(3)
    return values * angles.cos() + turned * angles.sin()
