"""timm-like blocks: norm1, attn with qkv and proj, norm2, mlp; LaBraM, EEGPT, BEiT, all our models and their kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.seams.attention import join_heads, linear_attention, softmax_attention
from zipbrain.seams.base import OTHER_FORWARD, Attended, Seam, differs, hidden_width, original_class, register_seam

_BLOCK_PARTS = {"norm1", "attn", "norm2", "mlp", "ls1", "ls2", "drop_path", "drop_path1", "drop_path2"}
_ATTENTION_PARTS = {"qkv", "proj", "q_norm", "k_norm", "norm", "attn_drop", "proj_drop"}
_SCALES = ("gamma_1", "gamma_2", "gamma1", "gamma2")  # layer scale kept as plain parameters


@dataclass(frozen=True, eq=False)
class AttentionParts:
    """Output of an attention module, (B, T, D), with q, k, v as they entered the dot product."""

    output: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    attention: Tensor | None


@register_seam
class TimmLike(Seam):
    """``x += scale1(attn(norm1(x)))``, ``x += scale2(mlp(norm2(x)))``."""

    name = "timm-like"
    looks_like = "norm1, attn with qkv and proj, norm2, mlp"

    @classmethod
    def refuses(cls, block: nn.Module) -> str | None:
        parts: dict[str, Any] = dict(block.named_children())
        if not {"norm1", "attn", "norm2", "mlp"} <= set(parts):
            return ""
        attn = parts["attn"]
        inside = dict(attn.named_children())
        if not isinstance(inside.get("qkv"), nn.Linear) or not isinstance(inside.get("proj"), nn.Linear):
            return ""
        if not isinstance(_heads(attn), int):
            return "its attention has no num_heads"
        for owner, known in ((block, _BLOCK_PARTS), (attn, _ATTENTION_PARTS)):
            for name, child in owner.named_children():
                if name not in known and any(True for _ in child.parameters()):
                    return f"its {type(owner).__name__} has a part {name!r} that this dialect does not know"
        for name, _ in block.named_parameters(recurse=False):
            if name not in _SCALES:
                return f"its block has a parameter {name!r} that this dialect does not know"
        for name, _ in attn.named_parameters(recurse=False):
            if name not in ("q_bias", "v_bias"):
                return f"its attention has a parameter {name!r} (a relative position bias?) tied to the token grid"
        if attn.qkv.out_features % (3 * _heads(attn)):
            return "its qkv does not hold three equal parts"
        if differs(cls, block, attn.qkv.weight, lambda x: original_class(block).forward(block, x)):
            return OTHER_FORWARD
        return None

    @classmethod
    def attention(cls, attn: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> AttentionParts:
        """Run an attention module on its normed input (B, T, D)."""
        batch, tokens, _ = x.shape
        if getattr(attn, "q_bias", None) is not None:  # LaBraM, BEiT: the key has no bias
            offset = torch.cat((attn.q_bias, torch.zeros_like(attn.v_bias), attn.v_bias))
            qkv = F.linear(x, attn.qkv.weight, offset)
        else:
            qkv = attn.qkv(x)
        width = qkv.shape[2] // (3 * _heads(attn))
        q, k, v = qkv.reshape(batch, tokens, 3, _heads(attn), width).permute(2, 0, 3, 1, 4).unbind(0)
        if getattr(attn, "q_norm", None) is not None:
            q = attn.q_norm(q).to(v.dtype)
        if getattr(attn, "k_norm", None) is not None:
            k = attn.k_norm(k).to(v.dtype)
        scale = float(getattr(attn, "scale", None) or q.shape[3] ** -0.5)
        attention = None
        if _linear(attn):
            mixed = linear_attention(q, k, v, bias)
        else:
            probability = _probability(getattr(attn, "attn_drop", None)) if attn.training else 0.0
            mixed, attention = softmax_attention(q, k, v, scale, bias, probability, need_map)
        output = join_heads(mixed)
        if getattr(attn, "norm", None) is not None:
            output = attn.norm(output)
        output = attn.proj(output)
        if getattr(attn, "proj_drop", None) is not None:
            output = attn.proj_drop(output)
        return AttentionParts(output, q, k, v, scale, attention)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        parts = cls.attention(block.attn, block.norm1(x), bias, need_map)
        x = x + branch(block, parts.output, 1)
        return Attended(x, parts.q, parts.k, parts.v, parts.scale, _linear(block.attn), parts.attention)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return cls.feed_forward_normed(block, x, block.norm2(x))

    @classmethod
    def next_norm(cls, block: Any) -> nn.LayerNorm | None:
        return block.norm2 if type(block.norm2) is nn.LayerNorm else None

    @classmethod
    def feed_forward_normed(cls, block: Any, x: Tensor, normed: Tensor) -> Tensor:
        result: Tensor = x + branch(block, block.mlp(normed), 2)
        return result

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.attn
        dim, inner = attn.qkv.in_features, attn.qkv.out_features // 3
        return BlockShape(dim, _heads(attn), inner // _heads(attn), hidden_width(block.mlp, dim), _linear(attn))


def _heads(attn: Any) -> Any:
    """Number of heads, under its several names."""
    return getattr(attn, "num_heads", getattr(attn, "nhead", None))


def _linear(attn: Any) -> bool:
    """Whether an attention module declares itself linear (our BIOT and TFM)."""
    return getattr(attn, "linear", False) is True


def _probability(drop: Any) -> float:
    return float(getattr(drop, "p", 0.0) if isinstance(drop, nn.Module) else drop or 0.0)


def branch(block: Any, x: Tensor, number: int) -> Tensor:
    """Layer scale and stochastic depth of branch 1 or 2, under their several names."""
    for name in (f"gamma_{number}", f"gamma{number}"):
        gamma = getattr(block, name, None)
        if gamma is not None:
            x = gamma * x
    scale = getattr(block, f"ls{number}", None)
    if scale is not None:
        x = scale(x)
    drop = getattr(block, f"drop_path{number}", None) or getattr(block, "drop_path", None)
    if drop is not None:
        x = drop(x)
    return x
