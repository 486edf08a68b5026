"""ZIPBrain's operators in an exported graph against the plain steps in torch: the same groups, the same features."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from zipbrain import ZIPBrain
from zipbrain.edge import openvino_graph
from zipbrain.edge.runtimes import OnnxRuntime, OpenVINO
from zipbrain.errors import OptionError
from zipbrain.export.onnx_graph import export_graph
from zipbrain.pooling.backends import cpu, onnx
from zipbrain.pooling.pool import pool_tokens
from zipbrain.pooling.tokens import Tokens

HEADS, WIDTH, TOTAL = 2, 4, 13
# spaces, rho, r, protected (leading, trailing)
SETTINGS = [
    (ZIPBrain("x", "v", "x", 0.4), 3, (1, 0)),
    (ZIPBrain("x", "q", "x", 0.0), 5, (0, 0)),
    (ZIPBrain("k", "k", "k", 0.9), 4, (1, 2)),
    (ZIPBrain("vh", "kh", "qh", 0.5), 6, (0, 1)),
    (ZIPBrain("q", "v", "x", 1.0), 2, (1, 0)),
    (ZIPBrain("x", "v", "k", 0.4), 4, (1, 0)),
    (ZIPBrain("x", "x", "vh", 1.0), 11, (1, 0)),
]


class Pooled(nn.Module):
    """Tokens (B, 13, 24), from which q, k and v are cut -> features, kept, source and target of all settings."""

    def forward(self, x: Tensor) -> list[Tensor]:
        parts = [part.reshape(*part.shape[:2], HEADS, WIDTH).transpose(1, 2) for part in x.chunk(3, dim=2)]
        found = []
        for method, r, (leading, trailing) in SETTINGS:
            pooled = pool_tokens(Tokens(x, r, *parts, leading, trailing), method, weigh=False)
            found += [pooled.x, pooled.grouping.kept, pooled.grouping.source, pooled.grouping.target]
        return found


@pytest.fixture(scope="module")
def graph() -> Any:
    made = export_graph(Pooled(), torch.zeros(2, TOTAL, 3 * HEADS * WIDTH), free_batch=True)
    operators = {node.op_type for node in made.graph.node}
    assert {"LpNormalization", "GatherND", "ScatterND", "CumSum"} <= operators  # the lean form, not the plain one
    return made


@pytest.fixture(scope="module")
def session(graph: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(autouse=True)
def _plain() -> Iterator[None]:
    before = cpu.switch(False)
    yield
    cpu.switch(before)


def random_tokens(batch: int, seed: int) -> Tensor:
    return torch.randn(batch, TOTAL, 3 * HEADS * WIDTH, generator=torch.Generator().manual_seed(seed))


def repeated() -> Tensor:
    """Windows of few different tokens, so that almost every decision is a tie; in some, tokens are zero."""
    generator = torch.Generator().manual_seed(1)
    kinds = random_tokens(8, 2)[:, :3]
    chosen = torch.randint(0, 3, (8, TOTAL), generator=generator)
    x = kinds.gather(1, chosen.unsqueeze(2).expand(-1, -1, kinds.shape[2])).clone()
    x[2, ::3] = 0.0
    x[3] = 0.0
    x[4] = x[4, :1]
    return x


def opposite() -> Tensor:
    """Pairs of tokens that cancel out: their sums have no direction."""
    x = random_tokens(4, 3)
    x[:, 7:13] = -x[:, 1:7]
    return x


@pytest.mark.parametrize(
    "x", [random_tokens(1, 4), random_tokens(9, 5), repeated(), opposite(), 1e-12 * random_tokens(3, 6)]
)
def test_groups_and_features_are_those_of_the_plain_steps(x: Tensor, session: onnxruntime.InferenceSession) -> None:
    found = [torch.from_numpy(value) for value in session.run(None, {"eeg": x.numpy()})]
    expected = Pooled()(x)
    for number, (method, _, _) in enumerate(SETTINGS):
        features, *groups = expected[4 * number : 4 * number + 4]
        theirs, *their_groups = found[4 * number : 4 * number + 4]
        for mine, other in zip(groups, their_groups, strict=True):
            assert torch.equal(mine, other), method
        torch.testing.assert_close(theirs, features, rtol=2e-6, atol=2e-6 * float(x.abs().max()))


@pytest.mark.parametrize("batch", [1, 2, 16, 33])
def test_openvino_finds_the_same_groups_in_every_window(batch: int, graph: Any) -> None:
    """It fuses operators in its own ways, and not always rightly: seen with a sum over features and what is added."""
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'zipbrain[openvino]'")
    core = openvino.Core()
    model = core.read_model(io.BytesIO(graph.SerializeToString()))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = random_tokens(batch, 9)
    found = [torch.from_numpy(value.copy()) for value in compiled(x.numpy()).values()]
    expected = Pooled()(x)
    assert len(found) == len(expected)
    for number, (method, _, _) in enumerate(SETTINGS):
        for place in range(4 * number + 1, 4 * number + 4):
            same = (expected[place] == found[place]).all(1).float().mean()
            assert same == 1, f"{method}: the same groups in {same:.0%} of the windows"


class Joined(nn.Module):
    """All that `Pooled` returns in one row per window."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([found.flatten(1).to(x.dtype) for found in Pooled()(x)], dim=1)


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
@pytest.mark.parametrize("batch", [None, 1, 8])
def test_openvino_forms_the_same_groups(batch: int | None) -> None:
    graph = export_graph(Joined(), torch.zeros(batch or 2, TOTAL, 3 * HEADS * WIDTH), free_batch=batch is None)
    content = graph.SerializeToString()
    reference = OnnxRuntime(content, "joined", threads=1, provider="cpu", spinning=False)
    other = OpenVINO(content, "joined", threads=1)
    for x in (random_tokens(8, 5), random_tokens(8, 8), repeated(), torch.cat((opposite(), opposite()))):
        for start in range(0, 8, batch or 8):
            part = x[start : start + (batch or 8)].numpy()
            found, expected = torch.from_numpy(other.run(part)), torch.from_numpy(reference.run(part))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if batch != 1:
        x = random_tokens(8, 7)
        clean = torch.from_numpy(other.run(x.numpy()))
        x[3, 0], x[5, 4, 2] = torch.nan, torch.nan
        broken = torch.from_numpy(other.run(x.numpy()))
        assert broken.isnan().any(1).nonzero().squeeze(1).tolist() == [3, 5]
        assert torch.equal(clean[[0, 1, 2, 4, 6, 7]], broken[[0, 1, 2, 4, 6, 7]])


def test_openvino_gets_reductions_in_place_of_products_and_sums(graph: Any) -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'zipbrain[openvino]'")
    model = openvino.Core().read_model(io.BytesIO(graph.SerializeToString()))

    def kinds() -> list[str]:
        return [node.get_type_name() for node in model.get_ordered_ops()]

    before = kinds()
    openvino_graph._shorten(model)
    for kind in ("ReduceL2", "ReduceMean"):
        assert kinds().count(kind) > before.count(kind)


def test_nan_in_one_window_stays_there(session: onnxruntime.InferenceSession) -> None:
    x = random_tokens(3, 7)
    clean = session.run(None, {"eeg": x.numpy()})
    x[1, 5, 3] = torch.nan
    broken = session.run(None, {"eeg": x.numpy()})
    for number in range(len(SETTINGS)):
        before, after = torch.from_numpy(clean[4 * number]), torch.from_numpy(broken[4 * number])
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert after[1].isnan().any()


def test_without_the_space_that_is_asked_for_the_export_is_refused_in_words() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return pool_tokens(Tokens(x, 3), ZIPBrain("x", "q", "x", 0.5), weigh=False).x

    x = random_tokens(2, 8)
    with pytest.raises(OptionError) as plain:
        Bare()(x)
    with pytest.raises(Exception, match=re.escape(str(plain.value))):
        export_graph(Bare(), x)


def test_the_short_form_is_for_graphs_of_torch_export_alone() -> None:
    tokens = Tokens(random_tokens(1, 7), 3)
    assert "needs torch.export" in onnx.refusal(tokens, ZIPBrain("x", "x", "x"))
