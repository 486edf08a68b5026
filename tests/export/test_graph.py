"""Exported graphs: all models and methods answer as torch does, in one file, for a fixed or a free batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import zipbrain
from export.tiny import biot, network
from zipbrain import DART, EViT, LocalMerging, PiToMe, ToFu, ToMe, Twins, WardPairs, ZIPBrain
from zipbrain.errors import OptionError
from zipbrain.export.decision_outputs import WithDecisions, reference
from zipbrain.export.onnx_graph import POOLING, export_graph
from zipbrain.export.parity import Groupings
from zipbrain.export.shipped_graph import graphs

METHODS: dict[str, Any] = {
    "zipbrain": ZIPBrain(),
    "tome": ToMe(),
    "tofu": ToFu(),
    "tofu-prune": ToFu(merge_from=None),
    "evit": EViT(fuse=False),
    "evit-fuse": EViT(),
    "dart": DART(pivots=3),
    "pitome": PiToMe(),
    "local": LocalMerging(2),
    "twins": Twins(),
    "ward-pairs": WardPairs(),
}
# Everything that touches all features of all tokens.
_HEAVY = "MatMul FusedMatMul Gemm Softmax LayerNormalization Gelu BiasGelu Erf SkipLayerNormalization"
HEAVY = _HEAVY.split()
SHAPES = {"LaBraM": (3, 400), "EEGPT": (3, 512), "BIOT": (3, 600), "TFM-Tokenizer": (3, 600)}


def run(graph: Any, x: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(value) for value in session.run(None, {"eeg": x.numpy()})]


def noise(shape: tuple[int, int], count: int = 6) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def faults(model: nn.Module, shape: tuple[int, int]) -> list[str]:
    """Export for a batch of six and compare the shipped graph with torch."""
    x = noise(shape)
    shipped, told = graphs(model, shape, batch=len(x))
    outcome = Groupings()
    outcome.add(*reference(WithDecisions(model), x), run(told, x), run(shipped, x)[0])
    assert len(outcome.flips) <= 1
    return outcome.faults()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_as_torch_does(name: str) -> None:
    model = zipbrain.compress(biot(depth=1), METHODS[name], ratio=0.6)
    assert faults(model, (3, 600)) == []


def test_mass_goes_along() -> None:
    model = zipbrain.compress(biot(depth=1), ZIPBrain("k", "vh", "x", 0.5), ratio=0.6, mass=True)
    assert faults(model, (3, 600)) == []


@pytest.mark.parametrize("name", SHAPES)
def test_every_model_answers_as_torch_does(name: str) -> None:
    model = network(name, blocks=1)
    x = noise(SHAPES[name], 2)
    with torch.no_grad():
        expected = model(x)
    (found,) = run(export_graph(model, x), x)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


class Foreign(nn.Module):
    """What other people's models have: GELU by tanh, attention with a mask of numbers or of truths."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(2, (2, -1)).transpose(1, 2)
        told = nn.functional.scaled_dot_product_attention(heads, heads, heads, self.mask)
        return nn.functional.gelu(told.transpose(1, 2).flatten(2), approximate="tanh")


@pytest.mark.parametrize("mask", [torch.randn(5, 5), torch.randn(5, 5) + 3 * torch.eye(5) > 0], ids=["sum", "truth"])
def test_masks_and_the_other_gelu_go_along(mask: Tensor) -> None:
    model, x = Foreign(mask).eval(), noise((5, 8), 2)
    (found,) = run(export_graph(model, x), x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
# ToMe stands for its kind.
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("pitome", "local", "ward-pairs")])
def test_every_model_with_every_method_answers_as_torch_does(name: str, method: str) -> None:
    model = zipbrain.compress(network(name), METHODS[method], r=1, layers=[1, 2])
    assert faults(model, SHAPES[name]) == []


def test_a_free_batch_is_free_and_a_fixed_one_fixed() -> None:
    model, x = zipbrain.compress(biot(depth=1), ZIPBrain(), ratio=0.6), noise((3, 600), 7)
    with torch.no_grad():
        expected = model(x)
    free, _ = graphs(model, (3, 600))
    for count in (1, 2, 7):
        torch.testing.assert_close(run(free, x[:count])[0], expected[:count], rtol=1e-5, atol=1e-5)
    fixed, told = graphs(model, (3, 600), batch=1)
    assert [size.dim_value for size in fixed.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 600]
    torch.testing.assert_close(run(fixed, x[:1])[0], expected[:1], rtol=1e-5, atol=1e-5)
    assert not {"Shape", "Range"} & {node.op_type for node in fixed.graph.node}
    # What is shipped is the graph that tells its decisions, without them.
    assert [value.name for value in fixed.graph.output] == ["logits"]
    assert len(told.graph.output) == 1 + 2
    assert len(fixed.graph.node) < len(told.graph.node)
    assert torch.equal(run(fixed, x[:1])[0], run(told, x[:1])[0])


def test_a_graph_is_whole_standard_and_says_what_pools() -> None:
    model = zipbrain.compress(biot().train(), ZIPBrain(), ratio=0.6)
    graph = export_graph(model, noise((3, 600), 2), opset=19)
    assert model.training
    onnx.checker.check_model(graph, full_check=True)
    assert [(entry.domain, entry.version) for entry in graph.opset_import if not entry.domain] == [("", 19)]
    assert {node.domain for node in graph.graph.node} == {""}
    assert [value.name for value in graph.graph.input] == ["eeg"]
    assert [value.name for value in graph.graph.output] == ["logits"]
    assert all(value.data_location == onnx.TensorProto.DEFAULT for value in graph.graph.initializer)
    assert not any(node.op_type in ("Constant", "Identity", "Dropout") for node in graph.graph.node)
    pooling = [node for node in graph.graph.node if node.name.startswith(POOLING)]
    assert {node.name.split("/")[1] for node in pooling} == {"blocks.0", "blocks.1"}
    assert sum(node.op_type == "TopK" for node in pooling) == 4
    assert not any(node.op_type in ("TopK", "GatherND") for node in graph.graph.node if node not in pooling)
    assert len(pooling) <= 2 * 56  # where the plain steps make 150 each
    names = [node.name for node in graph.graph.node]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["LaBraM", "BIOT"])
def test_outside_pooling_the_slicing_and_the_pooled_graph_run_the_same_operators(name: str, tmp_path: Path) -> None:
    """Otherwise a runtime's fusions would be timed, not pooling: slicing is the limit that no method can beat."""
    counts = []
    for method in ("free_slicing", ZIPBrain("v", "k", "kh", 0.9)):
        model = zipbrain.compress(network(name), method, r=1, layers=[1, 2])
        graph = export_graph(model, noise(SHAPES[name], 2), free_batch=True)
        pooling = {output for node in graph.graph.node if node.name.startswith(POOLING) for output in node.output}
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "run.onnx"), 4
        onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ran = onnx.load(tmp_path / "run.onnx").graph.node
        names = Counter(node.op_type for node in ran if not pooling.intersection(node.output))
        counts.append({key: count for key, count in names.items() if key in HEAVY})
        axes = [
            entry.i for node in ran if node.op_type == "Softmax" for entry in node.attribute if entry.name == "axis"
        ]
        assert axes
        assert 1 not in axes  # over tokens in the middle of a tensor: ten times slower
    assert counts[0] == counts[1]
    assert counts[0]["BiasGelu"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 17}, "opset: got 17, but it must be an integer of at least 18"),
        ({"opset": 99}, "opset: got 99, but the installed onnx knows versions up to"),
        ({"free_batch": True}, "two windows"),
    ],
)
def test_what_cannot_be_exported_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        export_graph(biot(), noise((3, 600), 1), **options)


def test_a_version_that_torch_or_onnx_runtime_does_not_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **asked: made(*given, **asked | {"opset_version": 18}))
    with pytest.raises(OptionError, match="opset: got 19, but torch could make version 18 of this model only"):
        export_graph(biot(), noise((3, 600), 1), opset=19)

    def too_new(proto: Any) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : ValidateOpsetForDomain\nONNX Runtime only guarantees ...")

    monkeypatch.setattr("zipbrain.export.onnx_graph._tidied", too_new)
    with pytest.raises(OptionError, match="the installed ONNX Runtime does not know this version yet"):
        export_graph(biot(), noise((3, 600), 1))
