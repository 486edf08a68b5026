"""Options of `compress` and `pool` that can't be meant."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.wrong_uses import wrong_use

import zipbrain


@wrong_use("an option that a model does not have")
def unknown_model_option(folder: Path) -> None:
    zipbrain.models.create("biot", n_classes=2)


@wrong_use("a ratio in percent")
def percent(folder: Path) -> None:
    zipbrain.compress(zipbrain.models.create("biot", n_outputs=2), "zipbrain", ratio=80)


@wrong_use("a method that does not exist")
def unknown_method(folder: Path) -> None:
    zipbrain.compress(zipbrain.models.create("biot", n_outputs=2), "zipbrian", ratio=0.8)


@wrong_use("a ratio and a number of tokens at once")
def two_amounts(folder: Path) -> None:
    zipbrain.compress(zipbrain.models.create("biot", n_outputs=2), "zipbrain", ratio=0.8, r=4)


@wrong_use("a model without transformer blocks")
def no_blocks(folder: Path) -> None:
    zipbrain.compress(torch.nn.Sequential(torch.nn.Linear(4, 4)), "zipbrain", ratio=0.8)


@wrong_use("pool as many tokens as there are")
def pool_all(folder: Path) -> None:
    zipbrain.pool(torch.randn(1, 8, 4), r=8, method=zipbrain.ZIPBrain("x", "x", "x"))


@wrong_use("a space that does not exist")
def unknown_space(folder: Path) -> None:
    zipbrain.ZIPBrain(z1="w")
