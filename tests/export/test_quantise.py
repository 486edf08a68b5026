"""Half precision and int8: small weights in the blocks, float32 where tokens are chosen."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import zipbrain
from export.tiny import biot, network, scaled, windows
from zipbrain import ZIPBrain
from zipbrain.errors import OptionError
from zipbrain.export import quantise
from zipbrain.export.nncf import to_int8_by_nncf
from zipbrain.export.onnx_graph import POOLING, export_graph
from zipbrain.export.quantise import block_products, exact_nodes, to_half, to_int8
from zipbrain.models import BIOT


@pytest.fixture(scope="module")
def model() -> BIOT:
    return zipbrain.compress(biot(depth=1, dim=32, heads=4), ZIPBrain(), ratio=0.6)


@pytest.fixture(scope="module")
def graph(model: BIOT) -> Any:
    return export_graph(model, torch.from_numpy(scaled(windows(4))))


def logits(graph: Any) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"eeg": scaled(windows(4))})[0])


def close(found: np.ndarray, expected: np.ndarray, bound: float) -> bool:
    return bool(np.abs(found - expected).max() <= bound * np.ptp(expected))


def test_half_precision_halves_the_weights_and_spares_what_decides(graph: Any) -> None:
    half = to_half(graph)
    assert half.ByteSize() < 0.7 * graph.ByteSize()
    assert close(logits(half), logits(graph), 0.02)
    assert not close(logits(half), logits(graph), 1e-6)  # it is another precision
    shapes = onnx.shape_inference.infer_shapes(half).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*shapes.value_info, *shapes.output)}
    for node in half.graph.node:
        if node.name.startswith(POOLING):
            assert all(kinds.get(name) != onnx.TensorProto.FLOAT16 for name in node.output), node.name
    assert kinds["logits"] == onnx.TensorProto.FLOAT
    assert half.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_int8_products_are_those_of_the_blocks(graph: Any, model: BIOT) -> None:
    names = block_products(graph.graph, model)
    assert len(names) == 4  # qkv, proj, fc1, fc2: neither the Fourier basis, nor projection, head and pooling
    assert not exact_nodes(graph.graph).intersection(names)
    for calibration in ((), (scaled(windows(8, seed=1)),)):
        small = to_int8(graph, model, *calibration)
        weights = [numpy_helper.to_array(v) for v in small.graph.initializer if v.data_type == onnx.TensorProto.INT8]
        assert len([w for w in weights if w.ndim == 2]) == 4
        assert max(np.abs(w).max() for w in weights) <= 64  # seven bits
        assert close(logits(small), logits(graph), 0.2)
        assert not close(logits(small), logits(graph), 1e-6)


def test_int8_by_nncf_gives_the_same_answers_in_both_runtimes(graph: Any, model: BIOT) -> None:
    pytest.importorskip("nncf", reason="NNCF is not installed: pip install 'zipbrain[openvino]'")
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'zipbrain[openvino]'")
    small = to_int8_by_nncf(graph, model, scaled(windows(6, seed=1)))
    assert close(logits(small), logits(graph), 0.05)
    assert not close(logits(small), logits(graph), 1e-6)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(small.SerializeToString())), "CPU")
    assert close(np.asarray(compiled(scaled(windows(4)))[0]), logits(small), 0.01)


def test_the_tokenizer_of_tfm_stays_exact() -> None:
    model = network("TFM-Tokenizer", blocks=1)
    graph = export_graph(model, torch.zeros(1, 3, 600)).graph
    exact, products = exact_nodes(graph), block_products(graph, model)
    assert len(products) == 4
    inside = {node.name for node in graph.node if node.name.startswith("tokenizer.")}
    assert len(inside) > 50
    assert inside <= exact
    assert not any(node.name.startswith("encoder.") for node in graph.node if node.name in exact)


def test_temporary_files_of_the_quantiser_go_with_the_scratch_folder(
    graph: Any, model: BIOT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, seen = tempfile.mkdtemp, []

    def mkdtemp(*given: Any, **options: Any) -> str:
        seen.append(Path(real(*given, **options)))
        return str(seen[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    to_int8(graph, model)
    assert seen
    assert {folder.relative_to(tmp_path).parts[0][:10] for folder in seen} == {".zipbrain."}
    assert tempfile.tempdir == str(tmp_path)


def test_no_product_no_int8(graph: Any, model: BIOT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "block_products", lambda *given: [])
    with pytest.raises(OptionError, match="no matrix product"):
        to_int8(graph, model)
