"""Compressed models pass whole through torch.compile, torch.export and ONNX, and give the same numbers there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import zipbrain
from seams.small_models import linear_transformer, tokens, varied
from zipbrain import DART, EViT, FreeSlicing, ToFu, ToMe, Twins, ZIPBrain
from zipbrain.models import TokenEncoder
from zipbrain.pooling.backends import cpu

DIM, N = 32, 24

# name -> method, mass
CASES: dict[str, tuple[Any, bool]] = {
    "zipbrain": (ZIPBrain(), False),
    "zipbrain-all-pivots": (ZIPBrain("k", "v", "k", 1.0), False),
    "zipbrain-heads": (ZIPBrain("vh", "kh", "qh", 0.3), False),
    "zipbrain-mass": (ZIPBrain(), True),
    "tome": (ToMe(), False),
    "tofu": (ToFu(), False),
    "tofu-prune": (ToFu(merge_from=None), False),
    "evit-cls": (EViT("cls", fuse=False), False),
    "evit-mean": (EViT("mean", fuse=False), False),
    "evit-fuse": (EViT(), False),
    "evit-fuse-mass": (EViT(), True),
    "dart": (DART(), False),
    "free_slicing": (FreeSlicing(), False),
    "twins": (Twins(), False),
}
DATA_DEPENDENT = {"NonZero", "Unique", "Compress", "Loop", "If", "Scan", "SequenceAt"}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def encoder(case: str, depth: int = 4, layers: Any = None) -> nn.Module:
    method, mass = CASES[case]
    model = varied(TokenEncoder(dim=DIM, depth=depth, heads=4))
    return zipbrain.compress(model, method, ratio=0.7, mass=mass, layers=layers)


def linear_encoder(case: str) -> nn.Module:
    method, mass = CASES[case]
    return zipbrain.compress(varied(linear_transformer(2)), method, ratio=0.7, mass=mass)


def windows(batch: int, seed: int = 3, dim: int = DIM) -> Tensor:
    return tokens(batch, N, dim, seed)


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x)
    return result


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@dataclass
class Exported:
    """A graph in torch's and in ONNX form."""

    program: Any
    onnx: Any

    def session(self, folder: Path) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.onnx.save(folder / "model.onnx")
        return onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])

    def nodes(self) -> list[Any]:
        proto = self.onnx.model_proto
        return [*proto.graph.node, *(node for function in proto.functions for node in function.node)]


def export(model: nn.Module, x: Tensor, dynamic: bool) -> Exported:
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
        onnx = torch.onnx.export(program, (x,), dynamo=True, opset_version=18, verbose=False)
    return Exported(program, onnx)


def onnx_run(session: onnxruntime.InferenceSession, x: Tensor) -> Tensor:
    (found,) = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(x.numpy())})
    return torch.from_numpy(found)


def assert_no_data_dependence(exported: Exported) -> None:
    kinds = {node.op_type for node in exported.nodes()}
    assert "TopK" in kinds  # the choice of tokens is in the graph, not frozen into it
    assert not kinds & DATA_DEPENDENT
    for node in exported.nodes():
        if node.op_type.startswith("Scatter"):
            reductions = [value.s for value in node.attribute if value.name == "reduction"]
            assert reductions in ([], [b"none"])


# -- torch.compile -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_compiles_as_one_graph(case: str) -> None:
    model = encoder(case)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for seed in (3, 4):
        assert_close(run(compiled, windows(3, seed)), run(model, windows(3, seed)))


@pytest.mark.parametrize("case", ["zipbrain", "zipbrain-mass", "tome"])
def test_the_linear_transformer_compiles_as_one_graph(case: str) -> None:
    model, x = linear_encoder(case), windows(3, dim=16)
    assert_close(run(torch.compile(model, backend="aot_eager", fullgraph=True), x), run(model, x))


def test_compressing_after_compiling_takes_effect_and_so_does_restoring() -> None:
    model, x = varied(TokenEncoder(dim=DIM, depth=2, heads=4)), windows(2)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    full = run(compiled, x)
    zipbrain.compress(model, r=6)
    assert_close(run(compiled, x), run(model, x))
    zipbrain.compress(model, r=9)
    assert_close(run(compiled, x), run(model, x))
    assert (run(compiled, x) - full).abs().max() > 1e-3
    zipbrain.restore(model)
    assert_close(run(compiled, x), full)


def test_gradients_flow_through_a_compiled_model() -> None:
    eager, compiled = encoder("zipbrain", 2).train(), encoder("zipbrain", 2).train()
    eager(windows(2)).sum().backward()
    torch.compile(compiled, backend="aot_eager", fullgraph=True)(windows(2)).sum().backward()
    for (name, one), other in zip(eager.named_parameters(), compiled.parameters(), strict=True):
        if one.grad is None:
            assert other.grad is None, name
        else:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None and shutil.which("clang++") is None, reason="no C++ compiler"
)
def test_inductor_gives_the_same_numbers() -> None:
    model = encoder("zipbrain", 1)
    assert_close(run(torch.compile(model, fullgraph=True), windows(3)), run(model, windows(3)))


# -- torch.export and ONNX ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_exports_with_a_fixed_batch(case: str, tmp_path: Path) -> None:
    model = encoder(case, layers=None if case == "zipbrain" else [2, 4])
    exported = export(model, windows(2), dynamic=False)
    assert_close(run(exported.program.module(), windows(2, 5)), run(model, windows(2, 5)))
    session = exported.session(tmp_path)
    for seed in (3, 4, 5, 6):
        assert_close(onnx_run(session, windows(2, seed)), run(model, windows(2, seed)))
    if case.startswith("zipbrain"):
        assert_no_data_dependence(exported)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["zipbrain-heads", "zipbrain-mass", "tome", "tofu", "evit-mean", "evit-fuse", "dart"])
def test_exports_with_a_free_batch(case: str, tmp_path: Path) -> None:
    model = encoder(case, depth=2)
    exported = export(model, windows(2), dynamic=True)
    session, graph = exported.session(tmp_path), exported.program.module()
    for batch in (1, 3):
        for seed in (3, 4):
            expected = run(model, windows(batch, seed))
            assert_close(onnx_run(session, windows(batch, seed)), expected)
            assert_close(run(graph, windows(batch, seed)), expected)
    if case.startswith("zipbrain"):
        assert_no_data_dependence(exported)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["zipbrain", "tome"])
def test_the_linear_transformer_exports(case: str, tmp_path: Path) -> None:
    model = linear_encoder(case)
    exported = export(model, windows(2, dim=16), dynamic=True)
    session, graph = exported.session(tmp_path), exported.program.module()
    for batch in (1, 3):
        expected = run(model, windows(batch, dim=16))
        assert_close(run(graph, windows(batch, dim=16)), expected)
        assert_close(onnx_run(session, windows(batch, dim=16)), expected)
    if case == "zipbrain":
        assert_no_data_dependence(exported)


@pytest.mark.slow
def test_flat_channels_give_the_same_tokens_in_onnx(tmp_path: Path) -> None:
    """Identical tokens are ties everywhere; the lower index must win in ONNX Runtime as in torch."""
    model = encoder("zipbrain", depth=2)
    session = export(model, windows(1), dynamic=False).session(tmp_path)
    x = windows(1)
    x[:, 4:15] = x[:, 4:5]
    x[:, 20:] = 0
    assert_close(onnx_run(session, x), run(model, x))
    assert_close(onnx_run(session, torch.zeros_like(x)), run(model, torch.zeros_like(x)))


# -- no value is ever read on the host ---------------------------------------------------------------------------------


@pytest.fixture
def plain_operators() -> Iterator[None]:
    before = cpu.switch(False)
    yield
    cpu.switch(before)


@pytest.mark.usefixtures("plain_operators")
@pytest.mark.parametrize("case", CASES)
def test_a_forward_reads_no_value(case: str) -> None:
    """Fake tensors have shapes and no values: anything that depends on a value raises."""
    model, x = encoder(case), windows(3)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = run(model, mode.from_tensor(x))
    assert tuple(found.shape) == (3, 2)


@pytest.mark.usefixtures("plain_operators")
@pytest.mark.parametrize("case", ["zipbrain", "zipbrain-heads", "zipbrain-mass", "tome"])
def test_a_linear_forward_reads_no_value(case: str) -> None:
    model = linear_encoder(case)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = run(model, mode.from_tensor(windows(3, dim=16)))
    assert found.shape[0] == 3


@pytest.mark.usefixtures("plain_operators")
def test_a_masked_forward_reads_no_value() -> None:
    mask = torch.zeros(N + 1, dtype=torch.bool)
    mask[[0, 7, 12]] = True
    model = zipbrain.compress(varied(TokenEncoder(dim=DIM, depth=2, heads=4)), r=5, protected=mask, mass=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = run(model, mode.from_tensor(windows(3)))
    assert tuple(found.shape) == (3, 2)


def test_fake_tensors_do_catch_a_read() -> None:
    """The tests above can fail."""
    with FakeTensorMode() as mode, pytest.raises(DataDependentOutputException):
        mode.from_tensor(windows(1)).sum().item()
