"""A plain pre-norm transformer over given tokens, in the shape of LaBraM by default: for demos, timings and tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.models.blocks import Block


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
        self,
        dim: int = 200,
        depth: int = 12,
        heads: int = 10,
        hidden: int | None = None,
        outputs: int = 2,
        qk_norm: bool = True,
        layer_scale: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        options: dict[str, Any] = {"qkv_bias": not qk_norm, "qk_norm": qk_norm, "layer_scale": layer_scale}
        self.blocks = nn.ModuleList([Block(dim, heads, hidden, **options) for _ in range(depth)])
        self.fc_norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> logits (B, outputs)"""
        x = torch.cat((self.cls_token.expand(tokens.shape[0], -1, -1), tokens), dim=1)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.fc_norm(x[:, 1:].mean(1)))
        return logits
