"""Multiply-adds of transformer blocks and of pooling, counted by hand: matrix products only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zipbrain.pooling.methods.base import Method


@dataclass(frozen=True)
class BlockShape:
    """The sizes of one transformer block that decide its cost."""

    dim: int  # width of the residual stream
    heads: int  # attention heads and their width
    head_dim: int
    hidden: int  # width inside the feed-forward part
    linear: bool = False  # linear instead of softmax attention

    def spanning(self, cells_per_token: int) -> BlockShape:
        """The shape where a token spans so many cells of a grid; where there is no grid, a token is one."""
        return self

    def attention_macs(self, tokens: int, queries: int | None = None) -> int:
        """Projections and attention over `tokens` tokens (protected ones included), of which `queries` attend, or all.

        Every token has a key and a value; those that attend have a query and an output too.
        """
        queries = tokens if queries is None else queries
        inner = self.heads * self.head_dim
        mixing = (tokens + queries) * self.head_dim if self.linear else 2 * tokens * queries
        return (2 * (tokens + queries) * self.dim + mixing) * inner

    def space_width(self, space: str) -> int:
        """Width of the vectors that are compared in a space: x, a head's mean (``q``), or all heads (``qh``)."""
        if space == "x":
            return self.dim
        return self.heads * self.head_dim if space.endswith("h") else self.head_dim

    def feed_forward_macs(self, tokens: int) -> int:
        """The two matrices of the feed-forward part."""
        return 2 * tokens * self.dim * self.hidden


@dataclass(frozen=True)
class GridShape(BlockShape):
    """A criss-cross block: half of the features attend over the tokens, the others over the cells inside each.

    A token is a row of a grid with its cells side by side: `dim` and `head_dim` hold all of them, `hidden` is that of
    one cell. The heads are those that attend over the tokens.
    """

    cells_per_token: int = 1

    def spanning(self, cells_per_token: int) -> GridShape:
        dim, head_dim = (width // self.cells_per_token * cells_per_token for width in (self.dim, self.head_dim))
        return replace(self, dim=dim, head_dim=head_dim, cells_per_token=cells_per_token)

    def attention_macs(self, tokens: int, queries: int | None = None) -> int:
        half, cells = self.heads * self.head_dim // self.cells_per_token, tokens * self.cells_per_token
        return (8 * half + 2 * (tokens + self.cells_per_token)) * half * cells


def network_macs(shape: BlockShape, n: int, removed: Sequence[int], protected: int = 0, with_tail: bool = False) -> int:
    """Multiply-adds of all blocks, without patch embedding, head and the pooling itself.

    `n` unprotected tokens enter the first block; `removed` go in each block between attention and feed-forward; the
    `protected` ones take part in everything. With a tail, the last block runs for them alone.
    """
    total = 0
    for r in removed[:-1] if with_tail else removed:
        total += shape.attention_macs(n + protected)
        n -= r
        total += shape.feed_forward_macs(n + protected)
    if with_tail:
        total += shape.attention_macs(n + protected, protected) + shape.feed_forward_macs(protected)
    return total


def second_pass_macs(
    shape: BlockShape, n: int, depth: int, first: int, protected: int = 0, with_tail: bool = False
) -> int:
    """Multiply-adds of all blocks without reduction, behind the attention of block number `first` (from 0)."""
    whole = network_macs(shape, n, (0,) * depth, protected, with_tail)
    known = network_macs(shape, n, (0,) * first, protected) + shape.attention_macs(n + protected)
    return max(0, whole - known)


def pooling_macs(shape: BlockShape, n: int, removed: Sequence[int], protected: int, method: Method) -> int:
    """Multiply-adds of pooling in all blocks, which `network_macs` leaves out: grouping, and one for every feature."""
    total = 0
    for r in removed:
        if r > 0:
            total += method.grouping_macs(n, r, shape) + (n + protected) * shape.dim * method.merges
        n -= r
    return total
