"""Wrong uses of pooling and of the methods."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.wrong_uses import wrong_use

import zipbrain
from zipbrain import DART, EViT, Mass, ToFu, ToMe, Twins, ZIPBrain
from zipbrain.models import TokenEncoder

X = torch.zeros(2, 10, 8)


@wrong_use("a word where EViT's fusing is switched")
def evit_fuse(folder: Path) -> object:
    return EViT(fuse="no")  # type: ignore[arg-type]


@wrong_use("a word where ToMe's attention is switched")
def tome_attention(folder: Path) -> object:
    return ToMe(proportional_attention="false")  # type: ignore[arg-type]


@wrong_use("a number where Twins' outliers are switched")
def twins_trimmed(folder: Path) -> object:
    return Twins(trimmed=0)  # type: ignore[arg-type]


@wrong_use("True for the block from which ToFu merges")
def tofu_flag(folder: Path) -> object:
    return ToFu(merge_from=True)


@wrong_use("EViT's attention of a CLS token that is not there")
def evit_without_cls(folder: Path) -> object:
    heads = torch.zeros(2, 2, 10, 4)
    return zipbrain.pool(X, heads, heads, heads, r=3, method=EViT("cls"))


@wrong_use("no pivots for DART")
def dart_pivots(folder: Path) -> object:
    return DART(pivots=0)


@wrong_use("a share of pivots above 1")
def rho(folder: Path) -> object:
    return ZIPBrain(rho=40)


@wrong_use("keys that the method reads, forgotten")
def no_keys(folder: Path) -> object:
    return zipbrain.pool(X, r=3, method=ToMe())


@wrong_use("a mask that protects other numbers of tokens in each window")
def uneven_mask(folder: Path) -> object:
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[0, :2] = True
    return zipbrain.pool(X, r=3, method=ZIPBrain("x", "x", "x"), protected=mask)


@wrong_use("a use of mass that is not there")
def mass_use(folder: Path) -> object:
    return Mass.of({"pooling": True})


@wrong_use("pool with a negative mass")
def negative_mass(folder: Path) -> object:
    return zipbrain.pool(X, r=3, method=ZIPBrain("x", "x", "x"), mass=-torch.ones(2, 10))


@wrong_use("run a model whose weights are on the meta device")
def weights_without_values(folder: Path) -> object:
    model = TokenEncoder(dim=8, depth=2, heads=2).eval().to("meta")
    return zipbrain.compress(model, ratio=0.5)(X)
