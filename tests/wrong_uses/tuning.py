"""Tunings that were asked wrong, and recipes in the wrong place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.tuning.conftest import TOKENS, WIDTH, Small, balanced, make_windows
from tests.wrong_uses import Answer, command, wrong_use

import zipbrain
from zipbrain.recipe import Recipe


def tune(**options: Any) -> None:
    x, groups = make_windows(8, 20)
    zipbrain.tune(balanced(Small), x, **{"groups": groups, "backend": "sequential", **options})


@wrong_use("tune for all of the answers")
def every_answer(folder: Path) -> None:
    tune(agree=1.0)


@wrong_use("tune for a share of the answers in per cent")
def answers_in_percent(folder: Path) -> None:
    tune(agree=99)


@wrong_use("tune on windows of one person")
def one_person(folder: Path) -> None:
    tune(groups=["me"] * 160)


@wrong_use("tune on an array without saying whose windows they are")
def no_groups(folder: Path) -> None:
    tune(groups=None)


@wrong_use("tune on twelve windows")
def few_windows(folder: Path) -> None:
    x = np.zeros((12, TOKENS, WIDTH), dtype=np.float32)
    zipbrain.tune(balanced(Small), x + np.random.default_rng(0).normal(size=x.shape), groups=[0, 1] * 6)


@wrong_use("tune for a runtime that there is not")
def unknown_runtime(folder: Path) -> None:
    tune(runtime="abacus")


@wrong_use("tune a model that answers one class for everything")
def one_class(folder: Path) -> None:
    model = balanced(Small)
    model.head.bias.data[0] += 99
    x, groups = make_windows(8, 20)
    zipbrain.tune(model, x, groups=groups, backend="sequential")


@wrong_use("tune on test windows")
def test_windows(folder: Path) -> Answer:
    model = zipbrain.save_pretrained(zipbrain.models.BIOT(6, 16, 1000, dim=16, heads=2, depth=1), folder / "model")
    return command("tune", model, "--data", "synthetic-events", "--split", "test", "--out", folder / "tuned")


@wrong_use("a recipe that was tuned for other weights")
def other_weights(folder: Path) -> None:
    recipe = Recipe({"name": "twins"}, {"name": "constant", "r": 3}, second_look=1.0, weights="0" * 64)
    zipbrain.compress(balanced(Small), recipe)


@wrong_use("a second look at a model without decisions")
def no_decisions(folder: Path) -> None:
    encoder = zipbrain.compress(balanced(Small).encoder, ratio=0.5, second_look=1.0)
    encoder(torch.zeros(2, TOKENS, WIDTH))
