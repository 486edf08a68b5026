"""BIOT (Yang et al., NeurIPS 2023): spectral tokens of every channel, linear-attention blocks, mean readout."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.models.blocks import Block
from zipbrain.models.checks import MOST_BLOCKS, check_option, check_rate, check_window
from zipbrain.models.stft import Stft


class BIOT(nn.Module):
    """Biosignal Transformer.

    Parameters
    ----------
    n_outputs : int
        Number of logits.
    n_chans : int
        Rows of the channel embedding (the checkpoint's: 16 or 18). A window may have fewer channels.
    n_times : int
        Samples of a window at 200 Hz, for `n_tokens`; any length from 200 samples works at run time.
    dim, heads, depth : int
        Width, attention heads and blocks.
    dropout : float
        On the output of attention (training only).

    Notes
    -----
    Input: (B, C, n_times), every channel divided by the 95 % quantile of its absolute values. One token per channel and
    frame of one second, half a second apart; channel by channel, time fastest. A tail shorter than a hop is not read.
    """

    encoder_path = "blocks"
    prefix_tokens = 0
    sfreq = 200.0

    def __init__(
        self,
        n_outputs: int,
        n_chans: int = 16,
        n_times: int = 2000,
        *,
        dim: int = 256,
        heads: int = 8,
        depth: int = 4,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"n_outputs": n_outputs, "n_chans": n_chans, "n_times": n_times}
        self.config |= {"dim": dim, "heads": heads, "depth": depth, "dropout": dropout}
        self.stft = Stft(101, hann=False)
        for name, value, least in (("n_outputs", n_outputs, 1), ("n_chans", n_chans, 1), ("n_times", n_times, 200)):
            check_option(name, value, least)
        check_option("depth", depth, 1, MOST_BLOCKS)
        check_option("heads", heads)
        check_option("dim", dim)
        if dim % heads:
            raise OptionError("dim", dim, f"it must be a multiple of heads, {heads}")
        check_rate("dropout", dropout)
        self.n_tokens = n_chans * self.stft.frames(n_times)
        self.projection = nn.Linear(101, dim)
        self.channel_tokens = nn.Embedding(n_chans, dim)
        self.embed_drop = nn.Dropout(0.1)
        options: dict[str, Any] = {"eps": 1e-5, "qkv_bias": False, "linear": True, "dropout": dropout}
        self.blocks = nn.ModuleList([Block(dim, heads, **options) for _ in range(depth)])
        self.head = nn.Linear(dim, n_outputs)

    def tokens(self, x: Tensor) -> Tensor:
        """Window (B, C, n_times) -> tokens (B, C frames, D)."""
        check_window(x, self.channel_tokens.weight, self.stft.size, most=self.channel_tokens.num_embeddings)
        embedded = self.projection(self.stft(x))  # (B, C, frames, D)
        channel = self.channel_tokens.weight[: x.shape[1], None]
        time = sine_positions(embedded.shape[2], embedded.shape[3], embedded)  # starts anew for every channel
        tokens: Tensor = self.embed_drop(embedded + channel + time)
        return tokens.flatten(1, 2)

    def features(self, x: Tensor) -> Tensor:
        """Mean over tokens: (B, D)."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x.mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        logits: Tensor = self.head(F.elu(self.features(x)))
        return logits


def sine_positions(length: int, dim: int, like: Tensor) -> Tensor:
    """Sine (even features) and cosine (odd ones) positions: (length, dim), on the device and of the type of `like`."""
    step = torch.exp(torch.arange(0, dim, 2, device=like.device) * (-math.log(10_000.0) / dim))
    angle = torch.arange(length, device=like.device)[:, None] * step
    return torch.stack((torch.sin(angle), torch.cos(angle)), dim=2).flatten(1).to(like.dtype)
