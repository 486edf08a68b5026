"""Attention that knows mass and stays fused: log(mass) enters through one more key channel instead of a mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    need_map: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention (B, H, T, d) with an optional bias (B, T) per key.

    The attention map (B, H, T, T) is formed and returned only if `need_map`.
    """
    if need_map:
        logits = torch.matmul(q * scale, k.transpose(2, 3))
        if bias is not None:
            logits = logits + bias[:, None, None, :].to(logits.dtype)
        attention = F.dropout(logits.softmax(-1), dropout, training=dropout > 0)
        return torch.matmul(attention, v), attention
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale), None
    widened = widen_heads(q, k, v, bias, scale, extra_channels(q))
    output = F.scaled_dot_product_attention(*widened, dropout_p=dropout, scale=scale)
    return output[..., : v.shape[3]], None


def extra_channels(q: Tensor) -> int:
    """How many channels let a bias into attention: one; on a GPU as many as fill up a multiple of 8."""
    return 8 - int(q.shape[3]) % 8 if q.is_cuda and not torch.onnx.is_in_onnx_export() else 1


def widen_heads(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, more: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with `more` channels, through which a bias (B, T) per key enters attention.

    [q, 1, ...], [k, bias / scale, 0, ...] and [v, 0, ...]: exact, and no additive mask, which would keep fused
    attention kernels away.
    """
    column = (bias / scale).to(k.dtype)[:, None, :, None]
    if more > 1:
        column = F.pad(column, (0, more - 1))
    column = column.expand(-1, k.shape[1], -1, -1)
    return F.pad(q, (0, more), value=1.0), torch.cat((k, column), dim=3), F.pad(v, (0, more))


def linear_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear attention: softmax of q over features, of k over tokens, out = d^-1/2 q (k^T v); (B, H, T, d).

    A bias (B, T) of log(m) on k before its softmax over tokens equals m copies of the token, exactly.
    """
    if bias is not None:
        k = k + bias[:, None, :, None].to(k.dtype)
    context = torch.matmul(k.softmax(2).transpose(2, 3), v)  # (B, H, d, d)
    return torch.matmul(q.softmax(3) * q.shape[3] ** -0.5, context)


def project_apart(
    weight: Tensor, offset: Tensor | None, asking: Tensor, x: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q of the tokens that attend, k and v of all, (B, H, T, d), by the joint weight (3 H d, D) of the three."""
    inner = weight.shape[0] // 3
    upper, lower = (None, None) if offset is None else (offset[:inner], offset[inner:])
    k, v = F.linear(x, weight[inner:], lower).chunk(2, dim=2)
    q = F.linear(asking, weight[:inner], upper)
    return split_heads(q, heads), split_heads(k, heads), split_heads(v, heads)


def split_heads(values: Tensor, heads: int) -> Tensor:
    """(B, T, H d) -> (B, H, T, d)"""
    batch, tokens, width = values.shape
    return values.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def join_heads(values: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H d)"""
    return values.transpose(1, 2).flatten(2)
