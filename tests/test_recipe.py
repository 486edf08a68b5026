"""Recipes: their file, what their key tells apart, and compressing a model with one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zipbrain
from zipbrain import Recipe, recipe
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, TFM, LaBraM, TFMEncoder
from zipbrain.pooling import methods
from zipbrain.pooling.registry import Part, build, names
from zipbrain.pooling.schedule import LinearSchedule
from zipbrain.seams.compress import describe

METHOD = {"name": "zipbrain", "z1": "x", "z2": "v", "z3": "x", "rho": 0.4}
SCHEDULE = {"name": "ratio", "ratio": 0.8}
MASS = {"attention": False, "merge": False, "readout": False}


def made(**changes: Any) -> Recipe:
    return Recipe(**{"method": METHOD, "schedule": SCHEDULE, "mass": MASS, **changes})


def full() -> Recipe:
    where = {"model": "LaBraM", "layers": (2, 4), "protected": (1, 0), "tokens": 9, "within": "blocks"}
    chosen = {"dataset": "TUAB", "split": "val", "metric": "balanced_accuracy", "score": 0.81}
    return made(**where, **chosen, versions={"zipbrain": "0.1.0"})


def labram() -> LaBraM:
    torch.manual_seed(0)
    return LaBraM(2, ["C3", "C4", "O1"], 600).eval()


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [made(), full()], ids=["least", "full"])
def test_a_recipe_survives_its_file(one: Recipe, tmp_path: Path) -> None:
    path = one.save(tmp_path / "new folder" / "recipe.json")
    again = Recipe.load(path)
    assert again == one
    assert hash(again) == hash(one)
    assert again.key() == one.key()
    assert json.loads(path.read_text())["format"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["recipe.json"]
    assert Recipe.load(str(path)) == pickle.loads(pickle.dumps(one))


def test_what_a_file_does_not_say_is_not_invented() -> None:
    read = Recipe.from_dict({"method": METHOD, "schedule": SCHEDULE})
    assert read.versions == {}
    assert made().versions == {"zipbrain": zipbrain.__version__}
    assert read.mass == MASS
    assert read.options() == {
        "schedule": SCHEDULE, "layers": None, "protected": None, "tokens": None, "within": None, "axis": None,
        "mass": MASS, "second_look": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"format": 1, "method": {"na', "damaged or not JSON"),
        (b"\xff\xfe\x00", "damaged or not JSON"),
        ("[1, 2]", "must be an object"),
        ({"format": 2}, "newer zipbrain wrote it"),
        ({"format": "1"}, "recipe.format: got '1'"),
        ({"format": True}, "recipe.format: got True"),
        ({"method": None}, "no method"),
        ({"schedule": None}, "no schedule"),
        ({"methods": METHOD}, "got 'methods', but its keys are method, schedule"),
        ({"method": "zipbrain"}, "an object with a name"),
        ({"method": {"z1": "x"}}, "an object with a name"),
        ({"method": {"name": 3}}, "an object with a name"),
        ({"method": {**METHOD, "z2": "w"}}, "method.z2: got 'w', but a space is one of"),
        ({"method": {**METHOD, "rho": "much"}}, "method.rho: got 'much'"),
        ({"method": {"name": "composition", "match": None}}, "method.match: got None"),
        ({"schedule": [3, 2]}, "schedule: got"),
        ({"mass": {"attention": 1}}, "mass: got"),
        ({"mass": {"everywhere": True}}, "mass: got"),
        ({"layers": []}, "at least one block"),
        ({"layers": [0]}, "a whole number of at least 1"),
        ({"layers": "12"}, "block numbers"),
        ({"protected": [1, 2, 3]}, "leading, trailing"),
        ({"protected": [1, -1]}, "a whole number of at least 0"),
        ({"tokens": 2.5}, "tokens: got 2.5"),
        ({"within": 3}, "within: got 3"),
        ({"model": ["LaBraM"]}, "model: got"),
        ({"score": "high"}, "score: got 'high'"),
        ({"versions": {"zipbrain": 1}}, "versions: got"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    if isinstance(content, dict):
        content = json.dumps({**made().to_dict(), **content})
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OptionError) as refusal:
        Recipe.load(path)
    text = str(refusal.value)
    assert said in text
    assert "r.json" in text
    assert "\n" not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing\.json'.*No such file"):
        Recipe.load(tmp_path / "nothing.json")
    with pytest.raises(OptionError, match="recipe: got 3, but it must be a Recipe or the path"):
        Recipe.load(3)  # type: ignore[arg-type]


def test_a_recipe_that_an_editor_gave_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = made().save(tmp_path / "r.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Recipe.load(path) == made()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    os.mkfifo(path)
    keeper = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # so that a reader would wait for text, not for a writer
    try:
        os.write(keeper, b"x" * 4096)
        with pytest.raises(OptionError, match=r"r\.json'.*no regular file"):
            Recipe.load(path)
    finally:
        os.close(keeper)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made().save(tmp_path / "recipe.json")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        full().save(path)
    assert Recipe.load(path) == made()
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.json"]


def test_a_recipe_needs_no_torch_and_no_numpy() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from zipbrain import Recipe\n"
        "print(Recipe({'name': 'ToFU'}, {'name': 'maximum'}).method)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "{'name': 'tofu'}"


# -- equality and key --------------------------------------------------------------------------------------------------


def test_a_recipe_is_frozen_and_independent_of_what_it_was_made_from() -> None:
    form = {**METHOD, "z1": "k"}
    one = made(method=form)
    form["z1"] = "q"
    one.options()["schedule"]["ratio"] = 0.1
    one.to_dict()["method"]["z1"] = "v"
    assert one == made(method={**METHOD, "z1": "k"})
    with pytest.raises(FrozenInstanceError):
        one.model = "BIOT"  # type: ignore[misc]
    assert len({made(), made(), full()}) == 2


def test_spellings_are_resolved_when_a_recipe_is_made() -> None:
    one = made(method={"name": "ZIPBrain", "z1": "Xhat", "z2": "VS", "z3": "x", "rho": "0.4"}, model="labram-base")
    assert one == made(model="LaBraM")
    assert made(model="TFM").model == "TFM-Tokenizer"
    assert made(dataset="eareeg").dataset == "EarEEG"
    assert made(model="REVE", dataset="Sleep-EDF").model == "REVE"
    assert made(method={"name": "composition", "merge": "Mean"}).method["merge"] == {"name": "mean"}


def test_numpy_numbers_and_tuples_become_plain_ones() -> None:
    schedule = {"name": "per_layer", "r": tuple(np.array([3, 2]))}
    one = made(schedule=schedule, tokens=np.int64(9), layers=np.array([4, 2, 2]), score=np.float32(0.5), protected=1)
    assert one == made(
        schedule={"name": "per_layer", "r": [3, 2]}, tokens=9, layers=[2, 4], score=0.5, protected=[1, 0]
    )
    assert Recipe.from_dict(json.loads(json.dumps(one.to_dict()))) == one


SAME = {
    "provenance": (full(), replace(full(), model=None, dataset=None, split=None, metric=None, score=None, versions={})),
    "defaults": (made(method={"name": "zip"}), made(method=methods.ZIPBrain().to_dict())),
    "defaults of parts": (made(method={"name": "composition"}), made(method=methods.Composition().to_dict())),
    "z2 at rho 1": (made(method={**METHOD, "rho": 1}), made(method={**METHOD, "rho": 1.0, "z2": "kh"})),
    "merge of dropped tokens": (
        made(method={"name": "composition", "match": "drop", "merge": "mean"}),
        made(method={"name": "composition", "match": {"name": "drop"}}),
    ),
    "mass that ToMe has": (made(method={"name": "ToMe"}), made(method={"name": "tome"}, mass={"merge": True})),
    "whole and decimal": (
        made(schedule={"name": "ratio", "ratio": 1}),
        made(schedule={"name": "ratio", "ratio": 1.0}),
    ),
    "layers after the list": (
        made(schedule={"name": "per_layer", "r": [3, 0]}),
        made(schedule={"name": "per_layer", "r": [3]}),
    ),
    "order of layers": (made(layers=(4, 2)), made(layers=(2, 4))),
}
OTHER = {
    "space": (made(), made(method={**METHOD, "z2": "k"})),
    "rho": (made(), made(method={**METHOD, "rho": 0.5})),
    "z1 at rho 1": (made(method={**METHOD, "rho": 1}), made(method={**METHOD, "rho": 1, "z1": "k"})),
    "z2 of regular pivots": tuple(
        made(method={"name": "composition", "split": {"name": "regular_pivots", "rho": 1, "z2": z2}}) for z2 in "xk"
    ),
    "ratio": (made(), made(schedule={"name": "ratio", "ratio": 0.9})),
    "mass": (made(), made(mass={"readout": True})),
    "readout of ToMe": (made(method={"name": "tome"}), made(method={"name": "tome"}, mass={"readout": True})),
    "layers": (made(), made(layers=(2,))),
    "tokens": (made(), made(tokens=9)),
    "protected": (made(), made(protected=2)),
    "second look": (made(second_look=0.5), made(second_look=0.25)),
    "no second look": (made(), made(second_look=0)),
}


@pytest.mark.parametrize("case", SAME)
def test_recipes_with_the_same_effect_have_the_same_key(case: str) -> None:
    one, other = SAME[case]
    assert one.key() == other.key()
    assert json.loads(one.key())


@pytest.mark.parametrize("case", OTHER)
def test_recipes_with_another_effect_have_another_key(case: str) -> None:
    one, other = OTHER[case]
    assert one.key() != other.key()


def test_the_key_knows_the_defaults_of_every_registered_part() -> None:
    ours = [
        name for name in names(Part) if name not in ("allocation", "constant", "flops_budget", "per_layer", "ratio")
    ]
    for name in ours:
        part = LinearSchedule(3) if name == "linear" else build(name)
        if not type(part).__module__.startswith("zipbrain."):
            continue
        written = part.to_dict()
        short = {"name": name, "r": 3} if name == "linear" else {"name": name}
        if name == "first_tokens":  # made by FreeSlicing for a call, never written
            continue
        assert made(method=short).key() == made(method=written).key(), name
        assert {*recipe._DEFAULTS.get(name, {})} <= {*written}, name


@pytest.mark.parametrize("case", ["z2 at rho 1", "merge of dropped tokens", "mass that ToMe has", "defaults"])
def test_what_has_the_same_key_gives_the_same_answer(case: str) -> None:
    x = torch.randn(4, 3, 600, generator=torch.Generator().manual_seed(1))
    answers = [zipbrain.compress(labram(), one)(x) for one in SAME[case]]
    assert torch.equal(*answers)


# -- compressing with one ----------------------------------------------------------------------------------------------


def test_compress_takes_a_recipe_a_path_and_a_string(tmp_path: Path) -> None:
    one = made(model="LaBraM", layers=(2, 4, 6), tokens=9, mass=True)
    path = one.save(tmp_path / "my.json")
    plain = zipbrain.compress(labram(), METHOD, ratio=0.8, layers=[2, 4, 6], tokens=9, mass=True)
    x = torch.randn(2, 3, 600)
    for given in (one, path, str(path)):
        model = zipbrain.compress(labram(), given)
        assert describe(model) == describe(plain)
        assert torch.equal(model(x), plain(x))
    assert Recipe(**describe(plain)).key() == Recipe(**describe(zipbrain.compress(labram(), one))).key()


def test_what_the_caller_gives_counts_more_than_the_recipe() -> None:
    one = made(layers=(2, 4), protected=(1, 0), tokens=9, mass=True)
    told = describe(zipbrain.compress(labram(), one, ratio="max", layers=[3], protected=(2, 0), tokens=7, mass=False))
    assert told["schedule"] == {"name": "maximum"}
    assert told["layers"] == [3]
    assert told["protected"] == [2, 0]
    assert told["tokens"] == 7
    assert told["mass"] == MASS
    assert describe(zipbrain.compress(labram(), one, r=1))["schedule"] == {"name": "constant", "r": 1}
    assert describe(zipbrain.compress(labram(), one, example=torch.randn(1, 3, 400)))["tokens"] == 6
    with pytest.raises(OptionError, match="exactly one must be given"):
        zipbrain.compress(labram(), one, r=1, ratio=0.5)


def test_a_recipe_for_another_model_is_refused_and_the_model_left_alone() -> None:
    model = BIOT(3, 4, 600).eval()
    with pytest.raises(OptionError, match="a recipe for LaBraM', but the model is a BIOT") as refusal:
        zipbrain.compress(model, made(model="LaBraM"))
    assert "\n" not in str(refusal.value)
    assert not zipbrain.seams.is_compressed(model)
    zipbrain.compress(model, made())
    zipbrain.compress(TFM(2, 3, 600), made(model="tfm"))
    zipbrain.compress(TFMEncoder(2, 3, 600), made(model="tfm"))


def test_wrapped_and_derived_models_are_known_by_what_they_are_made_of() -> None:
    class Mine(LaBraM):
        pass

    zipbrain.compress(Mine(2, ["C3", "C4", "O1"], 600), made(model="LaBraM"))
    zipbrain.compress(nn.Sequential(labram()), made(model="LaBraM"))
    foreign = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 4)
    zipbrain.compress(foreign, made())
    zipbrain.compress(foreign, made(model="TransformerEncoder"))
    with pytest.raises(OptionError, match="a recipe for BIOT"):
        zipbrain.compress(foreign, made(model="biot"))


def test_a_method_nobody_knows_is_refused_when_it_is_used() -> None:
    with pytest.raises(OptionError, match="did you mean 'tome'"):
        zipbrain.compress(labram(), made(method={"name": "tomee"}))
    with pytest.raises(OptionError, match=r"recipe: got 'none\.json', but it can't be read"):
        zipbrain.compress(labram(), "none.json")


# -- options whose defaults have changed -------------------------------------------------------------------------------

CHANGED = {
    "evit": (methods.EViT(fuse=False), methods.EViT(fuse=True)),
    "tofu": (methods.ToFu(merge_from=None), methods.ToFu(merge_from=1)),
    "twins": (methods.Twins(trimmed=False), methods.Twins()),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_file_without_an_option_means_what_it_meant_when_it_was_written(name: str, tmp_path: Path) -> None:
    before, now = CHANGED[name]
    path = tmp_path / "old.json"
    for spelling in (name, name.upper()):
        path.write_text(json.dumps({"format": 1, "method": {"name": spelling}, "schedule": {"name": "maximum"}}))
        old = Recipe.load(path)
        assert methods.as_method(old.method) == before
        assert Recipe.load(old.save(tmp_path / "again.json")) == old
    new = made(method={"name": name})
    assert methods.as_method(new.method) == now == methods.as_method(name)
    assert new.method == {"name": name}
    assert methods.as_method(Recipe.load(new.save(path)).method) == now
    assert Recipe.load(path) == new
    assert Recipe.load(path).key() == new.key() != made(method=before.to_dict()).key()


def test_a_recipe_equals_nothing_but_a_recipe() -> None:
    assert made() != made().to_dict()
    assert made() == made()
