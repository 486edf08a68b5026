"""Comparisons, ablations and timings that were asked wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.search import small
from tests.wrong_uses import Answer, command, wrong_use

import zipbrain.evaluation
from zipbrain.recipe import Recipe


def compare(**options: Any) -> None:
    zipbrain.evaluation.compare(small.model(), small.windows(), **{"latency": False, "device": "cpu", **options})


def on_toy(name: str, folder: Path, *options: str) -> Answer:
    model, data = small.checkpoint(folder / "model"), small.prepared(folder / "data")
    return command(name, model, "--data", data, "--device", "cpu", "--out", folder / "results", *options)


@wrong_use("compare with a time budget of no seconds")
def no_budget(folder: Path) -> None:
    compare(time_budget=0)


@wrong_use("ask for more answers than there are")
def agree_in_percent(folder: Path) -> None:
    compare(agree=95)


@wrong_use("ablate at several ratios at once")
def several_ratios(folder: Path) -> Answer:
    return on_toy("ablate", folder, "--ratios", "0.4,0.8")


@wrong_use("compare with --time-budget nan")
def budget_that_is_no_number(folder: Path) -> Answer:
    return on_toy("compare", folder, "--time-budget", "nan")


@wrong_use("profile with zero threads")
def no_threads(folder: Path) -> Answer:
    return command("profile", "--model", "biot", "--threads", "0")


@wrong_use("compare a model by the recipe of another one")
def recipe_of_another(folder: Path) -> None:
    compare(setting=Recipe({"name": "zipbrain"}, {"name": "maximum"}, model="LaBraM"))


@wrong_use("a recipe for rows that leave ZIPBrain out")
def recipe_without_its_row(folder: Path) -> None:
    compare(methods=["tome"], setting=Recipe({"name": "zipbrain"}, {"name": "maximum"}, model="BIOT"))


@wrong_use("search several ratios without a target")
def ratios_without_target(folder: Path) -> Answer:
    return on_toy("search", folder, "--ratios", "0.4,0.8")
