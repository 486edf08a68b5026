"""LaBraM (Jiang et al., ICLR 2024): convolutional patch tokens, learned channel and time embeddings, softmax blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.channels import find_channels
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models.blocks import Block
from zipbrain.models.checks import check_option, check_rate, check_window

log = logging.getLogger("zipbrain")

# Row 0 of the channel table is the CLS token; these names are rows 1 to 128.
_NAMES: Final = """
FP1 FPZ FP2 AF9 AF7 AF5 AF3 AF1 AFZ AF2 AF4 AF6 AF8 AF10 F9 F7 F5 F3 F1 FZ F2 F4 F6 F8 F10 FT9 FT7 FC5 FC3 FC1
FCZ FC2 FC4 FC6 FT8 FT10 T9 T7 C5 C3 C1 CZ C2 C4 C6 T8 T10 TP9 TP7 CP5 CP3 CP1 CPZ CP2 CP4 CP6 TP8 TP10 P9 P7 P5
P3 P1 PZ P2 P4 P6 P8 P10 PO9 PO7 PO5 PO3 PO1 POZ PO2 PO4 PO6 PO8 PO10 O1 OZ O2 O9 CB1 CB2 IZ O10 T3 T5 T4 T6 M1
M2 A1 A2 CFC1 CFC2 CFC3 CFC4 CFC5 CFC6 CFC7 CFC8 CCP1 CCP2 CCP3 CCP4 CCP5 CCP6 CCP7 CCP8 T1 T2 FTT9h TTP7h TPP9h
FTT10h TPP8h TPP10h FP1-F7 F7-T7 T7-P7 P7-O1 FP2-F8 F8-T8 T8-P8 P8-O2
"""
CHANNELS: Final = tuple(_NAMES.split())

SIZES: Final = {  # width, blocks, heads, convolution channels
    "base": (200, 12, 10, 8),
    "large": (400, 24, 16, 16),
    "huge": (800, 48, 16, 32),
}


class PatchEmbed(nn.Module):
    """One second of one channel -> one token: three convolutions, GroupNorm before GELU.

    GroupNorm's statistics run over all channels and patches of a window together, as in the official code.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, (1, 15), stride=(1, 8), padding=(0, 7))
        self.conv2 = nn.Conv2d(width, width, (1, 3), padding=(0, 1))
        self.conv3 = nn.Conv2d(width, width, (1, 3), padding=(0, 1))
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(4, width) for _ in range(3))

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, 200) -> (B, N, D)"""
        x = patches.unsqueeze(1)  # (B, 1, N, 200)
        x = F.gelu(self.norm1(self.conv1(x)))
        x = F.gelu(self.norm2(self.conv2(x)))
        x = F.gelu(self.norm3(self.conv3(x)))  # (B, width, N, 25)
        return x.permute(0, 2, 3, 1).flatten(2)  # time-major: 25 x width


class LaBraM(nn.Module):
    """Large Brain Model for EEG.

    Parameters
    ----------
    n_outputs : int
        Number of logits.
    ch_names : sequence of str
        The channels of a window, in its order: any case, ``EEG FP1-REF`` forms, old and new 10-20 names.
    n_times : int
        Samples of a window at 200 Hz; a multiple of 200. Beyond 16 s the time embedding is made longer.
    size : {"base", "large", "huge"}
        Width 200 / 400 / 800 with 12 / 24 / 48 blocks.
    drop_path : float
        Largest probability of stochastic depth, growing linearly over the blocks (training only).

    Notes
    -----
    Input: microvolt / 100, (B, C, n_times). Tokens: CLS, then channel by channel, time fastest. A window that is no
    whole number of seconds is refused.
    """

    rows: Tensor
    encoder_path = "blocks"
    prefix_tokens = 1
    patch = 200
    sfreq = 200.0

    def __init__(
        self, n_outputs: int, ch_names: Sequence[str], n_times: int = 2000, *, size: str = "base", drop_path: float = 0
    ) -> None:
        super().__init__()
        if size not in SIZES:
            raise OptionError("size", size, f"it must be one of {', '.join(SIZES)}")
        check_option("n_outputs", n_outputs)
        check_option("n_times", n_times, 0)
        check_rate("drop_path", drop_path)
        dim, depth, heads, width = SIZES[size]
        patches = _patches(n_times)
        shape = {"n_outputs": n_outputs, "ch_names": list(ch_names), "n_times": n_times}
        self.config: dict[str, Any] = {**shape, "size": size, "drop_path": drop_path}
        self.n_tokens = len(ch_names) * patches
        rows = [0, *(row + 1 for row in find_channels(ch_names, CHANNELS, "LaBraM"))]
        self.register_buffer("rows", torch.tensor(rows), persistent=False)
        self.patch_embed = PatchEmbed(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, len(CHANNELS) + 1, dim))
        self.time_embed = nn.Parameter(torch.zeros(1, max(16, patches), dim))
        steps = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            [Block(dim, heads, qkv_bias=False, qk_norm=True, layer_scale=0.1, drop_path=p) for p in steps]
        )
        self.fc_norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, n_outputs)
        self._initialise()

    def _initialise(self) -> None:
        for values in (self.cls_token, self.pos_embed, self.time_embed):
            nn.init.trunc_normal_(values, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        with torch.no_grad():
            for depth, block in enumerate(self.blocks, 1):
                assert isinstance(block, Block)
                block.attn.proj.weight.div_((2 * depth) ** 0.5)
                block.mlp.fc2.weight.div_((2 * depth) ** 0.5)
            self.head.weight.mul_(0.001)

    def tokens(self, x: Tensor) -> Tensor:
        """Window (B, C, n_times) or (B, C, patches, 200) -> tokens with CLS (B, 1 + C patches, D)."""
        channels = int(self.rows.shape[0]) - 1
        if isinstance(x, Tensor) and x.dim() == 4 and x.shape[3] == self.patch:
            x = x.flatten(2)
        check_window(x, self.cls_token, self.patch, channels=channels)
        batch, patches = x.shape[0], _patches(int(x.shape[2]))
        embedded = self.patch_embed(x.reshape(batch, channels * patches, self.patch))
        places = self.pos_embed[:, self.rows]  # (1, 1 + C, D)
        times = self._times(patches)
        grid = embedded.reshape(batch, channels, patches, embedded.shape[2]) + places[:, 1:, None] + times[:, None]
        cls = (self.cls_token + places[:, :1]).expand(batch, -1, -1)
        return torch.cat((cls, grid.flatten(1, 2)), dim=1)

    def _times(self, patches: int) -> Tensor:
        """Time embedding of the first `patches` seconds, stretched if there are more than it has rows."""
        if patches <= self.time_embed.shape[1]:
            return self.time_embed[:, :patches]
        log.warning("LaBraM: time embedding stretched from %d to %d s", self.time_embed.shape[1], patches)
        return resize_time(self.time_embed, patches)

    def features(self, x: Tensor) -> Tensor:
        """What enters the last linear layer: (B, D)."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.fc_norm(x[:, 1:].mean(1))
        return normed

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        logits: Tensor = self.head(self.features(x))
        return logits


def resize_time(table: Tensor, rows: int) -> Tensor:
    """Stretch a time embedding (1, R, D) to (1, rows, D) by linear interpolation."""
    return F.interpolate(table.transpose(1, 2), size=rows, mode="linear", align_corners=True).transpose(1, 2)


def _patches(n_times: int) -> int:
    if n_times < 200 or n_times % 200:
        raise ShapeError("n_times", n_times, "LaBraM reads whole seconds: a positive multiple of 200 samples at 200 Hz")
    return n_times // 200
