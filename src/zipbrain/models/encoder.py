"""A plain pre-norm transformer over given tokens, in the shape of LaBraM by default: for demos, timings and tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head softmax attention with a norm on queries and keys, one width-d LayerNorm shared by all heads."""

    def __init__(self, dim: int, heads: int, qk_norm: bool) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=not qk_norm)
        self.proj = nn.Linear(dim, dim)
        self.q_norm = nn.LayerNorm(dim // heads, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(dim // heads, eps=1e-6) if qk_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        output: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return output


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        output: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return output


class Block(nn.Module):
    """``x += gamma_1 attn(norm1(x))``, ``x += gamma_2 mlp(norm2(x))``."""

    def __init__(self, dim: int, heads: int, hidden: int, qk_norm: bool, layer_scale: float | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads, qk_norm)
        self.mlp = FeedForward(dim, hidden)
        self.gamma_1 = None if layer_scale is None else nn.Parameter(layer_scale * torch.ones(dim))
        self.gamma_2 = None if layer_scale is None else nn.Parameter(layer_scale * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        attended = self.attn(self.norm1(x))
        x = x + (attended if self.gamma_1 is None else self.gamma_1 * attended)
        fed: Tensor = self.mlp(self.norm2(x))
        return x + (fed if self.gamma_2 is None else self.gamma_2 * fed)


class TokenEncoder(nn.Module):
    """CLS token, transformer blocks, mean over the other tokens, norm, linear head.

    Parameters
    ----------
    dim, depth, heads : int
        Width, number of blocks, attention heads (LaBraM-base: 200, 12, 10).
    hidden : int, optional
        Width of the feed-forward part; 4 x dim if not given.
    outputs : int
        Number of logits.
    qk_norm : bool
        Norm on queries and keys, as LaBraM has.
    layer_scale : float, optional
        Initial value of LaBraM's layer scale; none if not given.
    """

    encoder_path = "blocks"
    prefix_tokens = 1

    def __init__(
        self, dim: int = 200, depth: int = 12, heads: int = 10, hidden: int | None = None, outputs: int = 2,
        qk_norm: bool = True, layer_scale: float | None = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        sizes = dim, heads, hidden or 4 * dim, qk_norm, layer_scale
        self.blocks = nn.ModuleList([Block(*sizes) for _ in range(depth)])
        self.fc_norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> logits (B, outputs)"""
        x = torch.cat((self.cls_token.expand(tokens.shape[0], -1, -1), tokens), dim=1)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.fc_norm(x[:, 1:].mean(1)))
        return logits
