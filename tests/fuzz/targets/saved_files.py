"""Recipes, saved models, checkpoints of a run and stores of results: each is read, and used where it was taken."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from tests.fuzz.harness import Target
from tests.fuzz.json_mutations import change_json
from tests.fuzz.mutations import change_bytes

import zipbrain
from zipbrain import Recipe
from zipbrain.evaluation.report.html import html_page
from zipbrain.evaluation.report.write import build
from zipbrain.evaluation.result import results_of
from zipbrain.evaluation.store import Store
from zipbrain.models import BIOT, LaBraM, Task, create
from zipbrain.paper import COMPARED
from zipbrain.training.checkpoints import load_checkpoint, save_checkpoint

torch.set_num_threads(1)

_RECIPES: tuple[dict[str, Any], ...] = (
    {
        "format": 1, "method": {"name": "zipbrain", "z1": "x", "z2": "v", "z3": "kh", "rho": 0.4, "merge": "mean"},
        "schedule": {"name": "ratio", "ratio": 0.5}, "mass": {"attention": True, "merge": True, "readout": False},
        "model": "BIOT", "layers": [1, 2], "protected": [0, 0], "tokens": 12, "within": "blocks", "dataset": "TUAB",
        "split": "val", "metric": "auroc", "score": 0.875, "versions": {"zipbrain": "0.1.0"},
    },
    {
        "method": {"name": "composition", "split": {"name": "regular_pivots", "rho": "1/3"},
                   "match": {"name": "random_match", "seed": 3}, "merge": {"name": "mean"}},
        "schedule": {"name": "per_layer", "r": [3, 2]}, "mass": True,
    },
    {"method": {"name": "dart", "pivots": 4}, "schedule": {"name": "linear", "r": 3, "inflect": 0.5}},
    {"method": {"name": "tome"}, "schedule": {"name": "flops_budget", "share": 0.8}},
    {"method": {"name": "evit", "fuse": True}, "schedule": {"name": "constant", "r": 2}},
    {"method": {"name": "twins"}, "schedule": {"name": "maximum"}},
)  # fmt: skip
_PARTS = (*COMPARED, "free_slicing", "composition", "pivots", "mean", "drop", "ratio", "maximum", "per_layer",
          "x", "kh", "labram", "BIOT", "2/3", 0.3, [4, 2])  # fmt: skip


def _small() -> BIOT:
    torch.manual_seed(0)
    return BIOT(2, 3, 400, dim=16, heads=2, depth=2)


def use_recipe(path: Path) -> None:
    recipe = Recipe.load(path)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe.key() == Recipe.from_dict(recipe.to_dict()).key()
    model = zipbrain.compress(_small().eval(), recipe)
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 400)).shape == (1, 2)


RECIPE = Target(
    lambda: json.dumps(_RECIPES[0]).encode(), lambda rng: change_json(rng.choice(_RECIPES), rng, _PARTS), use_recipe,
    1500, ".json",
)  # fmt: skip


@cache
def _saved(kind: str) -> Path:
    """A saved model, kept until this process ends."""
    home = Path(tempfile.mkdtemp(prefix="zipbrain-fuzz-saved-"))
    model = _small() if kind == "biot" else LaBraM(2, ["C3", "C4"], 400)
    task = Task(("rest", "task"), "tuab", ("C3", "C4", "O1"), 200.0, "hundred")
    return zipbrain.save_pretrained(model, home / kind, task=task)


def use_saved(path: Path, name: str) -> None:
    folder = path.parent / "model"
    shutil.copytree(_saved("biot"), folder)
    shutil.move(path, folder / name)
    model = zipbrain.from_pretrained(folder)
    n_chans = model.config["n_chans"]
    with torch.no_grad():
        assert torch.isfinite(model(torch.zeros(1, n_chans, 400))).all()


def _config() -> bytes:
    return (_saved("biot") / "config.json").read_bytes()


def _weights() -> bytes:
    return (_saved("biot") / "model.safetensors").read_bytes()


_OPTIONS = ("biot", "labram", "eegpt", "tfm", ["C3", "C4"], "base", "huge", "probe", 200, 400, 1001, 10**12)
CONFIG = Target(
    _config, lambda rng: change_json(json.loads(_config()), rng, _OPTIONS),
    lambda path: use_saved(path, "config.json"), 1500,
)  # fmt: skip
WEIGHTS = Target(
    _weights, lambda rng: change_bytes(_weights(), rng), lambda path: use_saved(path, "model.safetensors"), 500
)


@cache
def _run() -> Path:
    """The checkpoint of a run, kept until this process ends."""
    home = Path(tempfile.mkdtemp(prefix="zipbrain-fuzz-run-"))
    network = create("biot", n_outputs=2, n_chans=3, n_times=400, dim=16, heads=2, depth=2)
    optimiser = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 3, 400)).sum().backward()
    optimiser.step()
    state = {"epoch": 3, "optimiser": optimiser.state_dict(), "rng": torch.get_rng_state(), "outcome": {"a": [1.0]}}
    save_checkpoint(home, 3, network.state_dict(), None, state)
    return home


def _state() -> bytes:
    return (_run() / "checkpoints" / "epoch-00003" / "state.pt").read_bytes()


def use_state(path: Path) -> None:
    """Only the unchanged state is taken; without hashes, a damaged one is refused or has its parts."""
    folder, content = path.parent / "run", path.read_bytes()
    shutil.copytree(_run(), folder)
    place = folder / "checkpoints" / "epoch-00003"
    (place / "state.pt").write_bytes(content)
    if len(content) % 2:  # as checkpoints were before they had hashes
        (place / "sha256.json").unlink()
        load_checkpoint(folder)
        return
    load_checkpoint(folder)
    assert content == _state(), "a changed state was taken"


STATE = Target(_state, lambda rng: change_bytes(_state(), rng), use_state, 1000)


def _record(number: int) -> dict[str, Any]:
    return {
        "format": 1, "key": f"compare:{number}", "kind": "compare", "label": "ZIPBrain", "ratio": 0.4,
        "task": {"model": "BIOT", "dataset": "TUAB", "split": "test", "windows": 40, "subjects": 4, "checkpoint": "a",
                 "classes": ["rest", "task"], "weights_sha256": "ab", "data_sha256": "cd"},
        "recipe": _RECIPES[0], "scores": {"balanced_accuracy": 0.8, "auroc": None}, "confusion": [[10, 2], [3, 25]],
        "intervals": {"balanced_accuracy": [0.7, 0.9]}, "token_counts": [12, 9, 6], "removed": 0.5, "agreement": 0.9,
        "logit_error": 0.1, "seconds": 1.5, "extra": {"mass": False, "remarks": []},
    }  # fmt: skip


def _lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def change_store(rng: Random) -> bytes:
    """Lines changed as JSON or as bytes, between whole ones."""
    lines = [_lines([_record(number)]) for number in range(3)]
    place = rng.randrange(3)
    lines[place] = change_json(_record(place), rng) + b"\n" if rng.random() < 0.8 else change_bytes(lines[place], rng)
    return b"".join(lines)


def use_store(path: Path) -> None:
    shutil.move(path, path.with_name("results.jsonl"))
    store = Store(path.parent)
    found, left_out = results_of(store.records())
    assert found or left_out or store.remarks
    if store.path.stat().st_size % 10 == 0:  # drawing it takes a second
        assert html_page(build(found, [*store.remarks, *left_out])).count("<script") == 1  # our own
    store.add({"key": "another"})
    assert store.get("another") is not None


STORE = Target(lambda: _lines([_record(n) for n in range(3)]), change_store, use_store, 1000)
