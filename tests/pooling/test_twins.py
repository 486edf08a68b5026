"""Twins against a literal float64 loop, its own properties, and its share of the work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zipbrain
from zipbrain import Twins
from zipbrain.models import TokenEncoder
from zipbrain.pooling import pool, steps
from zipbrain.pooling.steps import cheapest_partner


def draw(seed: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    heads = (torch.randn(2, 3, n, 4, generator=generator, dtype=dtype) for _ in range(3))
    return torch.randn(2, n, 10, generator=generator, dtype=dtype), *heads


def literal(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor, r: int) -> tuple[set[int], dict[int, int]]:
    """Who goes, and whom each joins, for one window, written as the docstring says it."""
    n = len(mass)
    rows = torch.cat([heads.mean(0) for heads in (q, k, v)], dim=1)
    rank = [float(mass[i]) + 0.5 * ((i * 0.6180339887498949) % 1.0) for i in range(n)]
    cost = []
    for i in range(n):
        prices = [
            float(mass[i] * mass[j] / (mass[i] + mass[j]) * (rows[i] - rows[j]).square().sum())
            for j in range(n)
            if rank[j] > rank[i]
        ]
        cost.append(min(prices, default=float("inf")))
    gone = set(sorted(range(n), key=lambda i: cost[i])[:r])
    unit = x / x.norm(dim=1, keepdim=True)
    stay = [j for j in range(n) if j not in gone]
    return gone, {i: max(stay, key=lambda j: float(unit[i] @ unit[j])) for i in gone}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("n", "r"), [(12, 3), (12, 11), (30, 9)])
def test_groups_are_those_of_the_literal_loop(seed: int, n: int, r: int) -> None:
    x, q, k, v = draw(seed, n)
    mass = torch.randint(1, 5, (2, n), generator=torch.Generator().manual_seed(seed)).double()
    found = pool(x, q, k, v, r=r, method=Twins(), mass=mass)
    for window in range(2):
        gone, joined = literal(x[window], q[window], k[window], v[window], mass[window], r)
        assert set(found.grouping.source[window].tolist()) == gone
        pairs = zip(found.grouping.source[window].tolist(), found.grouping.target[window].tolist(), strict=True)
        assert dict(pairs) == joined
    assert found.mass is not None
    torch.testing.assert_close(found.mass.sum(1), mass.sum(1))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, mass = draw(0, 40)[0], torch.randint(1, 9, (2, 40)).double()
    weight = mass + 0.5 * torch.rand(2, 40, dtype=torch.float64)
    whole = cheapest_partner(rows, mass, weight)
    monkeypatch.setattr(steps, "_MATCH_ELEMENTS", 2 * 40 * 7)
    torch.testing.assert_close(cheapest_partner(rows, mass, weight), whole, rtol=1e-12, atol=1e-12)


def test_copies_of_a_token_merge_first() -> None:
    x, q, k, v = draw(1, 16)
    for values, dim in ((x, 1), (q, 2), (k, 2), (v, 2)):
        values.narrow(dim, 9, 1).copy_(values.narrow(dim, 4, 1))  # token 9 is token 4
    found = pool(x, q, k, v, r=1, method=Twins())
    pairs = torch.cat((found.grouping.source, found.grouping.target), dim=1).sort(dim=1).values
    assert pairs.tolist() == [[4, 9]] * 2
    torch.testing.assert_close(found.x, x[:, [i for i in range(16) if i != found.grouping.source[0, 0]]])


def test_a_network_of_copies_loses_nothing() -> None:
    torch.manual_seed(0)
    model = TokenEncoder(dim=32, depth=4, heads=4).eval()
    some = torch.randn(3, 6, 32)
    x = some.repeat_interleave(4, dim=1)  # 24 tokens, every one four times
    with torch.no_grad():
        before = model(x)
        zipbrain.compress(model, Twins(), r=[6, 6, 6, 0])
        after = model(x)
        zipbrain.compress(model, "zipbrain", r=[6, 6, 6, 0])
        papers = model(x)
    assert (after - before).abs().max() < 1e-4 * before.abs().max()
    assert (papers - before).abs().max() > 10 * (after - before).abs().max()


def test_memory_stays_bounded_with_many_tokens() -> None:
    x = torch.randn(1, 6000, 4)
    heads = torch.randn(1, 1, 6000, 2)
    assert pool(x, heads, heads, heads, r=10, method=Twins()).x.shape == (1, 5990, 4)
