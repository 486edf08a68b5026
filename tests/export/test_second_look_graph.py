"""One file with a second look: weights once, doubtful windows answered as the original answers, in every runtime."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import zipbrain
from export.test_graph import SHAPES, noise
from export.tiny import biot, convention, network, scaled, windows
from zipbrain.cli.export import _show as show_export
from zipbrain.edge.audit import promised_agreement
from zipbrain.edge.description import Description
from zipbrain.edge.model import EdgeModel, as_probabilities
from zipbrain.edge.runtimes import OnnxRuntime, OpenVINO, Runtime
from zipbrain.errors import ModelFileError, OptionError
from zipbrain.export import Exported, export
from zipbrain.export.shipped_graph import Passes, export_passes
from zipbrain.recipe import Recipe
from zipbrain.seal import sealed
from zipbrain.seams.compress import describe
from zipbrain.seams.passes import FirstPass
from zipbrain.seams.second_look import is_doubtful, margins
from zipbrain.weights import fingerprint

COUNT = 5


KINDS = [(name, batch) for name in SHAPES for batch in (None, COUNT)]  # EEGPT folds patches into the batch


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1] or 'free'}")
def small(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, Passes, Tensor]:
    """A model of two blocks, the same one with a second look, its passes and windows."""
    name, batch = request.param
    model = zipbrain.compress(network(name), "zipbrain", r=1, layers=[1, 2], second_look=1.0)
    passes, _ = export_passes(model, SHAPES[name], batch=batch, groups=batch is not None)
    return network(name), model, passes, noise(SHAPES[name], COUNT)


def margin_for(first: Tensor, count: int) -> float:
    """A margin below which so many windows are."""
    order = margins(first).sort().values
    return [0.0, *((order[:-1] + order[1:]) / 2).tolist(), float("inf")][count]


@torch.no_grad()
def check_runtime(runtime: Runtime, original: nn.Module, model: nn.Module, x: Tensor) -> None:
    first, full = FirstPass(model)(x)[0], original(x)
    assert (first - full).abs().amax() > 1e-4
    for count in (0, 1, 3, COUNT):
        margin = margin_for(first, count)
        logits, looked = runtime.look(x.numpy(), margin)
        assert looked.tolist() == is_doubtful(first, margin).tolist()
        assert looked.sum() == count
        expected = np.where(looked[:, None], full.numpy(), first.numpy())
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    own, looked = runtime.look(x.numpy())
    np.testing.assert_allclose(own, model(x).numpy(), rtol=0, atol=1e-5 * np.abs(own).max())
    assert looked.tolist() == is_doubtful(first, 1.0).tolist()
    assert np.array_equal(runtime.run(x.numpy()), own)


@pytest.mark.parametrize("kind", [OnnxRuntime, OpenVINO])
def test_none_one_some_and_all_windows_may_be_doubtful(
    small: tuple[nn.Module, nn.Module, Passes, Tensor], kind: Any
) -> None:
    if kind is OpenVINO:
        pytest.importorskip("openvino")
    original, model, passes, x = small
    check_runtime(kind(passes.join().SerializeToString(), "free", threads=1), original, model, x)


@pytest.mark.parametrize("kind", [OnnxRuntime, OpenVINO])
def test_a_second_look_begins_at_the_first_reduction_and_goes_with_groups(kind: Any) -> None:
    if kind is OpenVINO:
        pytest.importorskip("openvino")
    model = zipbrain.compress(network("LaBraM"), "zipbrain", r=1, layers=[2], second_look=1.0)
    passes, _ = export_passes(model, SHAPES["LaBraM"], batch=COUNT, groups=True)
    assert sum(node.op_type == "Softmax" for node in passes.second.graph.node) == 0  # both blocks have attended
    runtime = kind(passes.join().SerializeToString(), "fixed", threads=1)
    assert runtime.outputs == ("logits", "source_map", "looked_twice")
    check_runtime(runtime, network("LaBraM"), model, noise(SHAPES["LaBraM"], COUNT))


def test_weights_are_in_the_file_once(small: tuple[nn.Module, nn.Module, Passes, Tensor]) -> None:
    _, _, passes, _ = small
    joined = passes.join()
    assert len(joined.SerializeToString()) <= 1.03 * len(passes.first.SerializeToString())
    assert not duplicates(joined)
    branch = branch_of(joined)
    assert not {"Conv", "TopK", "CumSum"} & {node.op_type for node in branch.node}  # neither embedding nor pooling
    assert [value.name for value in joined.graph.input] == ["eeg", "second_look_margin"]
    names = [node.name for node in (*joined.graph.node, *branch.node) if node.name]
    assert len(names) == len(set(names))


def branch_of(proto: Any) -> Any:
    looking = next(node for node in proto.graph.node if node.op_type == "If")
    return next(part.g for part in looking.attribute if part.name == "then_branch")


def duplicates(proto: Any) -> list[tuple[int, ...]]:
    """Shapes of constants above 1 KB that the file has more than once."""
    tensors = [numpy_helper.to_array(v) for v in (*proto.graph.initializer, *branch_of(proto).initializer)]
    counts = Counter((value.shape, value.dtype.str, value.tobytes()) for value in tensors if value.nbytes > 1024)
    return [shape for (shape, _, _), count in counts.items() if count > 1]


def test_the_branch_runs_the_same_fused_operators_as_the_second_pass_alone(tmp_path: Path) -> None:
    model = zipbrain.compress(network("LaBraM"), "zipbrain", r=1, layers=[1, 2], second_look=1.0)
    passes, _ = export_passes(model, SHAPES["LaBraM"])

    def optimised(proto: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "run.onnx"), 4
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(tmp_path / "run.onnx")

    alone = Counter(node.op_type for node in optimised(passes.second).graph.node)
    inside = Counter(node.op_type for node in branch_of(optimised(passes.join())).node)
    assert alone["BiasGelu"] == 2
    assert {kind: inside[kind] for kind in alone if kind != "Reshape"} == {
        kind: count for kind, count in alone.items() if kind != "Reshape"
    }


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """BIOT whose margin makes a quarter of 60 windows doubtful."""
    made = zipbrain.compress(biot(), "zipbrain", ratio=0.6, second_look=1.0)
    with torch.no_grad():
        first = FirstPass(made)(torch.from_numpy(scaled(windows(60))))[0]
    return zipbrain.compress(zipbrain.restore(made), "zipbrain", ratio=0.6, second_look=margin_for(first, 15))


def run(model: nn.Module, path: Path, **options: Any) -> Exported:
    return export(model, windows(60), path, convention=convention(), **options)


def test_a_file_gives_torchs_decisions_and_probabilities(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(**describe(model), weights=fingerprint(biot().state_dict()))
    recipe = sealed(recipe, {"agree": 0.97, "confidence": 0.95})
    found = run(biot(), tmp_path / "m.onnx", groups=True, recipe=recipe)
    parity, said = found.parity, found.description
    assert (parity.looked_twice, parity.other_looks, parity.agreement, parity.faults) == (15, 0, 1.0, ())
    assert said.looks_twice
    assert said.recipe is not None
    assert said.second_look is not None
    assert said.second_look["margin"] == said.recipe["second_look"]
    assert promised_agreement(said) == 0.97
    assert list(said.outputs) == ["source_map", "looked_twice"]
    show_export(found)
    told = " ".join(capsys.readouterr().out.split())
    assert "looked twice 15 of 60 windows" in told
    assert "promised 97.0 %" in told
    assert said.parity["looked_twice"] == 15
    raw = windows(60).take(slice(None))
    with torch.no_grad():
        expected = as_probabilities(model(torch.from_numpy(scaled(windows(60)))).numpy())
        original = zipbrain.restore(biot())(torch.from_numpy(scaled(windows(60)))).numpy()
    file = EdgeModel(found.path)
    assert np.abs(file.probabilities(raw) - expected).max() <= 1e-5
    logits, looked = file.look(raw, float("inf"))
    assert looked.all()
    np.testing.assert_allclose(logits, original, rtol=0, atol=1e-5 * np.abs(original).max())
    assert not file.look(raw, 0.0)[1].any()


@pytest.mark.parametrize("precision", ["float16", "int8-dynamic", "int8-static"])
def test_other_precisions_share_weights_too(model: nn.Module, tmp_path: Path, precision: str) -> None:
    found = run(model, tmp_path / "m.onnx", precision=precision, force=True)
    assert found.parity.looked_twice
    proto = onnx.load(found.path)
    assert not duplicates(proto)
    raw = windows(60).take(slice(None))
    again = EdgeModel(found.path).look(raw, float("inf"))[0]
    plain = run(zipbrain.restore(biot()), tmp_path / "plain.onnx", precision=precision, force=True)
    expected = EdgeModel(plain.path).logits(raw)
    assert np.abs(again - expected).max() <= 0.1 * np.abs(expected).max()
    assert {node.op_type for node in branch_of(proto).node} & {
        "float16": {"Cast"},
        "int8-dynamic": {"MatMulInteger"},
        "int8-static": {"DequantizeLinear"},
    }[precision]


def test_not_a_number_looks_twice_and_one_output_has_its_size_as_margin() -> None:
    model = zipbrain.compress(biot(1, depth=1), "zipbrain", ratio=0.6, second_look=0.5)
    check_runtime(
        OnnxRuntime(export_passes(model, (3, 600))[0].join().SerializeToString(), "one", threads=1),
        biot(1, depth=1),
        model,
        noise((3, 600), COUNT),
    )
    broken = zipbrain.compress(biot(3, depth=1), "zipbrain", ratio=0.6, second_look=0.0)
    with torch.no_grad():
        broken.head.bias[1] = torch.nan
    runtime = OnnxRuntime(export_passes(broken, (3, 600))[0].join().SerializeToString(), "nan", threads=1)
    assert runtime.look(noise((3, 600), 3).numpy())[1].all()


def test_a_model_that_removes_nothing_has_nothing_to_look_at_twice(tmp_path: Path) -> None:
    found = run(zipbrain.compress(biot(), "zipbrain", r=0, second_look=1.0), tmp_path / "m.onnx")
    assert not found.description.looks_twice
    assert found.parity.looked_twice is None
    with pytest.raises(OptionError, match="no second look: export one whose recipe has a second_look"):
        EdgeModel(found.path).look(windows(2).take(slice(None)), 1.0)


def test_a_file_whose_margin_is_no_input_is_refused(model: nn.Module, tmp_path: Path) -> None:
    path = run(model, tmp_path / "m.onnx").path
    proto = onnx.load(path)
    del proto.graph.input[1]
    text = next(entry for entry in proto.metadata_props)
    text.value = replace(Description.from_json(text.value), graph_sha256="").to_json()
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelFileError, match="inputs and outputs"):
        EdgeModel(path)
