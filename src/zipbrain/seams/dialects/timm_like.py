"""timm-like blocks: norm1, attn with qkv and proj, norm2, mlp; LaBraM, EEGPT, BEiT, all our models and their kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.module_hooks import hooked
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.attention import join_heads, linear_attention, softmax_attention
from zipbrain.seams.dialects.base import (
    OTHER_FORWARD,
    Attended,
    Seam,
    differs,
    hidden_width,
    original_class,
    register_seam,
)
from zipbrain.seams.fast_modules import part, run, step

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
        q_bias, projection = part(attn, "q_bias"), step(attn, "qkv")
        if q_bias is not None:  # LaBraM, BEiT: the key has no bias
            offset = torch.cat((q_bias, torch.zeros_like(attn.v_bias), attn.v_bias))
            qkv = F.linear(x, projection.weight, offset)
        else:
            qkv = run(projection, x)
        heads = _heads(attn)
        width = qkv.shape[2] // (3 * heads)
        q, k, v = qkv.reshape(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        q_norm, k_norm = step(attn, "q_norm"), step(attn, "k_norm")
        if q_norm is not None:
            q = run(q_norm, q)
        if k_norm is not None:
            k = run(k_norm, k)
        if q.dtype != v.dtype or k.dtype != v.dtype:  # under autocast norms answer in float32
            q, k = q.to(v.dtype), k.to(v.dtype)
        scale = float(part(attn, "scale") or width**-0.5)
        attention = None
        if _linear(attn):
            mixed = linear_attention(q, k, v, bias)
        else:
            probability = _probability(part(attn, "attn_drop")) if attn.training else 0.0
            mixed, attention = softmax_attention(q, k, v, scale, bias, probability, need_map)
        output = join_heads(mixed)
        norm, proj_drop = step(attn, "norm"), step(attn, "proj_drop")
        if norm is not None:
            output = run(norm, output)
        output = run(step(attn, "proj"), output)
        if proj_drop is not None:
            output = run(proj_drop, output)
        return AttentionParts(output, q, k, v, scale, attention)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        own = block._modules
        parts = cls.attention(own["attn"], run(own["norm1"], x), bias, need_map)
        rest = parts.q, parts.k, parts.v, parts.scale, _linear(own["attn"]), parts.attention
        simple, gamma = _simple(block, x, parts.output, 1)
        if simple:
            return Attended(x, *rest, branch=Branch(parts.output, gamma))
        return Attended(x + branch(block, parts.output, 1), *rest)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return cls.feed_forward_normed(block, x, run(block._modules["norm2"], x))

    @classmethod
    def next_norm(cls, block: Any) -> nn.LayerNorm | None:
        norm = block._modules["norm2"]
        return norm if type(norm) is nn.LayerNorm else None

    @classmethod
    def feed_forward_normed(cls, block: Any, x: Tensor, normed: Tensor) -> Tensor:
        y = block._modules["mlp"](normed)
        simple, gamma = _simple(block, x, y, 2)
        return Branch(y, gamma).added_to(x) if simple else x + branch(block, y, 2)

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        attn = block.attn
        dim, inner = attn.qkv.in_features, attn.qkv.out_features // 3
        return BlockShape(dim, _heads(attn), inner // _heads(attn), hidden_width(block.mlp, dim), _linear(attn))


def _heads(attn: Any) -> Any:
    """Number of heads, under its several names."""
    heads = part(attn, "num_heads")
    return part(attn, "nhead") if heads is None else heads


def _linear(attn: Any) -> bool:
    """Whether an attention module declares itself linear (our BIOT and TFM)."""
    return part(attn, "linear") is True


def _probability(drop: Any) -> float:
    return float(getattr(drop, "p", 0.0) if isinstance(drop, nn.Module) else drop or 0.0)


def _simple(block: Any, x: Tensor, y: Tensor, number: int) -> tuple[bool, Tensor | None]:
    """Whether branch 1 or 2 of the block is added to x as it is or times a layer scale, and that scale."""
    gamma = _layer_scale(block, number)
    if part(block, f"ls{number}") is not None or not _keeps(_drop_path(block, number)):
        return False, None
    if x.dtype != y.dtype or (gamma is not None and (not isinstance(gamma, Tensor) or gamma.dtype != x.dtype)):
        return False, None
    return not torch.compiler.is_exporting(), gamma


def _keeps(drop: Any) -> bool:
    """Whether stochastic depth leaves a branch as it is: there is none, or one that everybody knows, in evaluation."""
    if drop is None:
        return True
    if type(drop) is not nn.Identity and not (type(drop).__name__ == "DropPath" and drop.training is False):
        return False
    return not hooked(drop)


def branch(block: Any, x: Tensor, number: int) -> Tensor:
    """Layer scale and stochastic depth of branch 1 or 2, under their several names."""
    gamma = _layer_scale(block, number)
    if gamma is not None:
        x = gamma * x
    scale = part(block, f"ls{number}")
    if scale is not None:
        x = scale(x)
    drop = _drop_path(block, number)
    if drop is not None:
        x = drop(x)
    return x


def _layer_scale(block: Any, number: int) -> Any:
    """Layer scale kept as a plain parameter."""
    gamma = part(block, f"gamma_{number}")
    return part(block, f"gamma{number}") if gamma is None else gamma


def _drop_path(block: Any, number: int) -> Any:
    own = part(block, f"drop_path{number}")
    return part(block, "drop_path") if own is None else own
