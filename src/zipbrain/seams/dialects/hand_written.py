"""Blocks that people write around ``nn.MultiheadAttention``: two LayerNorms and a feed-forward, under any names."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.seams.dialects.attention import join_heads, project_apart, softmax_attention, split_heads
from zipbrain.seams.dialects.base import Attended, Dialect, Ends, hidden_width, register_dialect
from zipbrain.seams.dialects.recognition import NO_MATCH, Recognition, match_forward, near_miss


class Parts(NamedTuple):
    """The parts of a block, in the order in which they were made."""

    norm1: nn.LayerNorm
    attention: nn.MultiheadAttention
    norm2: nn.LayerNorm
    feed_forward: nn.Module
    dropouts: tuple[nn.Dropout, ...]


def parts_of(block: nn.Module) -> Parts | None:
    """The parts of a block that has one attention, two norms, one feed-forward and at most two dropouts; else None."""
    if isinstance(block, nn.TransformerEncoderLayer | nn.ModuleList | nn.Sequential):
        return None
    kinds: dict[type[nn.Module], list[Any]] = {nn.MultiheadAttention: [], nn.LayerNorm: [], nn.Dropout: []}
    others: list[Any] = []
    for child in block.children():
        if type(child) is not nn.Identity:
            kinds.get(type(child), others).append(child)
    attentions, norms, dropouts = kinds.values()
    if (
        (len(attentions), len(norms), len(others)) != (1, 2, 1)
        or len(dropouts) > 2
        or [*block.parameters(recurse=False)]
    ):
        return None
    return Parts(norms[0], attentions[0], norms[1], others[0], tuple(dropouts))


class HandWritten(Dialect):
    """What pre-norm and post-norm blocks share; their own forward, tried on tokens, tells them apart."""

    looks_like = "one nn.MultiheadAttention (batch_first=True), two nn.LayerNorm and one module of feed-forward"

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        parts = parts_of(block)
        if parts is None:
            return NO_MATCH
        attention = parts.attention
        if not attention.batch_first:
            return near_miss("its attention is not batch_first")
        if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
            return near_miss("its attention has separate key or value widths, key biases or a zero key")
        return match_forward(cls, block, attention.in_proj_weight)

    @classmethod
    @abstractmethod
    def normed(cls, parts: Parts, x: Tensor) -> Tensor:
        """What attention reads."""

    @classmethod
    @abstractmethod
    def add(cls, parts: Parts, x: Tensor, branch: Tensor) -> Tensor:
        """The residual stream with the attention branch."""

    @classmethod
    def attend(cls, block: nn.Module, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        parts = _found(block)
        attention = parts.attention
        qkv = F.linear(cls.normed(parts, x), attention.in_proj_weight, attention.in_proj_bias)
        q, k, v = (split_heads(part, attention.num_heads) for part in qkv.chunk(3, dim=2))
        return cls._mix(parts, x, (q, k, v), bias, need_map)

    @classmethod
    def attend_ends(cls, block: nn.Module, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        parts = _found(block)
        attention, normed = parts.attention, cls.normed(parts, x)
        weight, offset = attention.in_proj_weight, attention.in_proj_bias
        qkv = project_apart(weight, offset, ends.of(normed), normed, attention.num_heads)
        return cls._mix(parts, ends.of(x), qkv, bias, False)

    @classmethod
    def _mix(
        cls, parts: Parts, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, need_map: bool
    ) -> Attended:
        """The block behind its projections; x holds the tokens that attend."""
        attention, (q, k, v) = parts.attention, qkv
        scale = q.shape[3] ** -0.5
        dropout = attention.dropout if attention.training else 0.0
        mixed, weights = softmax_attention(q, k, v, scale, bias, dropout, need_map)
        branch: Tensor = attention.out_proj(join_heads(mixed))
        if parts.dropouts:
            branch = parts.dropouts[0](branch)
        return Attended(cls.add(parts, x, branch), q, k, v, scale, attention=weights)

    @classmethod
    def feed(cls, parts: Parts, normed: Tensor) -> Tensor:
        """The feed-forward branch."""
        branch: Tensor = parts.feed_forward(normed)
        return parts.dropouts[-1](branch) if parts.dropouts else branch

    @classmethod
    def shape(cls, block: nn.Module) -> BlockShape:
        parts = _found(block)
        attention = parts.attention
        hidden = hidden_width(parts.feed_forward, attention.embed_dim)
        return BlockShape(attention.embed_dim, attention.num_heads, attention.head_dim, hidden)


@register_dialect
class HandWrittenPostNorm(HandWritten):
    """``x = norm1(x + attention(x))``, ``x = norm2(x + feed_forward(x))``; the seam lies behind norm1."""

    name = "hand-written post-norm"

    @classmethod
    def normed(cls, parts: Parts, x: Tensor) -> Tensor:
        return x

    @classmethod
    def add(cls, parts: Parts, x: Tensor, branch: Tensor) -> Tensor:
        result: Tensor = parts.norm1(x + branch)
        return result

    @classmethod
    def feed_forward(cls, block: nn.Module, x: Tensor) -> Tensor:
        parts = _found(block)
        result: Tensor = parts.norm2(x + cls.feed(parts, x))
        return result


@register_dialect
class HandWrittenPreNorm(HandWritten):
    """``x = x + attention(norm1(x))``, ``x = x + feed_forward(norm2(x))``."""

    name = "hand-written pre-norm"

    @classmethod
    def normed(cls, parts: Parts, x: Tensor) -> Tensor:
        result: Tensor = parts.norm1(x)
        return result

    @classmethod
    def add(cls, parts: Parts, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch

    @classmethod
    def feed_forward(cls, block: nn.Module, x: Tensor) -> Tensor:
        parts = _found(block)
        return x + cls.feed(parts, parts.norm2(x))


def _found(block: nn.Module) -> Parts:
    """The parts of a block that was recognised."""
    parts = parts_of(block)
    assert parts is not None
    return parts
