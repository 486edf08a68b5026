"""A stand-in for a GPU: everything is tried as it would be there, on a CPU, and a "captured graph" runs the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from zipbrain.acceleration import example, optimise
from zipbrain.training.inference import run_inference


class Replayed:
    """Answers what lies in the buffer into memory that every call overwrites, as a captured graph does."""

    def __init__(self, network: Callable[[Tensor], Tensor], buffer: Tensor) -> None:
        self.network, self.buffer = network, buffer
        with torch.inference_mode():
            self.output = tree_map(torch.clone, run_inference(network, buffer))

    def __call__(self) -> Any:
        with torch.inference_mode():
            tree_map(torch.Tensor.copy_, self.output, run_inference(self.network, self.buffer))
        return self.output


class Captures:
    """Stands in for `capture`, and remembers the sizes."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.sizes: list[int] = []
        self.refused = refused

    def __call__(self, network: Callable[[Tensor], Tensor], buffer: Tensor, pool: Any) -> Replayed:
        if len(buffer) in self.refused:
            raise RuntimeError("called a synchronizing CUDA operation")
        self.sizes.append(len(buffer))
        return Replayed(network, buffer)


def stand_in(monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...] = ()) -> Captures:
    """From now on `accelerate` takes the CPU for a GPU; sizes in `refused` can't be captured."""
    captures = Captures(refused)
    monkeypatch.setattr(example, "find_device", lambda model, otherwise: (torch.device("cpu"), None))
    monkeypatch.setattr(optimise, "capture_forward", captures)
    return captures


class Classifier(nn.Module):
    """Two linear layers over flat windows of (3, 5)."""

    def __init__(self, outputs: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(15, 16), nn.LayerNorm(16), nn.Linear(16, outputs)
        with torch.no_grad():
            for parameter in (self.first.weight, self.last.weight):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(torch.tanh(self.first(x.flatten(1)))))
        return logits


def windows(count: int, seed: int = 1) -> Tensor:
    """Random windows, (count, 3, 5)."""
    return torch.randn(count, 3, 5, generator=torch.Generator().manual_seed(seed))
