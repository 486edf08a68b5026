"""`export`: one file that describes itself and answers as PyTorch does, or no file at all."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import zipbrain
from deploy.tiny import CHANNELS, NAMES, biot, convention, scaled, windows
from zipbrain import ZIPBrain
from zipbrain.cli import main
from zipbrain.deploy import ExportFailed, convention_of, export
from zipbrain.deploy.graph import graphs
from zipbrain.edge import Description, EdgeModel
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, create
from zipbrain.pretrained import save_pretrained
from zipbrain.recipe import Recipe
from zipbrain.seams import is_compressed
from zipbrain.training.checkpoints import fingerprint

RECIPE = Recipe(ZIPBrain("x", "k", "v", 0.4).to_dict(), {"name": "ratio", "ratio": 0.6}, model="BIOT")
HOME = import_module("zipbrain.deploy.export")  # the package has a function of that name


@pytest.fixture(scope="module")
def model() -> BIOT:
    return biot(outputs=1)


@pytest.fixture(scope="module")
def made(model: BIOT) -> tuple[Any, Any]:
    """The two graphs of the compressed model, made once."""
    return graphs(zipbrain.compress(biot(outputs=1), RECIPE), (3, 600))


@pytest.fixture
def quick(made: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the graphs that are there."""
    monkeypatch.setattr(HOME, "graphs", lambda *given, **options: made)


def run(model: BIOT, path: Path, **options: Any) -> Any:
    return export(model, windows(), path, **{"convention": convention(), "recipe": RECIPE, **options})


def test_a_file_tells_what_it_is_and_answers_as_the_model(model: BIOT, tmp_path: Path) -> None:
    path, steps = tmp_path / "m.onnx", []
    found = run(model, path, checkpoint="runs/noise", progress=lambda *step: steps.append(step))
    assert not is_compressed(model)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert found.bytes == path.stat().st_size
    assert (steps[0][1:], steps[-1][1:]) == ((0, 4), (4, 4))
    said = Description.read(path)
    assert said == found.description
    assert (said.model, said.classes, said.corpus) == ("biot", NAMES, "noise")
    assert (said.precision, said.batch) == ("float32", None)
    assert said.convention == convention()
    assert said.recipe is not None
    assert Recipe.from_dict(said.recipe).method == RECIPE.method
    assert said.token_counts == (15, 10, 5)
    assert said.weights_sha256 == fingerprint(model.state_dict())
    assert set(said.versions) == {"zipbrain", "torch", "onnx", "onnxruntime", "opset"}
    assert said.trained_on == {"checkpoint": "runs/noise"}
    assert said.parity["windows"] == 24
    assert said.parity["error"] <= 1e-5
    assert said.parity["agreement"] == 1.0
    onnx.checker.check_model(path, full_check=True)
    with torch.no_grad():
        expected = zipbrain.compress(biot(outputs=1), RECIPE)(torch.from_numpy(scaled(windows()))).numpy()
    answers = EdgeModel(path).logits(windows().take(slice(None)))
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_an_uncompressed_model_with_a_fixed_batch(tmp_path: Path) -> None:
    model = biot(depth=1)
    found = export(model, windows(9), tmp_path / "m.onnx", convention=convention(), batch=4, classes=("a", "b"))
    said = found.description
    assert (said.batch, said.recipe, said.token_counts, said.classes) == (4, None, (15, 15), ("a", "b"))
    assert (found.parity.windows, found.parity.other_groupings) == (9, 0)
    assert EdgeModel(found.path).probabilities(windows(9).take(slice(None))).shape == (9, 2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("precision", ["float16", "int8-dynamic", "int8-static"])
def test_other_precisions_are_smaller_and_say_how_far_they_are(model: BIOT, precision: str, tmp_path: Path) -> None:
    found = run(model, tmp_path / "m.onnx", precision=precision, force=True)
    said = Description.read(found.path)
    assert said.precision == precision
    assert 1e-6 < said.parity["error"] < 0.5
    assert said.parity["agreement"] > 0.7
    assert (said.parity["other_groupings"], said.parity["margin"]) == (0, 0.0)
    assert EdgeModel(found.path).logits(windows(3).take(slice(None))).shape == (3, 1)


@pytest.mark.usefixtures("quick")
def test_a_file_that_answers_otherwise_is_not_kept(
    model: BIOT, made: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"what was there")
    wrong = onnx.ModelProto()
    wrong.CopyFrom(made[0])
    bias = next(value for value in wrong.graph.initializer if value.name.endswith("head.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
    monkeypatch.setattr(HOME, "graphs", lambda *given, **options: (wrong, made[1]))
    for force in (False, True):  # float32 has no excuse
        with pytest.raises(ExportFailed, match=r"not kept, float32 differs from PyTorch: ") as caught:
            run(model, path, force=force)
        assert "\n" not in str(caught.value)
        assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
        assert path.read_bytes() == b"what was there"


@pytest.mark.usefixtures("quick")
def test_int8_that_decides_otherwise_is_refused_without_force(
    model: BIOT, made: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    coarse = onnx.ModelProto()
    coarse.CopyFrom(made[0])
    bias = next(value for value in coarse.graph.initializer if value.name.endswith("head.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 100, bias.name))
    monkeypatch.setattr(HOME, "to_int8", lambda *given: coarse)
    with pytest.raises(ExportFailed, match=r"decisions agree on \d\d\.\d% of 24 windows, 98% are asked for.*--force"):
        run(model, path, precision="int8-dynamic")
    assert list(tmp_path.iterdir()) == []
    kept = run(model, path, precision="int8-dynamic", force=True)
    assert kept.parity.faults
    assert Description.read(path).parity["faults"] == list(kept.parity.faults)


def test_what_was_asked_wrong_is_refused_before_any_work(model: BIOT, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"precision": "int4"}, "precision"),
        ({"batch": 0}, "batch"),
        ({"quantiser": "nncf"}, "quantiser"),
        ({"opset": 11}, "opset"),
        ({"classes": ("a", "b", "c")}, "classes"),
        ({"convention": convention(sfreq=256.0)}, "convention"),
        ({"convention": convention(ch_names=CHANNELS[::-1])}, "convention"),
        ({"recipe": tmp_path / "none.json"}, "recipe"),
    ]
    for options, name in wrong:
        with pytest.raises(OptionError, match=name):
            run(model, path, **options)
    with pytest.raises(OptionError, match="folder that is there"):
        run(model, tmp_path / "no" / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_channels_that_a_convention_leaves_open_are_those_of_the_windows(model: BIOT) -> None:
    found = HOME._fitting(convention(montage=(), ch_names=()), windows())
    assert (found.montage, found.ch_names) == (convention().montage, CHANNELS)
    own = convention_of(model, windows())
    assert (own.n_times, own.sfreq, own.cut_sfreq, own.band, own.scaling) == (600, 200.0, 200.0, None, "q95")
    assert own.montage == convention().montage


def test_the_command_writes_a_file_and_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = create("biot", n_outputs=6, n_chans=16, n_times=1000, dim=16, heads=2, depth=1)
    save_pretrained(model, tmp_path / "model")
    path = tmp_path / "m.onnx"
    command = ["export", str(tmp_path / "model"), "--data", "synthetic-events", "-o", str(path), "--limit", "12"]
    assert main([*command, "--method", "tome", "--ratio", "0.5", "--batch", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(path)
    assert told["bytes"] == path.stat().st_size
    assert told["recipe"]["method"]["name"] == "tome"
    assert told["parity"]["windows"] == 12
    assert told["convention"]["corpus"] == "synthetic-events"
    made = graphs(model, (16, 1000), batch=2)
    monkeypatch.setattr(HOME, "graphs", lambda *given, **options: made)
    assert main([*command, "--batch", "2"]) == 0
    shown = capsys.readouterr().out
    assert "none" in shown
    assert "Written: " in shown


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "tome"],
        ["--ratio", "much"],
        ["--recipe", "r.json", "--ratio", "0.5"],
        ["--original", "--mass", "--ratio", "0.5"],
        ["--precision", "int4"],
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pretrained(create("biot", n_outputs=6, n_chans=16, n_times=1000, depth=1), tmp_path / "model")
    path = tmp_path / "m.onnx"
    command = ["export", str(tmp_path / "model"), "--data", "synthetic-events", "-o", str(path), "--limit", "4"]
    assert main([*command, *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not path.exists()
