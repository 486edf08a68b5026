"""Files that version 0.1.0 wrote are still read, and answer as they did: files.tar.xz holds one of every kind."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zipbrain
from zipbrain.cli import main
from zipbrain.data import open_prepared
from zipbrain.edge import EdgeModel
from zipbrain.evaluation import Store

ARCHIVE = Path(__file__).with_name("files.tar.xz")
with tarfile.open(ARCHIVE) as _archive:
    EXPORTED = sorted(name for name in _archive.getnames() if name.endswith(".onnx"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def expected(files: Path) -> dict[str, Any]:
    with np.load(files / "expected.npz") as stored:
        return dict(stored)


def answer(model: torch.nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(x / 100)).numpy()


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_file_of_every_method_and_precision_answers_as_before(
    name: str, files: Path, expected: dict[str, Any]
) -> None:
    # Integer products differ between processors; one step of int8 moves these logits by about 0.01.
    bound = 0.02 if "int8" in name else 2e-3 if "float16" in name else 2e-5
    found = EdgeModel(files / name, threads=1).logits(expected["x"])
    np.testing.assert_allclose(found, expected[name], rtol=bound, atol=bound)


def test_an_exported_file_still_describes_itself(files: Path) -> None:
    description = EdgeModel(files / "onnx" / "zipbrain-mass.onnx", threads=1).description
    assert tuple(description.classes) == ("fast", "slow")
    assert tuple(description.convention.ch_names) == ("C3", "C4", "O1")
    assert description.convention.window_s == 3.0


def test_a_saved_model_keeps_its_compression_and_its_answers(files: Path, expected: dict[str, Any]) -> None:
    model = zipbrain.from_pretrained(files / "saved")
    assert zipbrain.summary(model).method["name"] == "twins"
    np.testing.assert_allclose(answer(model, expected["x"]), expected["saved"], atol=2e-5)


def test_a_recipe_compresses_as_before(files: Path, expected: dict[str, Any]) -> None:
    model = zipbrain.restore(zipbrain.from_pretrained(files / "saved"))
    zipbrain.compress(model, files / "recipe.json")
    np.testing.assert_allclose(answer(model, expected["x"]), expected["recipe"], atol=2e-5)
    recipe = zipbrain.Recipe.load(files / "recipe.json")
    assert recipe.to_dict() == json.loads((files / "recipe.json").read_text())


def test_prepared_windows_are_the_same(files: Path, expected: dict[str, Any]) -> None:
    data = open_prepared(files / "prepared")
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        windows = data.split(split)
        assert (len(windows), tuple(windows.classes)) == (count, ("fast", "slow"))
        found = np.asarray(windows.take(slice(None)))[:, :, ::50]
        np.testing.assert_array_equal(found, expected[f"prepared/{split}"])


def test_stored_results_are_read_and_become_a_report(files: Path, tmp_path: Path) -> None:
    records = list(Store(files / "results").records())
    assert len(records) == 46
    assert {record["kind"] for record in records} == {"ablate", "compare", "latency"}
    assert main(["report", str(files / "results"), "--out", str(tmp_path / "report")]) == 0
    with (tmp_path / "report" / "report.csv").open(newline="") as lines:
        assert len(list(csv.DictReader(lines))) > 20


def test_a_stopped_run_goes_on_to_the_same_losses(
    files: Path, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(files / "unfinished", tmp_path / "run")
    monkeypatch.chdir(files)
    command = ["finetune", "--model", "biot", "--data", "prepared", "--resume", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    with (tmp_path / "run" / "log.csv").open(newline="") as lines:
        losses = [float(row["loss"]) for row in csv.DictReader(lines)]
    np.testing.assert_allclose(losses, expected["loss"], rtol=1e-3)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
