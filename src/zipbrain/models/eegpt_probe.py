"""EEGPT's probe for sleep and other small corpora: what stands before and after a frozen encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zipbrain.models.max_norm import MaxNormLinear

RATE = 256  # hertz, at which EEGPT was pretrained


class ProbeFrontEnd(nn.Module):
    """Subtract the mean over channels, repeat samples up to 256 Hz, project the channels to the encoder's places."""

    def __init__(self, n_chans: int, places: int, sfreq: int) -> None:
        super().__init__()
        self.sfreq = sfreq
        self.mix = MaxNormLinear(n_chans, places, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, places, 256 n_times / sfreq)"""
        x = to_256_hertz(x - x.mean(1, keepdim=True), self.sfreq)
        mixed: Tensor = self.mix(x.transpose(1, 2)).transpose(1, 2)
        return mixed


class Probe(nn.Module):
    """Summary tokens of a patch -> 64 features, positions, CLS, four decoder layers over the patches, linear layer.

    The decoder attends to its own tokens and, in every layer anew, to the tokens that entered its first layer.
    Any number of patches is fine.
    """

    def __init__(self, n_outputs: int, inputs: int = 2048, dim: int = 64, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.reduce = MaxNormLinear(inputs, dim, 1.0)
        self.cls_token = nn.Parameter(0.001 * torch.rand(1, 1, dim))
        layer = nn.TransformerDecoderLayer(dim, heads, 4 * dim, dropout=0.1, activation=nn.functional.gelu)
        self.decoder = nn.TransformerDecoder(layer, depth)
        self.classify = MaxNormLinear(dim, n_outputs, 0.25)

    def forward(self, summary: Tensor) -> Tensor:
        """(B, patches, inputs) -> (B, n_outputs)"""
        reduced = self.reduce(summary)
        reduced = reduced + truncated_positions(reduced.shape[1], reduced.shape[2], reduced)
        cls = self.cls_token.to(reduced).expand(reduced.shape[0], -1, -1)
        tokens = torch.cat((cls, reduced), dim=1).transpose(0, 1)  # (1 + patches, B, dim)
        logits: Tensor = self.classify(self.decoder(tokens, tokens)[0])
        return logits


def to_256_hertz(x: Tensor, sfreq: int) -> Tensor:
    """Nearest-neighbour interpolation: sample k of the output is sample floor(k sfreq / 256) of the input.

    Whole-number arithmetic, so that every device and export picks the same samples. A last sample that the new rate
    does not reach is left out.
    """
    if sfreq == RATE:
        return x
    count = x.shape[2] * RATE // sfreq
    return x[:, :, torch.arange(count, device=x.device) * sfreq // RATE]


def truncated_positions(length: int, dim: int, like: Tensor) -> Tensor:
    """Sine (even features) and cosine (odd ones) positions with the official mistake: (length, dim), as `like` is.

    The official code turns its frequencies into whole numbers, so that the first is 1 and all others are 0. Its
    checkpoints were trained with that; other frequencies would change their answers.
    """
    frequency = torch.pow(10_000.0, -torch.arange(dim // 2, device=like.device) / (dim // 2)).trunc()
    angle = torch.arange(length, device=like.device)[:, None] * frequency
    return torch.stack((torch.sin(angle), torch.cos(angle)), dim=2).flatten(1).to(like.dtype)
