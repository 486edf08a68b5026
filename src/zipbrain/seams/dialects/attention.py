"""Attention that knows mass and stays fused: log(mass) enters through one more key channel instead of a mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zipbrain.pooling.backends.triton import mass_path as triton_mass_path
from zipbrain.seams import beside


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None, dropout: float = 0.0,
    need_map: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Scaled dot-product attention with an optional bias per key.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, H, T, d)
        Queries, keys, values.
    scale : float
        Factor on q k^T.
    bias : Tensor of shape (B, T), optional
        Added to the logits of every key.
    dropout : float
        Probability of dropping an attention weight.
    need_map : bool
        Whether to form the map explicitly and return it.

    Returns
    -------
    output : Tensor, shape (B, H, T, d)
    attention : Tensor of shape (B, H, T, T) or None

    Notes
    -----
    With a bias, q' = [q, 1], k' = [k, bias / scale], v' = [v, 0]: exact, and no additive mask, with which fused
    kernels would be out of reach in half precision. On a GPU, whose fused kernels want a multiple of 8 channels, with
    as many more, which are 0 in k' and v'; without a bias they get zeros by one kernel of ours in half precision,
    since they would pad each of the three by itself.
    """
    beside.tell(q, k, v)
    if need_map:
        logits = torch.matmul(q * scale, k.transpose(2, 3))
        if bias is not None:
            logits = logits + bias[:, None, None, :].to(logits.dtype)
        attention = F.dropout(logits.softmax(-1), dropout, training=dropout > 0)
        return torch.matmul(attention, v), attention
    widened = triton_mass_path.padded(q, k, v) if bias is None else triton_mass_path.with_mass(q, k, v, bias, scale)
    if bias is None and widened is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale), None
    if widened is not None:
        output = F.scaled_dot_product_attention(*widened, dropout_p=dropout, scale=scale)
        return output[..., : v.shape[3]], None
    assert bias is not None
    more = _more(q)
    q, k, v = _with_mass(q, k, v, bias, scale, more)
    output = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    return output[..., :-more], None


def _with_mass(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, more: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with `more` channels, through which the bias enters: `with_mass` of the kernels in plain operators."""
    column = (bias / scale).to(k.dtype)[:, None, :, None]
    if more > 1:
        column = F.pad(column, (0, more - 1))
    column = column.expand(-1, k.shape[1], -1, -1)
    return F.pad(q, (0, more), value=1.0), torch.cat((k, column), dim=3), F.pad(v, (0, more))


def _more(q: Tensor) -> int:
    """How many channels let a bias in: one, and on a GPU those that its fused kernels would add by themselves."""
    if not q.is_cuda or torch.onnx.is_in_onnx_export():
        return 1
    width = int(q.shape[3])
    return triton_mass_path.wider(width) - width


def linear_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear attention: softmax of q over features, of k over tokens, out = d^-1/2 q (k^T v).

    A bias of log(m) on k before its softmax over tokens equals m copies of the token, exactly.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, H, T, d)
        Queries, keys, values.
    bias : Tensor of shape (B, T), optional
        Added to every feature of the key.

    Returns
    -------
    output : Tensor, shape (B, H, T, d)
    """
    beside.tell(q, k, v)
    if bias is not None:
        k = k + bias[:, None, :, None].to(k.dtype)
    context = torch.matmul(k.softmax(2).transpose(2, 3), v)  # (B, H, d, d)
    return torch.matmul(q.softmax(3) * q.shape[3] ** -0.5, context)


def split_heads(values: Tensor, heads: int) -> Tensor:
    """(B, T, H d) -> (B, H, T, d)"""
    batch, tokens, width = values.shape
    return values.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def join_heads(values: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, T, H d)"""
    return values.transpose(1, 2).flatten(2)
