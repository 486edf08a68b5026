"""Short-time Fourier magnitudes as one matrix product, so that they export everywhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Stft(nn.Module):
    """Magnitudes of the first frequency bins of frames of 200 samples, hop 100, not centred.

    With `hann` a periodic Hann window (TFM-Tokenizer) instead of a rectangular one (BIOT).
    """

    basis: Tensor

    def __init__(self, bins: int, hann: bool, size: int = 200, hop: int = 100) -> None:
        super().__init__()
        self.bins, self.size, self.hop = bins, size, hop
        time = torch.arange(size, dtype=torch.float64)
        angle = 2 * math.pi * torch.outer(time, torch.arange(bins, dtype=torch.float64)) / size
        window = 0.5 - 0.5 * torch.cos(2 * math.pi * time / size) if hann else torch.ones_like(time)
        basis = torch.cat((torch.cos(angle), -torch.sin(angle)), dim=1) * window[:, None]
        self.register_buffer("basis", basis.float(), persistent=False)

    def frames(self, samples: int) -> int:
        """Number of frames of a window."""
        return (samples - self.size) // self.hop + 1

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_times) -> (..., frames, bins)"""
        parts = torch.matmul(x.unfold(-1, self.size, self.hop), self.basis)  # real parts, then imaginary ones
        both = torch.stack((parts[..., : self.bins], parts[..., self.bins :]), dim=-1)
        magnitude: Tensor = torch.linalg.vector_norm(both, dim=-1)
        return magnitude
