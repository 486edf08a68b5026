"""EViT: keep the tokens that attention looks at, fuse or drop the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import DROPPED, Grouping
from zipbrain.pooling.merges import Mean, MergeRule, Prune, Sum
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.registry import check_flag, register
from zipbrain.pooling.spaces import at_least_float32
from zipbrain.pooling.steps import highest_relative, partition
from zipbrain.pooling.tokens import Tokens

_MAP_ELEMENTS = 2**22  # attention weights held at a time when the map has to be made here


@register("evit")
@dataclass(frozen=True)
class EViT(Method):
    r"""Expediting Vision Transformers (Liang et al., "Not All Patches Are What You Need", ICLR 2022).

    Importance of token j, :math:`a_j = \frac1H \sum_h A^h_{\mathrm{cls}, j}`; the least important tokens go. They
    become one new token :math:`\sum_j a_j x_j`.

    Parameters
    ----------
    score : {"auto", "cls", "mean"}
        Whose attention counts: the first token's (CLS), or the mean over all queries. ``"auto"`` takes CLS where a
        leading token is protected, else the mean.
    fuse : bool
        Whether the tokens that go are fused, as the authors have it: r + 1 go and one is appended (index T, behind the
        kept tokens and before protected trailing ones), so that N - r remain. Otherwise r are dropped.

    Notes
    -----
    Sources: the authors' code for CLS and for the fused sum, which is not divided by the sum of the weights. Ours:
    attention received on average (the column mean of the map) where there is no CLS, as is usual; for linear attention
    the implicit map :math:`A_{ij} = \sum_d \mathrm{softmax}_d(q_i)_d\, \mathrm{softmax}_j(k_j)_d` is exactly
    row-stochastic, and its row or column mean costs O(N d); kept tokens stay in their original order (the authors sort
    by score); removal happens in every reducing layer (the authors use three of twelve). The fused token is an
    ordinary token afterwards. With r = 0 nothing happens. Where protected tokens are scattered (a mask), the first of
    them counts as CLS.

    With mass the fused token stands for all that were fused, so it is their mean,
    :math:`\sum_j a_j x_j / \sum_j a_j` (:math:`a_j m_j` in place of :math:`a_j` where mass weighs the merge): the
    authors' sum is shorter than any of them by about the number of tokens.

    Recipes written before fusing was the default, ``{"name": "evit"}``, are read as ``fuse=False``.
    """

    title = "EViT"

    score: str = "auto"
    fuse: bool = True

    def __post_init__(self) -> None:
        if self.score not in ("auto", "cls", "mean"):
            raise OptionError("score", self.score, "it must be 'auto', 'cls' or 'mean'")
        check_flag("fuse", self.fuse)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"q", "k"})

    def _from_cls(self, leading: int) -> bool:
        if self.score == "cls" and leading == 0:
            raise OptionError("score", self.score, "there is no protected leading token: use 'mean' or protected=1")
        return self.score == "cls" or (self.score == "auto" and leading > 0)

    def needs_attention(self, leading: int, linear: bool) -> bool:
        return not linear and not self._from_cls(leading)

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return 0 if shape.linear else n * shape.heads * shape.head_dim  # one row of the attention map

    @property
    def merges(self) -> bool:
        return self.fuse

    @property
    def drops(self) -> bool:
        return not self.fuse

    @property
    def appends(self) -> bool:
        return self.fuse

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        if not self.fuse:
            return Prune()
        return Sum() if tokens.mass is None else Mean()

    def importance(self, tokens: Tokens) -> Tensor:
        """Attention that every unprotected token receives: (B, N), with gradient: it weighs the fused token."""
        cls = self._from_cls(tokens.leading)
        if tokens.attention is not None:
            attention = at_least_float32(tokens.attention)
            received = attention[:, :, 0].mean(1) if cls else attention.mean((1, 2))
        else:
            if tokens.q is None or tokens.k is None:
                name = "q" if tokens.q is None else "k"
                raise OptionError(name, None, "EViT reads q and k: give both as (B, H, T, d) tensors")
            q, k = at_least_float32(tokens.q), at_least_float32(tokens.k)
            bias = None if tokens.bias is None else tokens.bias.to(k.dtype)
            received = _received_linear(q, k, bias, cls) if tokens.linear else _received(q, k, bias, cls, tokens.scale)
        return tokens.unprotected(received, 1)

    def __call__(self, tokens: Tokens) -> Grouping:
        return self.regroup(tokens, tokens.r + 1 if self.fuse and tokens.r else tokens.r)

    def regroup(self, tokens: Tokens, gone: int) -> Grouping:
        """Remove the `gone` least important tokens (and append the fused one, if fusing and anything went)."""
        if gone == 0:
            return Grouping.identity(tokens.x.shape[0], tokens.total, tokens.x.device)
        importance = self.importance(tokens)
        stays = tokens.count - gone
        redundant = (
            ~highest_relative(importance.detach(), stays) if stays else torch.ones_like(importance, dtype=torch.bool)
        )
        kept, source = partition(redundant, gone, tokens.leading, tokens.trailing)
        if not self.fuse:
            return Grouping(kept, source, torch.full_like(source, DROPPED), tokens.total, drops=True)
        weight = importance.gather(1, source - tokens.leading)
        end = kept.shape[1] - tokens.trailing
        fused = torch.full_like(source[:, :1], tokens.total)
        kept = torch.cat((kept[:, :end], fused, kept[:, end:]), dim=1)
        return Grouping(kept, source, torch.full_like(source, tokens.total), tokens.total, 1, weight)


def _received(q: Tensor, k: Tensor, bias: Tensor | None, cls: bool, scale: float | None) -> Tensor:
    """Softmax attention received per token, mean over heads: from the first token or from all. (B, T)"""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    q = q[:, :, :1] if cls else q
    step = max(1, _MAP_ELEMENTS // max(1, k.shape[0] * k.shape[1] * k.shape[2]))
    if torch.compiler.is_exporting():
        step = q.shape[2]
    total = torch.zeros_like(k[:, 0, :, 0])
    for start in range(0, q.shape[2], step):
        logits = torch.matmul(q[:, :, start : start + step] * factor, k.transpose(2, 3))
        if bias is not None:
            logits = logits + bias[:, None, None, :]
        total = total + logits.softmax(-1).sum((1, 2))
    return total / (q.shape[1] * q.shape[2])


def _received_linear(q: Tensor, k: Tensor, bias: Tensor | None, cls: bool) -> Tensor:
    """The same for linear attention, from its implicit map and in O(N d). (B, T)"""
    if bias is not None:
        k = k + bias[:, None, :, None]
    asks = q.softmax(-1)
    asks = asks[:, :, :1] if cls else asks.mean(2, keepdim=True)  # (B, H, 1, d)
    return (asks * k.softmax(2)).sum(-1).mean(1)
