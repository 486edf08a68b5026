"""timm-like blocks: norm1, attn with qkv and proj, norm2, mlp; LaBraM, EEGPT, BEiT, all our models and their kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.attention import join_heads, linear_attention, project_apart, softmax_attention
from zipbrain.seams.dialects.base import Attended, Dialect, Ends, hidden_width, register_dialect
from zipbrain.seams.dialects.recognition import NO_MATCH, Recognition, match_forward, near_miss

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
    linear: bool
    attention: Tensor | None


@register_dialect
class TimmLike(Dialect):
    """``x += scale1(attn(norm1(x)))``, ``x += scale2(mlp(norm2(x)))``."""

    name = "timm-like"
    looks_like = "norm1, attn with qkv and proj, norm2, mlp"

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        parts: dict[str, Any] = dict(block.named_children())
        if not {"norm1", "attn", "norm2", "mlp"} <= set(parts):
            return NO_MATCH
        attn = parts["attn"]
        inside = dict(attn.named_children())
        if not isinstance(inside.get("qkv"), nn.Linear) or not isinstance(inside.get("proj"), nn.Linear):
            return NO_MATCH
        if not isinstance(_heads(attn), int):
            return near_miss("its attention has no num_heads")
        for owner, known in ((block, _BLOCK_PARTS), (attn, _ATTENTION_PARTS)):
            for name, child in owner.named_children():
                if name not in known and any(True for _ in child.parameters()):
                    return near_miss(f"its {type(owner).__name__} has a part {name!r} that this dialect does not know")
        for name, _ in block.named_parameters(recurse=False):
            if name not in _SCALES:
                return near_miss(f"its block has a parameter {name!r} that this dialect does not know")
        for name, _ in attn.named_parameters(recurse=False):
            if name not in ("q_bias", "v_bias"):
                return near_miss(
                    f"its attention has a parameter {name!r} (a relative position bias?) tied to the token grid"
                )
        if attn.qkv.out_features % (3 * _heads(attn)):
            return near_miss("its qkv does not hold three equal parts")
        return match_forward(cls, block, attn.qkv.weight)

    @classmethod
    def attention(
        cls, attn: Any, x: Tensor, bias: Tensor | None, need_map: bool, ends: Ends | None = None
    ) -> AttentionParts:
        """Run an attention module on its normed input (B, T, D); the tokens at the two ends attend, or all."""
        batch, tokens, _ = x.shape
        heads = _heads(attn)
        q_bias = getattr(attn, "q_bias", None)
        offset = getattr(attn.qkv, "bias", None)
        if q_bias is not None:  # LaBraM, BEiT: the key has no bias
            offset = torch.cat((q_bias, torch.zeros_like(attn.v_bias), attn.v_bias))
        if ends is not None and type(attn.qkv) is nn.Linear:
            q, k, v = project_apart(attn.qkv.weight, offset, ends.of(x), x, heads)
        else:
            qkv = attn.qkv(x) if q_bias is None else F.linear(x, attn.qkv.weight, offset)
            q, k, v = qkv.reshape(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            if ends is not None:  # an adapter may stand in the place of the projection
                q = ends.of(q.transpose(1, 2)).transpose(1, 2)
        if getattr(attn, "q_norm", None) is not None:
            q = attn.q_norm(q)
        if getattr(attn, "k_norm", None) is not None:
            k = attn.k_norm(k)
        if q.dtype != v.dtype or k.dtype != v.dtype:  # under autocast norms answer in float32
            q, k = q.to(v.dtype), k.to(v.dtype)
        scale = float(getattr(attn, "scale", None) or q.shape[3] ** -0.5)
        attention, linear = None, getattr(attn, "linear", None) is True  # our BIOT and TFM
        if linear:
            mixed = linear_attention(q, k, v, bias)
        else:
            dropout = _probability(getattr(attn, "attn_drop", None)) if attn.training else 0.0
            mixed, attention = softmax_attention(q, k, v, scale, bias, dropout, need_map)
        output = _apply(attn, "norm", join_heads(mixed))
        output = _apply(attn, "proj_drop", attn.proj(output))
        return AttentionParts(output, q, k, v, scale, linear, attention)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        parts = cls.attention(block.attn, block.norm1(x), bias, need_map)
        branch = residual_branch(block, parts.output, 1)
        return Attended(x, parts.q, parts.k, parts.v, parts.scale, parts.linear, parts.attention, branch)

    @classmethod
    def attend_ends(cls, block: Any, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        parts = cls.attention(block.attn, block.norm1(x), bias, False, ends)
        branch = residual_branch(block, parts.output, 1)
        return Attended(ends.of(x), parts.q, parts.k, parts.v, parts.scale, parts.linear, branch=branch)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return cls.feed_forward_normed(block, x, block.norm2(x))

    @classmethod
    def next_norm(cls, block: Any) -> nn.LayerNorm | None:
        norm = block.norm2
        return norm if type(norm) is nn.LayerNorm else None

    @classmethod
    def feed_forward_normed(cls, block: Any, x: Tensor, normed: Tensor) -> Tensor:
        return residual_branch(block, block.mlp(normed), 2).added_to(x)

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.attn
        dim, inner = attn.qkv.in_features, attn.qkv.out_features // 3
        return BlockShape(
            dim,
            _heads(attn),
            inner // _heads(attn),
            hidden_width(block.mlp, dim),
            getattr(attn, "linear", None) is True,
        )


def _heads(attn: Any) -> Any:
    """Number of heads, under its several names."""
    heads = getattr(attn, "num_heads", None)
    return getattr(attn, "nhead", None) if heads is None else heads


def _probability(drop: Any) -> float:
    return float(getattr(drop, "p", 0.0) if isinstance(drop, nn.Module) else drop or 0.0)


def _apply(owner: Any, name: str, x: Tensor) -> Tensor:
    """What a part of a module makes of x; x itself if there is no such part."""
    part = getattr(owner, name, None)
    return part(x) if callable(part) else x


def residual_branch(block: Any, values: Tensor, number: int) -> Branch:
    """Branch 1 or 2 of a block, with its layer scale and stochastic depth under their several names."""
    gamma = getattr(block, f"gamma_{number}", None)
    gamma = getattr(block, f"gamma{number}", None) if gamma is None else gamma
    drop = getattr(block, f"drop_path{number}", None)
    drop = getattr(block, "drop_path", None) if drop is None else drop
    scale = getattr(block, f"ls{number}", None)
    values = values if scale is None else scale(values)
    if gamma is not None and (block.training or not isinstance(gamma, Tensor)):
        values, gamma = gamma * values, None  # in the order of the block's own forward, where a branch may be dropped
    return Branch(values if drop is None else drop(values), gamma)
