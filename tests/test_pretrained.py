"""Saving and loading a model, compressed or not, and what happens when a file is missing or broken."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import zipbrain
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, TFM, CBraMod, LaBraM, Task, task_of
from zipbrain.pooling.schedule import FlopsBudget
from zipbrain.seams.compress import describe

MODELS = {
    "labram": lambda: LaBraM(2, ["C3", "C4", "O1"], 600),
    "biot": lambda: BIOT(3, 4, 600),
    "tfm": lambda: TFM(2, 3, 600),
    "cbramod": lambda: CBraMod(2, 3, 600, depth=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_model_comes_back_bit_equal(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    x = torch.randn(2, len(model.config.get("ch_names", [])) or model.config["n_chans"], 600)
    again = zipbrain.from_pretrained(zipbrain.save_pretrained(model, tmp_path / "m"))
    assert type(again) is type(model)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"method": zipbrain.ZIPBrain("kh", "v", "x", 0.3), "ratio": 0.8},
        {"method": "tome", "ratio": "max", "layers": [2, 4, 6]},
        {"method": zipbrain.EViT(fuse=True), "r": [3, 2], "tokens": 9},
        {"method": zipbrain.ablations(seed=5)["random matching"], "schedule": FlopsBudget(0.8)},
    ],
)
def test_a_compressed_model_comes_back_compressed(options: dict[str, object], mass: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(MODELS["labram"]().eval(), **options, mass=mass)
    again = zipbrain.from_pretrained(zipbrain.save_pretrained(model, tmp_path))
    x = torch.randn(2, 3, 600)
    with zipbrain.trace(model) as one, zipbrain.trace(again) as other:
        assert torch.equal(model(x), again(x))
    assert one.token_counts == other.token_counts
    zipbrain.save_pretrained(zipbrain.restore(model), tmp_path)  # an older recipe must not stay behind
    assert not (tmp_path / "recipe.json").exists()


def test_a_recipe_is_saved_with_what_it_was_chosen_on(tmp_path: Path) -> None:
    about = {"dataset": "TUAB", "split": "val", "metric": "auroc", "score": 0.875, "versions": {"zipbrain": "0.0.1"}}
    recipe = zipbrain.Recipe({"name": "zipbrain", "z2": "v"}, {"name": "ratio", "ratio": 0.5}, **about)
    model = zipbrain.compress(MODELS["biot"]().eval(), recipe)
    zipbrain.save_pretrained(model, tmp_path / "one")
    again = zipbrain.from_pretrained(tmp_path / "one")
    zipbrain.save_pretrained(again, tmp_path / "two")
    for folder in ("one", "two"):
        saved = zipbrain.Recipe.load(tmp_path / folder / "recipe.json")
        assert {name: getattr(saved, name) for name in about} == about
        assert saved.model == "BIOT"
        assert describe(zipbrain.compress(MODELS["biot"](), saved)) == describe(model)


@pytest.mark.parametrize(
    "more", [{"ratio": 0.25}, {"layers": [1]}, {"mass": False}, {"tokens": 20}, {"protected": 1}], ids=str
)
def test_a_recipe_that_was_changed_does_not_claim_the_score(more: dict[str, object], tmp_path: Path) -> None:
    recipe = zipbrain.Recipe({"name": "zipbrain"}, {"name": "ratio", "ratio": 0.5}, dataset="TUAB", score=0.875)
    zipbrain.save_pretrained(zipbrain.compress(MODELS["biot"](), recipe, **more), tmp_path)
    saved = zipbrain.Recipe.load(tmp_path / "recipe.json")
    assert saved.score is saved.dataset is None
    assert saved.versions == {"zipbrain": zipbrain.__version__}


@pytest.mark.parametrize(
    "broken", ["no folder", "no config", "no weights", "cut weights", "half config", "no text", "other sizes"]
)
def test_a_broken_folder_is_refused_in_one_line(broken: str, tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path / "m")
    weights, config = folder / "model.safetensors", folder / "config.json"
    if broken == "no folder":
        folder = tmp_path / "nothing here"
    elif broken == "no config":
        config.unlink()
    elif broken == "no weights":
        weights.unlink()
    elif broken == "cut weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif broken == "half config":
        config.write_text(config.read_text()[:40])
    elif broken == "no text":
        config.write_bytes(b"\xff\xfe{")
    else:
        content = json.loads(config.read_text())
        content["options"]["n_outputs"] = 9
        config.write_text(json.dumps(content))
    with pytest.raises(OptionError, match="source: got") as refusal:
        zipbrain.from_pretrained(folder)
    assert "\n" not in str(refusal.value)


def changed(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """The same folder with other weights of the head, as another program would write them."""
    state = load_file(folder / "model.safetensors")
    state["head.weight"] = change(state["head.weight"]).contiguous()
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value * torch.nan, "head.weight.*NaN"),
        (lambda value: value.index_fill(0, torch.tensor([1]), torch.inf), "head.weight.*infinite"),
        (lambda value: value > 0, "head.weight torch.bool.*needs torch.float32"),
        (lambda value: value.to(torch.complex64), "head.weight.*complex"),
        (lambda value: value.to(torch.int32), "head.weight torch.int32"),
    ],
)
def test_weights_that_are_none_are_refused(
    change: Callable[[torch.Tensor], torch.Tensor], said: str, tmp_path: Path
) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    zipbrain.from_pretrained(changed(folder, lambda value: value + 1))  # without a hash nothing is wrong with them
    with pytest.raises(OptionError, match=said):
        zipbrain.from_pretrained(changed(folder, change))


def test_one_flipped_bit_of_the_weights_is_found(tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1000] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(OptionError, match=r"model\.safetensors can't be used: it is not what was saved"):
        zipbrain.from_pretrained(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 10**18},
        {"depth": 2.5},
        {"depth": -1},
        {"dim": 10**9},
        {"dim": 10**300},
        {"heads": 7},
        {"heads": 0},
        {"n_chans": 10**12},
        {"n_outputs": 2**40},
        {"dropout": 2},
        {"dropout": "much"},
        {"depth": [[[]]]},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_changed_config_takes_no_memory_and_no_time(options: dict[str, Any], tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["options"] |= options
    (folder / "config.json").write_text(json.dumps(content))
    begin = time.perf_counter()
    with pytest.raises(OptionError, match="source: got") as refusal:
        zipbrain.from_pretrained(folder)
    assert time.perf_counter() - begin < 2
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["[" * 900, "[]", "null", '{"model": []}', '{"model": "biot", "options": 3}', "1e999"])
def test_a_config_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(OptionError, match=r"config\.json can't be used"):
        zipbrain.from_pretrained(folder)


def test_a_failed_save_leaves_the_old_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_only_our_own_models_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="model: got 'Linear'"):
        zipbrain.save_pretrained(torch.nn.Linear(2, 2), tmp_path)


def test_the_stored_recipe_is_a_recipe_and_older_ones_are_read(tmp_path: Path) -> None:
    model = zipbrain.compress(MODELS["labram"]().eval(), zipbrain.ZIPBrain("k", "v", "x", 0.3), ratio=0.8)
    path = zipbrain.save_pretrained(model, tmp_path) / "recipe.json"
    stored = zipbrain.Recipe.load(path)
    assert stored == zipbrain.Recipe(**describe(model), model="LaBraM")
    path.write_text(json.dumps(describe(model)))  # as it was written before recipes had a format
    assert describe(zipbrain.from_pretrained(tmp_path)) == describe(model)
    path.write_text(path.read_text()[:50])
    with pytest.raises(OptionError, match=r"recipe\.json', but it is damaged"):
        zipbrain.from_pretrained(tmp_path)


def test_a_given_recipe_replaces_the_stored_one(tmp_path: Path) -> None:
    model = zipbrain.compress(MODELS["biot"]().eval(), "tome", ratio=0.5)
    folder = zipbrain.save_pretrained(model, tmp_path / "m")
    other = zipbrain.Recipe({"name": "zipbrain"}, {"name": "maximum"}, model="BIOT")
    for given in (other, other.save(tmp_path / "other.json"), str(tmp_path / "other.json")):
        assert describe(zipbrain.from_pretrained(folder, recipe=given))["schedule"] == {"name": "maximum"}
    assert describe(zipbrain.from_pretrained(folder))["method"]["name"] == "tome"
    (folder / "recipe.json").write_text("{")  # not even looked at
    assert describe(zipbrain.from_pretrained(folder, other))["method"]["name"] == "zipbrain"
    with pytest.raises(OptionError, match="a recipe for LaBraM"):
        zipbrain.from_pretrained(folder, zipbrain.Recipe({"name": "tome"}, {"name": "maximum"}, model="LaBraM"))


def test_what_a_model_was_trained_for_stays_with_it(tmp_path: Path) -> None:
    task = Task(("rest", "arithmetic"), "eegmat", ("C3", "C4", "O1"), 200.0, "hundred")
    model = MODELS["labram"]()
    zipbrain.save_pretrained(model, tmp_path / "unknown")
    assert task_of(zipbrain.from_pretrained(tmp_path / "unknown")) is None
    assert "task" not in json.loads((tmp_path / "unknown" / "config.json").read_text())
    zipbrain.save_pretrained(model, tmp_path / "one", task=task)
    again = zipbrain.from_pretrained(tmp_path / "one")
    assert task_of(again) == task
    assert again.state_dict().keys() == model.state_dict().keys()
    zipbrain.save_pretrained(zipbrain.compress(again, "tome", ratio=0.5), tmp_path / "two")
    assert task_of(copy.deepcopy(zipbrain.from_pretrained(tmp_path / "two"))) == task


@pytest.mark.parametrize("broken", [[], {}, {"classes": "rest"}, {"classes": [1, 2]}, {"classes": ["a"], "sfreq": "x"}])
def test_a_task_that_can_not_be_read_is_refused(broken: object, tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["labram"](), tmp_path)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"task": broken}))
    with pytest.raises(OptionError, match=r"its config\.json can't be used"):
        zipbrain.from_pretrained(folder)


def test_a_derived_class_comes_back_compressed(tmp_path: Path) -> None:
    class Mine(BIOT):
        pass

    model = zipbrain.compress(Mine(3, 4, 600), "zipbrain", ratio=0.5)
    assert describe(zipbrain.from_pretrained(zipbrain.save_pretrained(model, tmp_path))) == describe(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_not_saved(value: float, tmp_path: Path) -> None:
    model = MODELS["biot"]()
    with torch.no_grad():
        model.head.bias[0] = value
    with pytest.raises(OptionError, match=r"model: got 'head\.bias'.*NaN or infinite"):
        zipbrain.save_pretrained(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_what_is_no_folder_of_a_model_is_named(tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path / "run" / "model")
    with pytest.raises(OptionError, match=f"source: got .*give the folder, {folder}"):
        zipbrain.from_pretrained(folder / "model.safetensors")
    with pytest.raises(OptionError, match=f"source: got .*{folder}"):
        zipbrain.from_pretrained(folder.parent)
    with pytest.raises(OptionError, match="source: got None"):
        zipbrain.from_pretrained(None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="folder: got None"):
        zipbrain.save_pretrained(MODELS["biot"](), None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"folder: got .*it is a file"):
        zipbrain.save_pretrained(MODELS["biot"](), folder / "config.json")


def test_options_that_still_fit_the_weights_are_found_when_changed(tmp_path: Path) -> None:
    folder = zipbrain.save_pretrained(MODELS["biot"](), tmp_path)
    config = folder / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(dict(reversed(content.items()))))  # another order means the same
    zipbrain.from_pretrained(folder)
    content["options"]["heads"] //= 2
    config.write_text(json.dumps(content))
    with pytest.raises(OptionError, match=r"config\.json.*hash differs"):
        zipbrain.from_pretrained(folder)
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    zipbrain.from_pretrained(folder)  # files without hashes are read as before


def test_the_model_to_try_takes_any_electrodes_and_says_what_it_was_trained_for() -> None:
    from zipbrain.pretrained import example_model

    model, other = example_model(), example_model(["Fp1", "O2"], seconds=3)
    names = [name for name in model.state_dict() if name != "pos_embed"]
    assert all(torch.equal(model.state_dict()[name], other.state_dict()[name]) for name in names)
    assert other(torch.zeros(1, 2, 600)).shape == model(torch.zeros(1, 23, 1000)).shape == (1, 6)
    task = task_of(other)
    assert task is not None
    assert (task.ch_names, task.data) == (("Fp1", "O2"), "synthetic-events")
    assert not other.training
