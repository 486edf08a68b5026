"""`export`: one file that describes itself and answers as PyTorch does, or no file at all."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import zipbrain
from export.tiny import CHANNELS, NAMES, RATE, biot, convention, network, scaled, windows
from zipbrain import ZIPBrain
from zipbrain.cli import main
from zipbrain.data.windows import Windows
from zipbrain.edge import Description, EdgeModel
from zipbrain.errors import ModelFileError, OptionError
from zipbrain.export import ExportFailed, convention_of, export
from zipbrain.export.checks import check_model, fit_convention
from zipbrain.export.shipped_graph import Passes, graphs
from zipbrain.models import BIOT, Task, create, remember
from zipbrain.pretrained import save_pretrained
from zipbrain.recipe import Recipe
from zipbrain.seams import is_compressed
from zipbrain.signal.scaling import scale
from zipbrain.training.window_sources import WindowSource
from zipbrain.weights import fingerprint

RECIPE = Recipe(ZIPBrain("x", "k", "v", 0.4).to_dict(), {"name": "ratio", "ratio": 0.6}, model="BIOT")
HOME = import_module("zipbrain.export.exporter")  # the package has a function of that name


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
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: (Passes(made[0]), made[1]))


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
def test_a_changed_file_is_refused_when_it_is_opened(model: BIOT, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    said = run(model, path).description
    proto = onnx.load(path)
    assert said.graph_sha256 == Description.read(path).graph_sha256 != ""
    assert (said.outputs, [output.name for output in proto.graph.output]) == ({}, ["logits"])
    weight = max(proto.graph.initializer, key=lambda value: len(value.raw_data))
    weight.raw_data = weight.raw_data[:-1] + bytes([weight.raw_data[-1] ^ 1])  # one bit of a weight
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelFileError, match="its hash differs"):
        EdgeModel(path)


@pytest.mark.parametrize("name", ["BIOT", "EEGPT"])
def test_groups_are_a_second_output_that_equals_the_trace(name: str, tmp_path: Path) -> None:
    model = zipbrain.compress(network(name), "zipbrain", r=1)
    data = windows(6)
    data = (
        data
        if name == "BIOT"
        else Windows.from_arrays(
            data.take(slice(None))[:, :, :512], data.labels, ch_names=["FP1", "C3", "O2"], sfreq=RATE, classes=NAMES
        )
    )
    plain = export(model, data, tmp_path / "plain.onnx", convention=convention_of(model, data))
    found = export(model, data, tmp_path / "m.onnx", convention=convention_of(model, data), groups=True)
    assert list(found.description.outputs) == ["source_map"]
    assert plain.description.outputs == {}
    x = scale(data.take(slice(None)), found.description.convention.scaling).astype(np.float32)
    logits = [EdgeModel(one.path).logits(data.take(slice(None))) for one in (found, plain)]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-5)  # a runtime may fuse less around an output
    with torch.no_grad(), zipbrain.trace(model) as traced:
        model(torch.from_numpy(x))
    session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    source_map = session.run(["source_map"], {"eeg": x})[0]
    assert source_map.shape == ((6, 15) if name == "BIOT" else (6, 8, 3))
    np.testing.assert_array_equal(source_map.reshape(-1, source_map.shape[-1]), traced.source_map().numpy())


def test_groups_of_an_uncompressed_model_are_refused(model: BIOT, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the model is not compressed"):
        export(model, windows(), tmp_path / "m.onnx", convention=convention(), groups=True)
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: (Passes(copy.deepcopy(made[0])), made[1]))
    run(model, path)
    before = path.read_bytes()
    wrong = onnx.ModelProto()
    wrong.CopyFrom(made[0])
    bias = next(value for value in wrong.graph.initializer if value.name.endswith("head.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: (Passes(wrong), made[1]))
    for force in (False, True):  # float32 has no excuse
        with pytest.raises(ExportFailed, match=r"not kept, float32 differs from PyTorch: ") as caught:
            run(model, path, force=force)
        assert "\n" not in str(caught.value)
        assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
        assert path.read_bytes() == before


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


def test_no_other_file_is_overwritten(
    model: BIOT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: pytest.fail("it worked"))
    foreign = tmp_path / "foreign.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), foreign)
    for name in ("night.edf", "model.safetensors", "notes.onnx", "foreign.onnx", "new"):
        path = tmp_path / name
        if name not in ("foreign.onnx", "new"):
            path.write_bytes(b"what was there")
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(OptionError, match="path: got"):
            run(model, path)
        assert main(["export", str(tmp_path / "no model"), "--data", "synthetic-events", "-o", str(path)]) == 2
        error = capsys.readouterr().err
        assert "--out" in error  # before the model is looked for
        assert name in error
        assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.usefixtures("quick")
def test_static_int8_is_never_compared_on_the_windows_that_fixed_its_ranges(
    model: BIOT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed: list[np.ndarray] = []
    compared: list[np.ndarray] = []

    def quantise(proto: Any, network: Any, calibration: np.ndarray) -> Any:
        fixed.append(calibration)
        return proto

    def compare(path: Path, network: Any, told: Any, given: Any, *rest: Any) -> Any:
        compared.append(given.take(slice(None)))
        assert set(given.labels) == {0, 1}
        return parity_compare(path, network, told, given, *rest)

    parity_compare = HOME.compare
    monkeypatch.setattr(HOME, "to_int8", quantise)
    monkeypatch.setattr(HOME, "compare", compare)
    found = run(model, tmp_path / "m.onnx", precision="int8-static")
    used = {window.tobytes() for window in fixed[0]}
    judged = {window.tobytes() for window in scale(compared[0], "q95").astype(np.float32)}
    assert (len(used), len(judged), found.parity.windows) == (12, 12, 12)
    assert not used & judged
    found = run(model, tmp_path / "m.onnx", precision="int8-static", calibration=windows(8, seed=5))
    assert (len(fixed[1]), found.parity.windows) == (8, 24)
    for wrong in (windows(0), windows(8).select([])):
        with pytest.raises(OptionError, match="calibration"):
            run(model, tmp_path / "m.onnx", precision="int8-static", calibration=wrong)
    with pytest.raises(OptionError, match="calibration"):
        export(model, windows(1), tmp_path / "m.onnx", convention=convention(), precision="int8-static")


def test_windows_of_other_channels_or_lengths_are_refused() -> None:
    labram = create("labram", n_outputs=1, ch_names=["FP1", "T3", "M2"], n_times=400)

    def given(*names: str, samples: int = 400) -> Windows:
        return Windows.from_arrays(np.zeros((2, 3, samples)), [0, 1], ch_names=names, sfreq=200.0, classes=NAMES)

    check_model(labram, given("Fp1", "T7", "A2"), NAMES)  # other names of the same places
    for names in (("T3", "FP1", "M2"), ("FP1", "T4", "M2")):
        with pytest.raises(OptionError, match="the model was made for FP1, T3, M2"):
            check_model(labram, given(*names), NAMES)
    with pytest.raises(OptionError, match="the model was made for 400 samples"):
        check_model(labram, given("FP1", "T3", "M2", samples=600), NAMES)


def test_a_place_that_can_not_be_written_and_wrong_names_are_refused_before_any_work(
    model: BIOT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: pytest.fail("it worked"))
    with pytest.raises(ExportFailed, match=r"File name too long\); give another folder"):
        run(model, tmp_path / ("m" * 245 + ".onnx"))
    with pytest.raises(OptionError, match="a name of its own"):
        run(model, tmp_path / "m.onnx", classes=("same", "same"))
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_data_of_another_task_and_tells_no_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = create("biot", n_outputs=6, n_chans=16, n_times=1000, dim=16, heads=2, depth=1)
    save_pretrained(model, tmp_path / "secret" / "run7" / "model")
    run_file, path = tmp_path / "secret" / "run7" / "run.json", tmp_path / "m.onnx"
    source = WindowSource("synthetic-events", "biot", 4).split("test")
    trained = {"classes": list(source.classes), "ch_names": list(source.ch_names), "sfreq": source.sfreq}
    trained["name"] = "events"
    command = ["export", str(run_file.parent), "--data", "synthetic-events", "-o", str(path), "--limit", "4"]
    for changed, words in (
        ({"ch_names": trained["ch_names"][::-1]}, f"with {', '.join(trained['ch_names'][::-1])}"),
        ({"sfreq": 256.0}, "at 256 Hz"),
    ):
        run_file.write_text(json.dumps({"scaling": "q95", "train": trained | changed}))
        for where in (run_file.parent, run_file.parent / "model"):
            assert main([command[0], str(where), *command[2:]]) == 2
            said = capsys.readouterr().err
            assert f"the model was trained on events {words}" in " ".join(said.split())
        assert not path.exists()
    own = {"classes": trained["classes"][::-1]}  # the same classes: the file has the order of the model's outputs
    run_file.write_text(json.dumps({"scaling": "q95", "train": trained | own}))
    assert main([*command, "--batch", "2"]) == 0
    assert "no better than chance" in " ".join(capsys.readouterr().out.split())  # it has random weights
    assert Description.read(path).classes == source.classes[::-1]
    assert Description.read(path).trained_on == {"checkpoint": "run7", "data": "events"}
    assert b"secret" not in path.read_bytes()


def test_a_model_without_its_run_refuses_data_of_another_task_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = create("biot", n_outputs=6, n_chans=16, n_times=1000, dim=16, heads=2, depth=1)
    source = WindowSource("synthetic-events", "biot", 4).split("test")
    task = Task(source.classes, "events", source.ch_names, source.sfreq, "q95")
    path = tmp_path / "m.onnx"
    command = ["export", str(tmp_path / "m"), "--data", "synthetic-events", "-o", str(path), "--limit", "4"]
    for other, words in (
        (replace(task, classes=("W", "N1", "N2", "N3", "REM", "other")), "trained on events for W, N1, N2, N3, REM,"),
        (replace(task, classes=task.classes[:-1]), "trained on events for SPSW, GPED, PLED, EYEM, ARTF"),
        (replace(task, sfreq=256.0), "trained on events at 256 Hz"),
    ):
        save_pretrained(model, tmp_path / "m", task=other)
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "data: got" in said
        assert words in said
        assert not path.exists()
    made = graphs(model, (16, 1000), batch=2)
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: (Passes(made[0]), made[1]))
    for known, words in ((task, "checkpoint"), (None, "data")):
        save_pretrained(model, tmp_path / "m", task=known)
        assert main([*command, "--batch", "2", "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["classes_from"] == words
        assert ("does not say what its classes are: those of synthetic-events were taken" in err) == (known is None)
    remember(model, replace(task, classes=task.classes[::-1]))
    found = export(model, source, path, convention=convention_of(model, source), classes=task.classes, batch=2)
    assert found.description.classes == task.classes[::-1]


def test_the_command_never_compares_on_what_it_calibrates_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_pretrained(create("biot", n_outputs=6, n_chans=16, n_times=1000, depth=1), tmp_path / "model")
    given: list[Any] = []

    def catch(model: Any, windows: Windows, path: Path, **options: Any) -> Any:
        given.append((windows, options["calibration"]))
        raise ExportFailed("seen")

    monkeypatch.setattr(zipbrain.export, "export", catch)
    command = ["export", str(tmp_path / "model"), "--data", "synthetic-events", "-o", str(tmp_path / "m.onnx")]
    for split in ("test", "train"):
        assert main([*command, "--precision", "int8-static", "--split", split, "--limit", "8"]) == 1
    (compared, calibration), (_, none) = given
    assert not {*compared.subjects} & {*calibration.subjects}
    assert none is None  # some of the same windows, kept apart: see the test above


def test_channels_that_a_convention_leaves_open_are_those_of_the_windows(model: BIOT) -> None:
    found = fit_convention(convention(montage=(), ch_names=()), windows())
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
    monkeypatch.setattr(HOME, "export_passes", lambda *given, **options: (Passes(made[0]), made[1]))
    assert main([*command, "--batch", "2"]) == 0
    shown = capsys.readouterr().out
    assert "none" in shown
    assert "Written: " in shown


@pytest.mark.parametrize(("option", "value"), [("--method", "tomee"), ("--ratio", "60")])
def test_the_command_refuses_what_no_model_can_do_before_it_opens_one(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = {"--method": "tome", "--ratio": "0.5"} | {option: value}
    words = [word for pair in choice.items() for word in pair]
    command = ["export", str(tmp_path / "no model"), "--data", "synthetic-events", "-o", str(tmp_path / "m.onnx")]
    assert main([*command, *words]) == 2
    assert value in capsys.readouterr().err


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
