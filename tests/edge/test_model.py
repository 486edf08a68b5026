"""`EdgeModel`: the same answers as numpy, whatever the batch, and what is refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from edge import tiny_onnx
from zipbrain.edge.description import Description
from zipbrain.edge.model import EdgeModel, as_probabilities
from zipbrain.errors import MissingExtra, ModelFileError, OptionError, ShapeError
from zipbrain.recipe import Recipe
from zipbrain.signal.scaling import scale


def microvolts(count: int) -> NDArray[np.float32]:
    return (30 * np.random.default_rng(1).normal(size=(count, 16, 800))).astype(np.float32)


def expected(x: NDArray[np.float32], about: Description, outputs: int) -> NDArray[np.float32]:
    scaled = scale(x, about.convention.scaling)
    return np.abs(scaled).mean(-1) @ tiny_onnx.weights(16, outputs)


@pytest.mark.parametrize("scaling", ["none", "hundred", "q95", "zscore", "zscore-average"])
@pytest.mark.parametrize("batch", [None, 1, 8])
def test_logits_are_those_of_the_scaled_windows(scaling: str, batch: int | None, tmp_path: Path) -> None:
    about = tiny_onnx.description(convention=tiny_onnx.convention(scaling=scaling), batch=batch)
    model = EdgeModel(tiny_onnx.save(tmp_path / "m.onnx", about), threads=1)
    for count in (0, 1, 7, 8, 33):
        x = microvolts(count)
        found = model.logits(x)
        assert found.shape == (count, 2)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected(x, about, 2), rtol=1e-5, atol=1e-5)


def test_probabilities_are_softmax_or_sigmoid(tmp_path: Path) -> None:
    x = microvolts(5)
    three = tiny_onnx.description(classes=("a", "b", "c"))
    logits = expected(x, three, 3).astype(np.float64)
    powers = np.exp(logits)
    found = EdgeModel(tiny_onnx.save(tmp_path / "3.onnx", three)).probabilities(x)
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), atol=1e-6)
    one = EdgeModel(tiny_onnx.save(tmp_path / "1.onnx", outputs=1)).probabilities(x)
    second = 1 / (1 + np.exp(-expected(x, tiny_onnx.description(), 1).astype(np.float64)))
    np.testing.assert_allclose(one, np.hstack([1 - second, second]), atol=1e-6)


def test_large_logits_and_logits_that_are_no_numbers() -> None:
    found = as_probabilities(np.array([[1e4, 0.0], [np.nan, 0.0], [np.inf, 1.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(found[0], [1, 0])
    assert np.isnan(found[1:3]).all()
    np.testing.assert_array_equal(found[3], [0.5, 0.5])


@pytest.mark.parametrize("batch", [None, 4])
def test_a_window_with_nan_gets_nan_and_spoils_no_other(batch: int | None, tmp_path: Path) -> None:
    model = EdgeModel(tiny_onnx.save(tmp_path / "m.onnx", tiny_onnx.description(batch=batch)))
    x = microvolts(6)
    clean = model.probabilities(x)
    x[2, 3, 100], x[4, 0, 0] = np.nan, np.inf
    found = model.probabilities(x)
    assert np.isnan(found[[2, 4]]).all()
    np.testing.assert_array_equal(found[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])


def test_half_precision_inputs_are_transparent(tmp_path: Path) -> None:
    about = tiny_onnx.description(precision="float16")
    path = tmp_path / "m.onnx"
    path.write_bytes(tiny_onnx.graph(about, kind=TensorProto.FLOAT16).SerializeToString())
    x = microvolts(3)
    found = EdgeModel(path).logits(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(x, about, 2), atol=2e-2)


def test_int8_files_are_transparent(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    plain = tiny_onnx.save(tmp_path / "m.onnx")
    quantize_dynamic(plain, tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    del model.metadata_props[:]
    about = tiny_onnx.description(precision="int8-dynamic")
    onnx.helper.set_model_props(model, {"zipbrain": about.to_json()})
    onnx.save(model, tmp_path / "q.onnx")
    found = EdgeModel(tmp_path / "q.onnx")
    assert found.description.precision == "int8-dynamic"
    x = microvolts(3)
    np.testing.assert_allclose(found.logits(x), expected(x, about, 2), atol=0.05)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((16, 800), "f4"), ((2, 15, 800), "f4"), ((2, 16, 799), "f4"), ((2, 16, 800), "c8")]
)
def test_windows_of_another_shape_are_refused(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    model = EdgeModel(tiny_onnx.save(tmp_path / "m.onnx"))
    with pytest.raises(ShapeError, match=r"needs numbers \(m, 16, 800\)"):
        model.logits(np.zeros(shape, dtype=dtype))


def test_a_graph_that_does_not_fit_its_description_is_refused(tmp_path: Path) -> None:
    said = tiny_onnx.description()
    for other, words in (
        (tiny_onnx.description(convention=tiny_onnx.convention(window_s=5.0)), "its input is any x 16 x 1000"),
        (tiny_onnx.description(batch=4), "its input is 4 x 16 x 800"),
        (tiny_onnx.description(classes=("a", "b", "c")), "its output is any x 3"),
    ):
        model = tiny_onnx.graph(other)
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, {"zipbrain": said.to_json()})
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelFileError, match=words):
            EdgeModel(path)


def test_other_names_of_inputs_are_refused(tmp_path: Path) -> None:
    model = tiny_onnx.graph(tiny_onnx.description())
    model.graph.input[0].name = model.graph.node[0].input[0] = "x"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="not eeg and logits"):
        EdgeModel(path)


def test_a_graph_that_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    model = tiny_onnx.graph(tiny_onnx.description())
    model.graph.node[0].op_type = "NoSuchOperator"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"onnxruntime .* can't run it") as caught:
        EdgeModel(path)
    assert "\n" not in str(caught.value)


def test_options_are_refused(tmp_path: Path) -> None:
    path = tiny_onnx.save(tmp_path / "m.onnx")
    for options in (
        {"runtime": "tensorrt"},
        {"provider": "tpu"},
        {"threads": 0},
        {"threads": 5000},
        {"threads": "2"},
        {"threads": 1.5},
        {"runtime": "openvino", "provider": "cuda"},
    ):
        with pytest.raises(OptionError, match=r"runtime|provider|threads"):
            EdgeModel(path, **options)  # type: ignore[arg-type]


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime has CUDA"
)
def test_cuda_without_its_package_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="onnxruntime-gpu"):
        EdgeModel(tiny_onnx.save(tmp_path / "m.onnx"), provider="cuda")


def test_threads_and_spinning_change_no_answer(tmp_path: Path) -> None:
    path, x = tiny_onnx.save(tmp_path / "m.onnx"), microvolts(4)
    np.testing.assert_array_equal(
        EdgeModel(path, threads=1, spinning=False).logits(x), EdgeModel(path, threads=2).logits(x)
    )


def test_openvino_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match="needs openvino, which is not installed"):
        EdgeModel(tiny_onnx.save(tmp_path / "m.onnx"), runtime="openvino")


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_agrees_with_onnxruntime(tmp_path: Path) -> None:
    path, x = tiny_onnx.save(tmp_path / "m.onnx"), microvolts(9)
    model = EdgeModel(path, runtime="openvino", threads=1)
    assert model.runtime.startswith("openvino")
    np.testing.assert_allclose(model.logits(x), EdgeModel(path).logits(x), atol=1e-5)


@pytest.mark.parametrize(
    "method", [{"name": "twins"}, {"name": "twins", "merge": "mean_norm"}, {"name": "zipbrain"}], ids=lambda m: str(m)
)
def test_a_method_that_openvino_groups_otherwise_is_refused_there(method: dict[str, object], tmp_path: Path) -> None:
    recipe = Recipe(
        method,
        {"name": "ratio", "ratio": 0.8},
        dict.fromkeys(("attention", "merge", "readout"), True),
    ).to_dict()
    path = tiny_onnx.save(tmp_path / "m.onnx", tiny_onnx.description(recipe=recipe))
    assert EdgeModel(path).logits(microvolts(1)).shape == (1, 2)
    with pytest.raises(OptionError, match="otherwise than PyTorch"):
        EdgeModel(path, runtime="openvino")


def test_a_recipe_in_a_short_spelling_is_understood(tmp_path: Path) -> None:
    for method in ({"name": "composition", "split": "pivots"}, {"name": "of_mine", "split": "halves"}):
        recipe = {"method": method, "schedule": {"name": "ratio", "ratio": 0.5}}
        path = tiny_onnx.save(tmp_path / "m.onnx", tiny_onnx.description(recipe=recipe))
        assert EdgeModel(path).logits(microvolts(1)).shape == (1, 2)


def test_what_runs_is_the_onnx_file_that_was_looked_into(tmp_path: Path) -> None:
    model = tiny_onnx.graph(tiny_onnx.description())
    model.producer_name = "ORTM"
    content = model.SerializeToString()
    assert content[4:8] == b"ORTM"  # by which ONNX Runtime knows files of its own format
    (tmp_path / "m.onnx").write_bytes(content)
    assert EdgeModel(tmp_path / "m.onnx").logits(microvolts(1)).shape == (1, 2)
