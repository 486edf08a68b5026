"""Tokens that a model or a window has and `compress` was not told of."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.wrong_uses import wrong_use
from torch import Tensor, nn

import zipbrain

DIM = 16


class Model(nn.Module):
    """A CLS token under another name, blocks, and a head that reads the first token or all in their places."""

    def __init__(self, head: str, front: int = 1, positions: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start = nn.Parameter(torch.randn(1, front, DIM))
        self.pos_embed = nn.Parameter(torch.randn(1, positions, DIM)) if positions else None
        layer = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head, self.flatten = nn.Linear(DIM * 20 if head == "flatten" else DIM, 2), head == "flatten"
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(torch.cat((self.start.expand(len(x), -1, -1), x), dim=1))
        logits: Tensor = self.head(x.flatten(1) if self.flatten else x[:, 0])
        return logits


@wrong_use("pool a CLS token that has another name")
def cls_of_another_name(folder: Path) -> None:
    zipbrain.compress(Model("first"), "zipbrain", ratio=0.5)


@wrong_use("leave the place of CLS in the positions unprotected")
def one_position_more(folder: Path) -> None:
    zipbrain.compress(Model("first", front=2, positions=21), "zipbrain", ratio=0.5, tokens=20)


@wrong_use("an example with tokens that no input changes, all of them pooled")
def constant_tokens(folder: Path) -> None:
    zipbrain.compress(Model("first", front=2), "zipbrain", ratio=0.5, example=torch.randn(2, 20, DIM))


@wrong_use("an example and a head that reads each token in its place")
def flatten_head(folder: Path) -> None:
    zipbrain.compress(Model("flatten", front=0), "zipbrain", ratio=0.5, example=torch.randn(2, 20, DIM))


@wrong_use("run a head that reads each token in its place on the tokens that are left")
def flatten_head_without_example(folder: Path) -> None:
    zipbrain.compress(Model("flatten", front=0), "zipbrain", ratio=0.5)(torch.randn(2, 20, DIM))


@wrong_use("declare tokens that the example does not have")
def tokens_and_example(folder: Path) -> None:
    model = zipbrain.models.TokenEncoder(DIM, 2, 2)
    zipbrain.compress(model, "zipbrain", ratio=0.5, tokens=10, example=torch.randn(1, 353, DIM))


@wrong_use("declare 10 tokens and run 353")
def another_length(folder: Path) -> None:
    model = zipbrain.compress(zipbrain.models.TokenEncoder(DIM, 2, 2), "zipbrain", ratio=0.5, tokens=10)
    model(torch.randn(1, 353, DIM))


@wrong_use("a list of r that asks for more tokens than there are")
def too_long_a_list(folder: Path) -> None:
    zipbrain.compress(zipbrain.models.TokenEncoder(DIM, 2, 2), "zipbrain", r=[12, 12], tokens=20)


@wrong_use("a ratio too small for the tokens")
def nothing_goes(folder: Path) -> None:
    zipbrain.compress(zipbrain.models.TokenEncoder(DIM, 4, 2), "zipbrain", ratio=0.1, tokens=10)


@wrong_use("reduce in the last block of a model whose head reads protected tokens only")
def dead_reduction(folder: Path) -> str:
    model = zipbrain.models.create("tfm", n_outputs=2, n_chans=4, n_times=1000)
    found = str(zipbrain.summary(zipbrain.compress(model, "zipbrain", ratio=0.8)))
    return next(line for line in found.splitlines() if "worth nothing" in line)
