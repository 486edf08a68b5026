"""EEGPT's constrained linear layer: rows no longer than a largest norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
