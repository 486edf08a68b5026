"""Pre-norm blocks under any names: what STEEGFormer's, PBT's and Hugging Face's blocks have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.attention import join_heads, softmax_attention, split_heads
from zipbrain.seams.dialects.base import Attended, Dialect, hidden_width
from zipbrain.seams.dialects.recognition import Recognition, match_forward


class PreNorm(Dialect):
    """``x += out(attention(q, k, v of norm(x)))``, then a feed-forward branch; a dialect says where the parts are."""

    @classmethod
    @abstractmethod
    def recognise_parts(cls, block: nn.Module) -> Recognition:
        """`recognise` by the block's parts alone, before its forward is tried."""

    @classmethod
    @abstractmethod
    def project(cls, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of the normed tokens, each (B, T, H d)."""

    @classmethod
    @abstractmethod
    def out(cls, block: Any, mixed: Tensor) -> Tensor:
        """The attention branch behind the mixed values: (B, T, H d) -> (B, T, D)."""

    @classmethod
    @abstractmethod
    def heads(cls, block: Any) -> int:
        """Number of heads."""

    @classmethod
    @abstractmethod
    def weights(cls, block: Any) -> tuple[nn.Linear, nn.Module]:
        """A projection that makes queries (perhaps keys and values too), and the feed-forward."""

    @classmethod
    def dropout(cls, block: Any) -> float:
        """Probability of dropping an attention weight, in training."""
        return 0.0

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        found = cls.recognise_parts(block)
        return match_forward(cls, block, cls.weights(block)[0].weight) if found.is_match else found

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        q, k, v = (split_heads(part, cls.heads(block)) for part in cls.project(block, x))
        scale = q.shape[3] ** -0.5
        dropout = cls.dropout(block) if block.training else 0.0
        mixed, attention = softmax_attention(q, k, v, scale, bias, dropout, need_map)
        branch = Branch(cls.out(block, join_heads(mixed)))
        return Attended(x, q, k, v, scale, attention=attention, branch=branch)

    @classmethod
    def shape(cls, block: Any) -> BlockShape:
        query, feed = cls.weights(block)
        dim, count = query.in_features, cls.heads(block)
        return BlockShape(dim, count, cls.inner(block) // count, hidden_width(feed, dim))

    @classmethod
    def inner(cls, block: Any) -> int:
        """H d, the width of all queries together."""
        return cls.weights(block)[0].out_features
