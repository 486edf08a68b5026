"""Multiply-adds of transformer blocks, counted by hand: matrix products only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockShape:
    """The sizes of one transformer block that decide its cost."""

    dim: int  # width of the residual stream
    heads: int  # attention heads and their width
    head_dim: int
    hidden: int  # width inside the feed-forward part
    linear: bool = False  # linear instead of softmax attention

    def attention_macs(self, tokens: int) -> int:
        """Projections and attention over `tokens` tokens (protected ones included)."""
        inner = self.heads * self.head_dim
        mixing = 2 * tokens * inner * (self.head_dim if self.linear else tokens)
        return 4 * tokens * self.dim * inner + mixing

    def feed_forward_macs(self, tokens: int) -> int:
        """The two matrices of the feed-forward part."""
        return 2 * tokens * self.dim * self.hidden


def network_macs(shape: BlockShape, n: int, removed: Sequence[int], protected: int = 0) -> int:
    """Multiply-adds of all blocks, without patch embedding, head and the pooling itself.

    `n` unprotected tokens enter the first block; `removed` go in each block between attention and feed-forward; the
    `protected` ones take part in everything.
    """
    total = 0
    for r in removed:
        total += shape.attention_macs(n + protected)
        n -= r
        total += shape.feed_forward_macs(n + protected)
    return total
