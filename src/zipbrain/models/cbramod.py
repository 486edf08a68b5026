"""CBraMod (Wang et al., ICLR 2025): a grid of channels and seconds, criss-cross blocks, a head that reads the grid."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import ShapeError
from zipbrain.models.blocks import Attention, FeedForward
from zipbrain.models.checks import MOST_BLOCKS, check_option, check_rate, check_window
from zipbrain.models.stft import Stft

PATCH: Final = 200  # samples of a second, and the width of a token
_HEADS: Final = 8  # half of them along each axis


class GridEmbed(nn.Module):
    """One second of one channel -> one token: convolutions and a spectrum, then a position from its neighbours.

    GroupNorm's statistics run over all channels and patches of a window together, as in the official code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 25, (1, 49), stride=(1, 25), padding=(0, 24))
        self.conv2 = nn.Conv2d(25, 25, (1, 3), padding=(0, 1))
        self.conv3 = nn.Conv2d(25, 25, (1, 3), padding=(0, 1))
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(5, 25) for _ in range(3))
        self.stft = Stft(101, hann=False, hop=PATCH)
        self.spectral = nn.Linear(101, PATCH)
        self.position = nn.Conv2d(PATCH, PATCH, (19, 7), padding=(9, 3), groups=PATCH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, C, P, D)"""
        batch, channels, samples = x.shape
        y = x.reshape(batch, 1, channels * (samples // PATCH), PATCH)
        y = F.gelu(self.norm1(self.conv1(y)))
        y = F.gelu(self.norm2(self.conv2(y)))
        y = F.gelu(self.norm3(self.conv3(y)))  # (B, 25, C P, 8)
        grid = y.transpose(1, 2).reshape(batch, channels, -1, PATCH)
        grid = grid + self.spectral(self.stft(x) / PATCH)
        moved = self.position(grid.permute(0, 3, 1, 2))
        placed: Tensor = grid + moved.permute(0, 2, 3, 1)
        return placed


class CrissCrossBlock(nn.Module):
    """``x += attention(norm1(x))``, ``x += mlp(norm2(x))`` on a grid.

    The first half of the features attends over the channels of one second, the other half over the seconds of one
    channel.
    """

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.spatial = Attention(dim // 2, heads // 2, qkv_bias=True, dropout=dropout)
        self.temporal = Attention(dim // 2, heads // 2, qkv_bias=True, dropout=dropout)
        self.mlp = FeedForward(dim, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, P, D) -> (B, C, P, D)"""
        across, along = self.norm1(x).chunk(2, dim=3)
        batch, channels, steps, half = across.shape
        across = self.spatial(across.transpose(1, 2).reshape(-1, channels, half))
        along = self.temporal(along.reshape(-1, steps, half))
        across = across.reshape(batch, steps, channels, half).transpose(1, 2)
        x = x + torch.cat((across, along.reshape(batch, channels, steps, half)), dim=3)
        output: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return output


class CBraMod(nn.Module):
    """Criss-Cross Brain Foundation Model.

    Parameters
    ----------
    n_outputs : int
        Number of logits; 0 for the pretrained model, which answers with a patch (B, C, P, 200) for every token.
    n_chans : int
        Channels of a window.
    n_times : int
        Samples of a window at 200 Hz; a multiple of 200.
    depth : int
        Number of blocks.
    head_layers : {0, 1, 2, 3}
        Linear layers of the head on all features of the grid; 0 averages over the grid instead, and takes any number
        of seconds.
    dropout : float
        In blocks and head (training only).

    Notes
    -----
    Input: microvolt / 100, (B, C, n_times) or (B, C, P, 200). Channels and seconds form a grid to the end, so that
    whole channels are pooled.
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
        depth: int = 12,
        head_layers: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_option("n_outputs", n_outputs, 0)
        check_option("n_chans", n_chans)
        check_option("n_times", n_times, 0)
        check_option("depth", depth, 1, MOST_BLOCKS)
        check_option("head_layers", head_layers, 0, 3)
        check_rate("dropout", dropout)
        self.config: dict[str, Any] = {"n_outputs": n_outputs, "n_chans": n_chans, "n_times": n_times}
        self.config |= {"depth": depth, "head_layers": head_layers, "dropout": dropout}
        self.n_tokens, self.patches = n_chans, _patches(n_times)
        self.embed = GridEmbed()
        self.blocks = nn.ModuleList([CrissCrossBlock(PATCH, _HEADS, 4 * PATCH, dropout) for _ in range(depth)])
        if n_outputs == 0:
            self.proj_out = nn.Linear(PATCH, PATCH)
        else:
            self.head = _head(n_outputs, n_chans, self.patches, head_layers, dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def features(self, x: Tensor) -> Tensor:
        """What the head reads: the grid (B, C, P, 200)."""
        if isinstance(x, Tensor) and x.dim() == 4 and x.shape[3] == PATCH:
            x = x.flatten(2)
        check_window(x, self.embed.spectral.weight, PATCH, channels=self.config["n_chans"])
        patches = _patches(int(x.shape[2]))
        if self.config["n_outputs"] and self.config["head_layers"] and patches != self.patches:
            raise ShapeError("n_times", int(x.shape[2]), f"the head reads {self.patches} seconds and not {patches}")
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        grid = self.features(x)
        if self.config["n_outputs"] == 0:
            patches: Tensor = self.proj_out(grid)
            return patches
        logits: Tensor = self.head(grid.flatten(1) if self.config["head_layers"] else grid.mean((1, 2)))
        return logits


def _head(n_outputs: int, channels: int, patches: int, layers: int, dropout: float) -> nn.Module:
    """Linear layers with ELU between: seconds x 200 features, then 200."""
    inputs = channels * patches * PATCH if layers else PATCH
    widths = [inputs, *{3: (patches * PATCH, PATCH), 2: (PATCH,)}.get(layers, ()), n_outputs]
    linear = [nn.Linear(*pair) for pair in pairwise(widths)]
    if len(linear) == 1:
        return linear[0]
    parts: list[nn.Module] = [linear[0]]
    for layer in linear[1:]:
        parts += [nn.ELU(), nn.Dropout(dropout), layer]
    return nn.Sequential(*parts)


def _patches(n_times: int) -> int:
    if n_times < PATCH or n_times % PATCH:
        raise ShapeError("n_times", n_times, "CBraMod reads whole seconds: a positive multiple of 200 samples")
    return n_times // PATCH
