"""EEGPT (Wang et al., NeurIPS 2024): attention across channels inside each time patch, read from summary tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.channels import find_channels
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models.blocks import Block

_NAMES: Final = """
FP1 FPZ FP2 AF7 AF3 AF4 AF8 F7 F5 F3 F1 FZ F2 F4 F6 F8 FT7 FC5 FC3 FC1 FCZ FC2 FC4 FC6 FT8 T7 C5 C3 C1 CZ C2 C4 C6
T8 TP7 CP5 CP3 CP1 CPZ CP2 CP4 CP6 TP8 P7 P5 P3 P1 PZ P2 P4 P6 P8 PO7 PO5 PO3 POZ PO4 PO6 PO8 O1 OZ O2
"""
CHANNELS: Final = tuple(_NAMES.split())

# The 20 places to which the front ends of TUAB and TUEV project 23 channels.
_FRONT_NAMES: Final = "FP1 FPZ FP2 F7 F3 FZ F4 F8 T7 C3 CZ C4 T8 P7 P3 PZ P4 P8 O1 O2"
FRONT_CHANNELS: Final = tuple(_FRONT_NAMES.split())


class Encoder(nn.Module):
    """The target encoder: patches of 64 samples, channel embedding, 4 summary tokens at the end, 8 blocks, norm."""

    rows: Tensor

    def __init__(
        self, ch_names: Sequence[str], dim: int = 512, heads: int = 8, depth: int = 8, summary: int = 4
    ) -> None:
        super().__init__()
        self.summary = summary
        self.register_buffer("rows", torch.tensor(find_channels(ch_names, CHANNELS, "EEGPT")), persistent=False)
        self.proj = nn.Linear(64, dim)
        self.chan_embed = nn.Embedding(len(CHANNELS), dim)
        self.summary_token = nn.Parameter(torch.zeros(1, summary, dim))
        self.blocks = nn.ModuleList([Block(dim, heads, qkv_bias=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        nn.init.trunc_normal_(self.summary_token, std=0.02)

    def tokens(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B patches, C + 4, D): time patches go into the batch."""
        channels = int(self.rows.shape[0])
        if x.dim() != 3 or x.shape[1] != channels or x.shape[2] < 64:
            raise ShapeError("x", tuple(x.shape), f"it must be (B, {channels}, n_times) with n_times >= 64")
        count = x.shape[2] // 64  # floored
        patches = x[:, :, : count * 64].reshape(x.shape[0], channels, count, 64)
        embedded = self.proj(patches).transpose(1, 2) + self.chan_embed(self.rows)  # (B, P, C, D)
        embedded = embedded.flatten(0, 1)
        return torch.cat((embedded, self.summary_token.expand(embedded.shape[0], -1, -1)), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, patches, 4, D)"""
        batch = x.shape[0]
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        summary: Tensor = self.norm(x[:, -self.summary :])
        return summary.reshape(batch, -1, self.summary, summary.shape[2])


class MaxNormLinear(nn.Linear):
    """A linear layer whose rows are clipped to a largest norm, functionally: the parameter itself is not changed."""

    def __init__(self, inputs: int, outputs: int, max_norm: float) -> None:
        super().__init__(inputs, outputs)
        self.max_norm = max_norm

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)"""
        return nn.functional.linear(x, clip_rows(self.weight, self.max_norm), self.bias)


def clip_rows(weight: Tensor, max_norm: float) -> Tensor:
    """Scale down every row that is longer than `max_norm`, as ``torch.renorm`` does."""
    norm = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return torch.where(norm > max_norm, weight * (max_norm / (norm + 1e-7)), weight)


class FrontEnd(nn.Module):
    """23 channels -> 20: clipped 1x1 projection, BatchNorm, GELU, depthwise convolution in time, BatchNorm, Dropout.

    TUAB: convolution of width 15 without padding and a second GELU. TUEV: width 55, same length, no second GELU.
    """

    def __init__(self, n_chans: int, kind: str) -> None:
        super().__init__()
        width, padding = (15, 0) if kind == "tuab" else (55, 27)
        self.mix = MaxNormLinear(n_chans, 20, 1.0)
        self.norm1 = nn.BatchNorm1d(20)
        self.conv = nn.Conv1d(20, 20, width, groups=20, padding=padding)
        self.norm2 = nn.BatchNorm1d(20)
        self.last = nn.GELU() if kind == "tuab" else nn.Identity()
        self.drop = nn.Dropout(0.25 if kind == "tuab" else 0.8)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 23, n_times) -> (B, 20, n_times or n_times - 14)"""
        x = self.mix(x.transpose(1, 2)).transpose(1, 2)
        x = self.conv(nn.functional.gelu(self.norm1(x)))
        out: Tensor = self.drop(self.last(self.norm2(x)))
        return out


class EEGPT(nn.Module):
    """EEGPT classifier: optional front end, encoder, flat head on all summary tokens.

    Parameters
    ----------
    n_outputs : int
        Number of logits.
    ch_names : sequence of str
        Channels of a window; with a front end only their number counts.
    n_times : int
        Samples of a window.
    front_end : {"tuab", "tuev"}, optional
        Project the channels to 20 places first, as the official scripts for these corpora do.
    dropout : float, optional
        Before the head; 0.5 (TUEV: 0.8) if not given.

    Notes
    -----
    Input: microvolt / 100. Attention runs across channels inside each patch of 64 samples, so the tokens to pool are
    the channels, and a window of P patches counts as P windows.
    """

    encoder_path = "target_encoder.blocks"
    prefix_tokens = 0
    suffix_tokens = 4
    reduce_at = (2, 4, 6, 8)

    def __init__(
        self, n_outputs: int, ch_names: Sequence[str], n_times: int = 2000, *, front_end: str | None = None,
        dropout: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if front_end not in (None, "tuab", "tuev"):
            raise OptionError("front_end", front_end, "it must be 'tuab', 'tuev' or None")
        self.config: dict[str, Any] = {
            "n_outputs": n_outputs, "ch_names": list(ch_names), "n_times": n_times, "front_end": front_end,
            "dropout": dropout,
        }  # fmt: skip
        self.front_end = None if front_end is None else FrontEnd(len(ch_names), front_end)
        self.target_encoder = Encoder(ch_names if front_end is None else FRONT_CHANNELS)
        self.n_tokens = int(self.target_encoder.rows.shape[0])
        patches = (n_times - 14 if front_end == "tuab" else n_times) // 64
        share = dropout if dropout is not None else 0.8 if front_end == "tuev" else 0.5
        self.head_drop = nn.Dropout(share)
        self.head = MaxNormLinear(patches * 4 * 512, n_outputs, 1.0)

    def features(self, x: Tensor) -> Tensor:
        """Summary tokens of all patches: (B, patches, 4, D)."""
        summary: Tensor = self.target_encoder(x if self.front_end is None else self.front_end(x))
        return summary

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        logits: Tensor = self.head(self.head_drop(self.features(x).flatten(1)))
        return logits
