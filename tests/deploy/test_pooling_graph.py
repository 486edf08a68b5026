"""ZIPBrain's operators in an exported graph against the plain steps in torch: the same groups, the same features."""

from __future__ import annotations

from collections.abc import Iterator

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from zipbrain import ZIPBrain
from zipbrain.cost.graph import export_graph
from zipbrain.pooling.kernels import cpu
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
def session() -> onnxruntime.InferenceSession:
    graph = export_graph(Pooled(), torch.zeros(2, TOTAL, 3 * HEADS * WIDTH), free_batch=True)
    operators = {node.op_type for node in graph.graph.node}
    assert {"LpNormalization", "GatherND", "ScatterND"} <= operators  # the lean form, not the plain one
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


def test_nan_in_one_window_stays_there(session: onnxruntime.InferenceSession) -> None:
    x = random_tokens(3, 7)
    clean = session.run(None, {"eeg": x.numpy()})
    x[1, 5, 3] = torch.nan
    broken = session.run(None, {"eeg": x.numpy()})
    for number in range(len(SETTINGS)):
        before, after = torch.from_numpy(clean[4 * number]), torch.from_numpy(broken[4 * number])
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert after[1].isnan().any()
