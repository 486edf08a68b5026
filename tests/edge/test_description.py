"""`Description`: there and back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edge import tiny_onnx
from zipbrain.edge.description import Description
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.onnx_file import graph_sha256
from zipbrain.errors import ModelFileError, OptionError
from zipbrain.recipe import Recipe


def test_json_gives_the_same_description_back() -> None:
    recipe = Recipe({"name": "zipbrain", "z1": "k"}, {"name": "constant", "ratio": 0.8}).to_dict()
    about = tiny_onnx.description(
        recipe=recipe, batch=8, precision="int8-static", classes=["Wach", "Schläft"],
        convention=tiny_onnx.convention(montage=(*tiny_onnx.convention().montage[:15], ("F3", "A2")), band=(0.1, None)),
    )  # fmt: skip
    assert Description.from_json(about.to_json()) == about
    assert isinstance(about.classes, tuple)


def test_a_file_is_described_without_a_runtime(tmp_path: Path) -> None:
    assert Description.read(tiny_onnx.save(tmp_path / "m.onnx")) == tiny_onnx.description()


def _changed(**changes: Any) -> str:
    content = json.loads(tiny_onnx.description().to_json())
    convention = changes.pop("convention", {})
    if isinstance(convention, dict):
        content["convention"] |= convention
    else:
        content["convention"] = convention
    return json.dumps(content | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged or not JSON"),
        ("[" * 100_000, "damaged or not JSON"),
        ("[]", "must be an object"),
        ("{}", "format"),
        (_changed(format=True), "format"),
        (_changed(format=2), "this zipbrain reads up to 1"),
        (json.dumps({"format": 1, "model": "labram"}), "no classes"),
        (_changed(classes=["one"]), "at least two names"),
        (_changed(classes="ab"), "at least two names"),
        (_changed(classes=["a", "a"]), "a name of its own"),
        (_changed(classes=["a", 1]), "at least two names"),
        (_changed(precision="int4"), "float32, float16"),
        (_changed(precision={}), "float32, float16"),
        (_changed(batch=0), "positive integer"),
        (_changed(batch=True), "positive integer"),
        (_changed(token_counts=[3.5]), "positive integers"),
        (_changed(recipe=[]), "must be an object"),
        (_changed(recipe={"method": 3}), "recipe"),
        (_changed(versions=None), "must be an object"),
        (_changed(model=3), "must be a string"),
        (_changed(graph_sha256=3), "must be a string"),
        (_changed(outputs=["source_map"]), "must be an object"),
        (_changed(outputs={"source_map": ""}), "a name and a meaning"),
        (_changed(outputs={"logits": "the answer"}), "always there"),
        (_changed(second_look=[1]), "must be an object"),
        (_changed(convention=3), "convention"),
        (_changed(convention=None), "convention"),
        (_changed(convention={"sfreq": 0}), "sfreq"),
        (_changed(convention={"sfreq": "200"}), "sfreq"),
        (_changed(convention={"window_s": 1e300}), "window_s"),
        (_changed(convention={"window_s": 1e-9}), "at least one sample"),
        (_changed(convention={"hop_s": -1}), "hop_s"),
        (_changed(convention={"hop_s": 1e-9}), "at least a sample apart"),
        (_changed(convention={"sfreq": 1e6}), "sfreq"),
        (_changed(convention={"cut_sfreq": 1e6}), "cut_sfreq"),
        (_changed(convention={"band": [1e-7, 70]}), "two frequencies"),
        (_changed(batch=10**9), "up to 65536"),
        (_changed(convention={"notch": -50}), "notch"),
        (_changed(convention={"band": [1, 2, 3]}), "two frequencies"),
        (_changed(convention={"band": 7}), "two frequencies"),
        (_changed(convention={"scaling": "thousand"}), "known scalings are"),
        (_changed(convention={"scaling": {}}), "known scalings are"),
        (_changed(convention={"ch_names": []}), "channel names"),
        (_changed(convention={"montage": ["C3"]}), "one entry for each of 16"),
        (_changed(convention={"montage": [["C3", "C4", "CZ"]]}), "pairs of electrodes"),
        (_changed(convention={"montage": 3}), "convention"),
        (_changed(convention={"resampling": "linear"}), "polyphase"),
        (_changed(convention={"filter_windows": "no"}), "true or false"),
    ],
)  # fmt: skip
def test_what_no_window_could_be_made_with_is_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        Description.from_json(text)
    assert "\n" not in str(caught.value)
    model = tiny_onnx.graph(tiny_onnx.description())
    del model.metadata_props[:]
    helper.set_model_props(model, {"zipbrain": text})
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="its description can't be used"):
        Description.read(path)


def test_a_foreign_onnx_file_is_refused(tmp_path: Path) -> None:
    model = tiny_onnx.graph(tiny_onnx.description())
    del model.metadata_props[:]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="no 'zipbrain' in its metadata"):
        Description.read(path)


def _save(path: Path, about: Description, model: onnx.ModelProto | None = None) -> Path:
    model = model or tiny_onnx.graph(about)
    del model.metadata_props[:]
    helper.set_model_props(model, {"zipbrain": about.to_json()})
    path.write_bytes(model.SerializeToString())
    return path


def test_the_hash_is_of_everything_but_the_metadata(tmp_path: Path) -> None:
    model = tiny_onnx.graph(tiny_onnx.description())
    found = {graph_sha256(model.SerializeToString())}
    helper.set_model_props(model, {"zipbrain": "another", "more": "text"})
    found.add(graph_sha256(model.SerializeToString()))
    del model.metadata_props[:]
    found.add(graph_sha256(model.SerializeToString()))
    assert len(found) == 1
    model.graph.node[0].op_type = "Neg"
    assert graph_sha256(model.SerializeToString()) not in found


def test_a_graph_that_was_changed_after_the_export_is_refused(tmp_path: Path) -> None:
    right = graph_sha256(tiny_onnx.graph(tiny_onnx.description()).SerializeToString())
    path = _save(tmp_path / "m.onnx", tiny_onnx.description(graph_sha256=right))
    assert Description.read(path).graph_sha256 == right
    content = bytearray(path.read_bytes())
    weights = tiny_onnx.weights(16, 2).tobytes()
    content[content.index(weights) + 3] ^= 1  # one bit of one weight
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"m\.onnx: its graph is not the one that was exported"):
        Description.read(path)
    with pytest.raises(ModelFileError, match="its hash differs"):
        EdgeModel(path)


def test_declared_outputs_are_allowed_and_others_refused(tmp_path: Path) -> None:
    about = tiny_onnx.description(outputs={"size": "absolute values of the windows"}, second_look={"margin": 0.2})
    model = tiny_onnx.graph(about)
    model.graph.output.append(helper.make_tensor_value_info("size", onnx.TensorProto.FLOAT, ["batch", 16, 800]))
    path = _save(tmp_path / "m.onnx", about, model)
    found = EdgeModel(path)
    assert (found.description.outputs, found.description.second_look) == (about.outputs, {"margin": 0.2})
    x = np.ones((3, 16, 800), np.float32)
    np.testing.assert_array_equal(found.logits(x), EdgeModel(tiny_onnx.save(tmp_path / "plain.onnx")).logits(x))
    for wrong, graph in ((tiny_onnx.description(), model), (about, tiny_onnx.graph(about))):
        with pytest.raises(ModelFileError, match="its inputs and outputs are eeg, logits"):
            EdgeModel(_save(tmp_path / "wrong.onnx", wrong, graph))


def test_a_description_that_was_changed_later_is_refused(tmp_path: Path) -> None:
    path = tiny_onnx.save(tmp_path / "m.onnx")
    assert Description.read(path).classes == ("rest", "arithmetic")
    path.write_bytes(path.read_bytes().replace(b'"rest"', b'"vest"'))
    with pytest.raises(ModelFileError, match=r"m\.onnx: .*sha256.* changed after the export"):
        Description.read(path)


def test_a_description_of_the_first_version_has_none_of_the_later_facts() -> None:
    later = ("graph_sha256", "outputs", "second_look", "sha256")
    first = {key: value for key, value in json.loads(tiny_onnx.description().to_json()).items() if key not in later}
    found = Description.from_json(json.dumps(first | {"key of a later version": 1}))
    assert (found.graph_sha256, found.outputs, found.second_look) == ("", {}, None)
