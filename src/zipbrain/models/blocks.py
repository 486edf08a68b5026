"""The transformer block that the paper's four models share: pre-norm, softmax or linear attention, feed-forward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values.

    With `qk_norm`, queries and keys pass a LayerNorm of width dim / heads, shared by all heads (LaBraM). Linear
    attention (BIOT, TFM-Tokenizer) takes the softmax of q over features, of k over tokens, and scales after q's.
    """

    def __init__(
        self, dim: int, heads: int, *, qkv_bias: bool, qk_norm: bool = False, linear: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.linear = heads, linear
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(dim // heads, eps=1e-6) if qk_norm else None
        self.k_norm = nn.LayerNorm(dim // heads, eps=1e-6) if qk_norm else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        batch, tokens, dim = x.shape
        heads = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.linear:
            context = torch.matmul(k.softmax(2).transpose(2, 3), v)  # (B, H, d, d)
            mixed = torch.matmul(q.softmax(3) * q.shape[3] ** -0.5, context)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        output: Tensor = self.proj_drop(self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim)))
        return output


class FeedForward(nn.Module):
    """Linear, exact GELU, linear."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        output: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return output


class DropPath(nn.Module):
    """Stochastic depth: in training, drop the whole branch of a window with probability p."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        if self.p == 0 or not self.training:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.p
        return x * keep / (1 - self.p)


class Block(nn.Module):
    """``x += gamma_1 attn(norm1(x))``, ``x += gamma_2 mlp(norm2(x))``.

    `hidden`, the width of the feed-forward part, is 4 x dim if not given, and `layer_scale` the initial value of both
    gammas, which are left out if not given. What is given besides goes to `Attention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        eps: float = 1e-6,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, heads, **{"qkv_bias": True, **attention})
        self.mlp = FeedForward(dim, hidden or 4 * dim)
        self.gamma_1 = None if layer_scale is None else nn.Parameter(layer_scale * torch.ones(dim))
        self.gamma_2 = None if layer_scale is None else nn.Parameter(layer_scale * torch.ones(dim))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        x = self._add(x, self.attn(self.norm1(x)), self.gamma_1)
        return self._add(x, self.mlp(self.norm2(x)), self.gamma_2)

    def _add(self, x: Tensor, y: Tensor, gamma: Tensor | None) -> Tensor:
        """x plus a branch; with a layer scale in one operator, unless the branch may be dropped."""
        drop = self.drop_path
        kept = not drop.training and not drop._forward_hooks and not drop._forward_pre_hooks
        if gamma is not None and kept and x.dtype == y.dtype == gamma.dtype and not torch.compiler.is_exporting():
            return torch.addcmul(x, gamma, y)
        output: Tensor = x + drop(y if gamma is None else gamma * y)
        return output
