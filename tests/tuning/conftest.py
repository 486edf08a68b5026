"""A small network with a head, and windows of several people whose classes it can tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.seams.forward import plan_of
from zipbrain.tuning.times import ORIGINAL, Times

TOKENS, WIDTH, CLASSES = 24, 16, 3


class Small(nn.Module):
    """Tokens (B, 24, 16) -> logits (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, batch_first=True, norm_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1)) * 8


def make_windows(people: int, each: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Windows in which neighbouring tokens are alike, and whose they are."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), each)
    base = rng.normal(size=(people, 1, 1, WIDTH)) * 0.3 + rng.normal(size=(people, each, TOKENS // 3, WIDTH))
    x = np.repeat(base, 3, axis=2) + 0.2 * rng.normal(size=(people, each, TOKENS, WIDTH))
    names = np.asarray([f"person {number:02d}" for number in who])
    return x.reshape(people * each, TOKENS, WIDTH).astype(np.float32), names


def times_by_tokens(times: Times, networks: dict[str, nn.Module], *about: object) -> dict[str, float]:
    """`Times._measure` in a runtime where time follows the tokens; a network this small gains none in any real one."""
    found = {}
    for name, network in networks.items():
        if name != ORIGINAL:
            gone = np.cumsum(plan_of(network).removals(TOKENS))
            found[name] = float(np.mean(1 - gone / TOKENS))
    return found


@pytest.fixture(scope="session")
def small() -> Small:
    """A network that answers all of its classes."""
    return balanced(Small)


def balanced(kind: type[Small]) -> Small:
    """A network with random weights, whose classes are equally likely on average."""
    torch.manual_seed(3)
    model = kind().eval()
    with torch.no_grad():
        model.head.bias -= Small.forward(model, torch.from_numpy(make_windows(8, 20, seed=9)[0])).mean(0) / 8
    return model
