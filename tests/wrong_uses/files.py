"""Files that were damaged, changed or made to take a machine's time and memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tests.edge import tiny_onnx
from tests.wrong_uses import Answer, command, wrong_use

import zipbrain
from zipbrain.edge import EdgeModel, Limits
from zipbrain.evaluation.store import Store
from zipbrain.models import BIOT
from zipbrain.training.checkpoints import load_checkpoint, save_checkpoint


def _saved(folder: Path) -> Path:
    return zipbrain.save_pretrained(BIOT(2, 3, 400, dim=16, heads=2, depth=2), folder / "model")


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


@wrong_use("a recipe with a number of a billion digits")
def huge_number(folder: Path) -> None:
    recipe = {"method": {"name": "zipbrain", "rho": "1e999999999"}, "schedule": {"name": "ratio", "ratio": 0.8}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    zipbrain.Recipe.load(folder / "recipe.json")


@wrong_use("a recipe that was cut off")
def half_recipe(folder: Path) -> None:
    (folder / "recipe.json").write_text('{"method": {"name": "zip')
    zipbrain.Recipe.load(folder / "recipe.json")


@wrong_use("a method where a merge rule belongs")
def method_as_merge(folder: Path) -> None:
    zipbrain.ZIPBrain(merge=zipbrain.ToMe())  # type: ignore[arg-type]


@wrong_use("a saved model that asks for a billion blocks")
def huge_depth(folder: Path) -> None:
    path = _saved(folder) / "config.json"
    path.write_text(path.read_text().replace('"depth": 2', '"depth": 1000000000'))
    zipbrain.from_pretrained(folder / "model")


@wrong_use("a saved model of a run that diverged")
def weights_of_nan(folder: Path) -> None:
    path = _saved(folder) / "model.safetensors"
    save_file({name: value * torch.nan for name, value in load_file(path).items()}, path)
    zipbrain.from_pretrained(folder / "model")


@wrong_use("a saved model of which one bit was turned")
def flipped_weights(folder: Path) -> None:
    _flip(_saved(folder) / "model.safetensors", -100)
    zipbrain.from_pretrained(folder / "model")


@wrong_use("a checkpoint of which one bit was turned")
def flipped_checkpoint(folder: Path) -> None:
    save_checkpoint(folder, 1, {"a": torch.ones(9)}, None, {"epoch": 1})
    _flip(folder / "checkpoints" / "epoch-00001" / "state.pt", 300)
    load_checkpoint(folder)


@wrong_use("an exported file whose classes were renamed in it")
def changed_description(folder: Path) -> None:
    path = tiny_onnx.save(folder / "model.onnx")
    path.write_bytes(path.read_bytes().replace(b'"rest"', b'"vest"'))
    EdgeModel(path)


@wrong_use("an exported file with an endless loop")
def endless_loop(folder: Path) -> None:
    path = tiny_onnx.looping(folder / "model.onnx", 2**62)
    EdgeModel(path, limits=Limits(seconds=0.2)).logits(np.ones((1, 16, 800)))


@wrong_use("a negative limit of time")
def negative_limit(folder: Path) -> Answer:
    return command("predict", folder / "night.edf", "--model", folder / "model.onnx", "--time-limit", -1)


@wrong_use("a store of results of which two lines are damaged")
def damaged_store(folder: Path) -> str:
    store = Store(folder)
    for key in "abc":
        store.add({"key": key})
    lines = store.path.read_text().splitlines()
    store.path.write_text("\n".join([lines[0], "<<<<", lines[1][:9], lines[2]]) + "\n")
    return " ".join(Store(folder).remarks)
