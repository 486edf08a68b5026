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
        own, inside = attn._modules, attn.__dict__  # asking a module itself for what it does not have is slow
        if getattr(attn, "q_bias", None) is not None:  # LaBraM, BEiT: the key has no bias
            offset = torch.cat((attn.q_bias, torch.zeros_like(attn.v_bias), attn.v_bias))
            qkv = F.linear(x, attn.qkv.weight, offset)
        else:
            qkv = attn.qkv(x)
        heads = _heads(attn)
        width = qkv.shape[2] // (3 * heads)
        q, k, v = qkv.reshape(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        q_norm, k_norm = own.get("q_norm", inside.get("q_norm")), own.get("k_norm", inside.get("k_norm"))
        if q_norm is not None:
            q = q_norm(q).to(v.dtype)
        if k_norm is not None:
            k = k_norm(k).to(v.dtype)
        scale = float(getattr(attn, "scale", None) or q.shape[3] ** -0.5)
        attention = None
        if _linear(attn):
            mixed = linear_attention(q, k, v, bias)
        else:
            probability = _probability(getattr(attn, "attn_drop", None)) if attn.training else 0.0
            mixed, attention = softmax_attention(q, k, v, scale, bias, probability, need_map)
        output = join_heads(mixed)
        norm, proj_drop = own.get("norm", inside.get("norm")), own.get("proj_drop", inside.get("proj_drop"))
        if norm is not None:
            output = norm(output)
        output = attn.proj(output)
        if proj_drop is not None:
            output = proj_drop(output)
        return AttentionParts(output, q, k, v, scale, attention)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        parts = cls.attention(block.attn, block.norm1(x), bias, need_map)
        x = joined(block, x, parts.output, 1)
        return Attended(x, parts.q, parts.k, parts.v, parts.scale, _linear(block.attn), parts.attention)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return cls.feed_forward_normed(block, x, block.norm2(x))

    @classmethod
    def next_norm(cls, block: Any) -> nn.LayerNorm | None:
        return block.norm2 if type(block.norm2) is nn.LayerNorm else None

    @classmethod
    def feed_forward_normed(cls, block: Any, x: Tensor, normed: Tensor) -> Tensor:
        return joined(block, x, block.mlp(normed), 2)

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.attn
        dim, inner = attn.qkv.in_features, attn.qkv.out_features // 3
        return BlockShape(dim, _heads(attn), inner // _heads(attn), hidden_width(block.mlp, dim), _linear(attn))


def _heads(attn: Any) -> Any:
    """Number of heads, under its several names."""
    heads = getattr(attn, "num_heads", None)
    return getattr(attn, "nhead", None) if heads is None else heads


def _linear(attn: Any) -> bool:
    """Whether an attention module declares itself linear (our BIOT and TFM)."""
    return getattr(attn, "linear", False) is True


def _probability(drop: Any) -> float:
    return float(getattr(drop, "p", 0.0) if isinstance(drop, nn.Module) else drop or 0.0)


def joined(block: Any, x: Tensor, y: Tensor, number: int) -> Tensor:
    """x plus branch 1 or 2 of the block; with a layer scale in one operator, where that is all there is."""
    gamma = _layer_scale(block, number)
    if not isinstance(gamma, Tensor) or getattr(block, f"ls{number}", None) is not None:
        return x + branch(block, y, number)
    whole = _keeps(_drop_path(block, number)) and x.dtype == y.dtype == gamma.dtype
    if not whole or torch.compiler.is_exporting():
        return x + branch(block, y, number)
    return torch.addcmul(x, gamma, y)


def _keeps(drop: Any) -> bool:
    """Whether stochastic depth leaves a branch as it is: there is none, or one that everybody knows, in evaluation."""
    if drop is None:
        return True
    if type(drop) is not nn.Identity and not (type(drop).__name__ == "DropPath" and drop.training is False):
        return False
    return not drop._forward_hooks and not drop._forward_pre_hooks


def branch(block: Any, x: Tensor, number: int) -> Tensor:
    """Layer scale and stochastic depth of branch 1 or 2, under their several names."""
    gamma = _layer_scale(block, number)
    if gamma is not None:
        x = gamma * x
    scale = getattr(block, f"ls{number}", None)
    if scale is not None:
        x = scale(x)
    drop = _drop_path(block, number)
    if drop is not None:
        x = drop(x)
    return x


def _layer_scale(block: Any, number: int) -> Tensor | None:
    """Layer scale kept as a plain parameter."""
    gamma: Tensor | None = getattr(block, f"gamma_{number}", None)
    return getattr(block, f"gamma{number}", None) if gamma is None else gamma


def _drop_path(block: Any, number: int) -> Any:
    return getattr(block, f"drop_path{number}", None) or getattr(block, "drop_path", None)
