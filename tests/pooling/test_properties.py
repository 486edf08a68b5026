"""Properties that hold for every input (hypothesis)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zipbrain.pooling import (
    DART,
    SPACES,
    EViT,
    LocalMerging,
    Method,
    Pooled,
    ToFu,
    ZIPBrain,
    ablations,
    as_method,
    pool,
)
from zipbrain.pooling.backends import cpu
from zipbrain.pooling.registry import names

# Every registered method as it is by default, and variants that take other ways.
ALL: dict[str, Method] = {
    **{name: as_method(name) for name in names(Method) if name != "composition"},
    "zipbrain per head": ZIPBrain("kh", "vh", "qh", 0.3),
    "tofu pruning": ToFu(merge_from=2),
    "evit dropping": EViT(fuse=False),
    "dart with three pivots": DART(pivots=3),
    "local merging of near tokens": LocalMerging(3),
    **{f"ablation: {name}": method for name, method in ablations(seed=3).items()},
}
sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 33), st.floats(0, 1))
ends = st.tuples(st.integers(0, 2), st.integers(0, 3))
zipbrains = st.builds(
    ZIPBrain, *[st.sampled_from(SPACES)] * 3, st.sampled_from([i / 10 for i in range(11)])
)  # fmt: skip


def draw(seed: int, batch: int, total: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    heads = (torch.randn(batch, 2, total, 4, generator=generator, dtype=dtype) for _ in range(3))
    return torch.randn(batch, total, 8, generator=generator, dtype=dtype), *heads


def on(compiled: bool, *args: Tensor, **options: object) -> Pooled:
    before = cpu.switch(compiled)
    try:
        return pool(*args, **options)  # type: ignore[arg-type]
    finally:
        cpu.switch(before)


@pytest.mark.parametrize("name", ALL)
@given(size=sizes, ends=ends)
@settings(max_examples=100)
def test_every_token_lands_in_exactly_one_group_or_is_marked_dropped(
    name: str, size: tuple[int, int, int, float], ends: tuple[int, int]
) -> None:
    seed, batch, n, share = size
    method, total, r = ALL[name], n + sum(ends), min(n - 1, int(share * n))
    pooled = pool(*draw(seed, batch, total), r=r, method=method, protected=ends)
    grouping = pooled.grouping
    removed = min(r, method.limit(n))
    assert grouping.removed == removed
    assert pooled.x.shape == (batch, total - removed, 8)
    for b in range(batch):
        kept, source = grouping.kept[b].tolist(), grouping.source[b].tolist()
        own = [i for i in kept if i < total]
        assert sorted(own + source) == list(range(total))
        assert source == sorted(source)
        assert own == sorted(own)
        assert set(grouping.target[b].tolist()) <= {*kept, -1}
        safe = [*range(ends[0]), *range(total - ends[1], total)]
        assert set(safe) <= set(kept)
        assert not set(safe) & set(grouping.target[b].tolist())
        # Protected tokens pass through unchanged, at the ends.
        assert torch.equal(pooled.x[b, : ends[0]], draw(seed, batch, total)[0][b, : ends[0]])
        if ends[1]:
            assert torch.equal(pooled.x[b, -ends[1] :], draw(seed, batch, total)[0][b, -ends[1] :])


@pytest.mark.parametrize("name", ALL)
def test_removing_nothing_is_the_identity(name: str) -> None:
    x, q, k, v = draw(0, 2, 9)
    pooled = pool(x, q, k, v, r=0, method=ALL[name], protected=1)
    assert torch.equal(pooled.x, x)
    assert pooled.grouping.kept.tolist() == [list(range(9))] * 2


@given(size=sizes, method=zipbrains, compiled=st.booleans())
@settings(max_examples=300)
def test_a_groups_norm_is_its_largest_members(
    size: tuple[int, int, int, float], method: ZIPBrain, compiled: bool
) -> None:
    seed, batch, n, share = size
    x, q, k, v = draw(seed, batch, n)
    pooled = on(compiled, x, q, k, v, r=min(n - 1, int(share * n)), method=method)
    norms = torch.linalg.vector_norm(x, dim=2)
    expected = pooled.grouping.merge(norms, "max")
    torch.testing.assert_close(torch.linalg.vector_norm(pooled.x, dim=2), expected, rtol=2e-6, atol=1e-6)
    alone = pooled.grouping.merge(torch.ones_like(norms), "sum") == 1
    assert torch.equal(pooled.x[alone], pooled.grouping.merge(x, "prune")[alone])  # singletons are unchanged


@given(size=sizes, method=zipbrains, compiled=st.booleans())
@settings(max_examples=300)
def test_permuting_unprotected_tokens_permutes_the_result(
    size: tuple[int, int, int, float], method: ZIPBrain, compiled: bool
) -> None:
    seed, _, n, share = size
    x, q, k, v = (part.double() for part in draw(seed, 1, n + 1))  # float64: no near ties
    r = min(n - 1, int(share * n))
    order = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(n, generator=torch.manual_seed(seed))))
    plain = on(compiled, x, q, k, v, r=r, method=method, protected=1)
    moved = on(compiled, x[:, order], *(h[:, :, order] for h in (q, k, v)), r=r, method=method, protected=1)
    if r == 0:
        return
    back = order[moved.grouping.kept[0]]
    assert sorted(back.tolist()) == plain.grouping.kept[0].tolist()
    torch.testing.assert_close(moved.x[0][back.argsort()], plain.x[0], rtol=1e-9, atol=1e-9)
    pairs = set(zip(order[moved.grouping.source[0]].tolist(), order[moved.grouping.target[0]].tolist(), strict=True))
    assert pairs == set(zip(plain.grouping.source[0].tolist(), plain.grouping.target[0].tolist(), strict=True))


@given(
    seed=st.integers(0, 10**6), n=st.integers(2, 40), share=st.floats(0, 1), method=zipbrains, compiled=st.booleans()
)
@settings(max_examples=200)
def test_a_window_alone_gets_the_same_groups_as_in_a_batch_of_64(
    seed: int, n: int, share: float, method: ZIPBrain, compiled: bool
) -> None:
    parts = draw(seed, 64, n)
    r = min(n - 1, int(share * n))
    whole = on(compiled, *parts, r=r, method=method)
    for b in (0, 17, 63):
        single = on(compiled, *(part[b : b + 1] for part in parts), r=r, method=method)
        assert torch.equal(single.grouping.source[0], whole.grouping.source[b])
        assert torch.equal(single.grouping.target[0], whole.grouping.target[b])
        torch.testing.assert_close(single.x[0], whole.x[b], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 24), share=st.floats(0, 1))
@settings(max_examples=30)
def test_rivals_too_do_not_depend_on_the_batch(name: str, seed: int, n: int, share: float) -> None:
    parts = draw(seed, 5, n)
    r = min(n - 1, int(share * n))
    whole = pool(*parts, r=r, method=ALL[name])
    single = pool(*(part[3:4] for part in parts), r=r, method=ALL[name])
    assert torch.equal(single.grouping.kept[0], whole.grouping.kept[3])
    assert torch.equal(single.grouping.target[0], whole.grouping.target[3])


@given(
    seed=st.integers(0, 10**6), n=st.integers(6, 70), copies=st.integers(2, 6), width=st.sampled_from([8, 20, 200]),
    space=st.sampled_from(["x", "k", "kh"]), rho=st.sampled_from([0.0, 0.3, 0.9]), compiled=st.booleans(),
)  # fmt: skip
@settings(max_examples=300)
def test_ties_between_bit_identical_tokens_go_to_the_lower_index(
    seed: int, n: int, copies: int, width: int, space: str, rho: float, compiled: bool
) -> None:
    # Dead channels give identical tokens; a matrix product may give identical rows different last bits.
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, width, generator=generator)
    k = torch.randn(1, 2, n, width // 2, generator=generator)
    twins = torch.randperm(n, generator=generator)[:copies].sort().values
    x[:, twins] = x[:, twins[:1]].clone()
    k[:, :, twins] = k[:, :, twins[:1]].clone()
    grouping = on(compiled, x, None, k, None, r=n // 2, method=ZIPBrain(space, space, space, rho)).grouping
    gone = grouping.source[0].tolist()
    states = [int(t) in gone for t in twins]
    # Twins have equal norm and equal redundancy: pivots first (lower index), then redundant ones (lower index).
    kept_twins = [int(t) for t, out in zip(twins, states, strict=True) if not out]
    if kept_twins:
        for i, t in zip(grouping.source[0].tolist(), grouping.target[0].tolist(), strict=True):
            if i in twins.tolist():
                assert t == kept_twins[0]  # the first of the identical kept ones
    changes = sum(a != b for a, b in itertools.pairwise(states))
    assert changes <= 2  # kept pivots, then redundant, then kept again: each a run in index order


@given(n=st.integers(1, 12), zeros=st.booleans(), compiled=st.booleans(), method=zipbrains)
@settings(max_examples=200)
def test_tokens_that_are_all_equal_or_all_zero_give_a_lawful_result(
    n: int, zeros: bool, compiled: bool, method: ZIPBrain
) -> None:
    x = torch.zeros(2, n, 8) if zeros else torch.ones(2, n, 8)
    heads = [torch.zeros(2, 2, n, 4) if zeros else torch.ones(2, 2, n, 4)] * 3
    for r in range(n):
        pooled = on(compiled, x, *heads, r=r, method=method)
        torch.testing.assert_close(pooled.x, x[:, : n - r], rtol=1e-6, atol=0)
        assert pooled.grouping.kept.tolist()[0] == pooled.grouping.kept.tolist()[1]


def test_a_group_whose_sum_vanishes_takes_its_kept_tokens_direction(path: str) -> None:
    v = torch.randn(8, generator=torch.manual_seed(1))
    x = torch.stack((2 * v, -2 * v))[None]
    pooled = pool(x, r=1, method=ZIPBrain("x", "x", "x", 0.0))
    torch.testing.assert_close(pooled.x[0, 0], 2 * v)
    x = torch.stack((torch.ones(8), torch.full((8,), 3.0), torch.full((8,), -4.0)))[None]
    pooled = pool(x, r=2, method=ZIPBrain("x", "x", "x", 0.0))  # the longest stays: -4, and the sum is zero
    torch.testing.assert_close(pooled.x[0, 0], torch.full((8,), -4.0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("everywhere", [False, True])
def test_nan_and_infinity_come_out_and_never_crash(name: str, bad: float, everywhere: bool, path: str) -> None:
    parts = draw(5, 3, 12)
    for part in parts:
        part[1, ..., 4, :] = bad
        if everywhere:
            part[1] = bad
    # r below the cap of ToMe and ToFu: a pruning method that must drop every second token can't keep a broken one.
    pooled = pool(*parts, r=4, method=ALL[name], protected=1)
    assert pooled.x.shape == (3, 8, 8)
    healthy = pool(*(part[[0, 2]] for part in parts), r=4, method=ALL[name], protected=1)
    assert torch.equal(pooled.x[[0, 2]], healthy.x)  # other windows know nothing of it
    if name != "free_slicing":
        assert not pooled.x[1].isfinite().all()


@given(size=sizes, ends=ends, seed=st.integers(0, 10**6))
@settings(max_examples=100)
def test_a_mask_at_the_ends_equals_leading_and_trailing(
    size: tuple[int, int, int, float], ends: tuple[int, int], seed: int
) -> None:
    _, batch, n, share = size
    total = n + sum(ends)
    parts = draw(seed, batch, total)
    mask = torch.zeros(total, dtype=torch.bool)
    mask[: ends[0]] = True
    mask[total - ends[1] :] = True
    r = min(n - 1, int(share * n))
    for name in ("zipbrain", "evit", "dart"):
        method = ALL[name] if name != "evit" else EViT(score="mean")
        by_mask = pool(*parts, r=r, method=method, protected=mask)
        by_ends = pool(*parts, r=r, method=method, protected=ends)
        assert torch.equal(by_mask.grouping.kept, by_ends.grouping.kept)
        assert torch.equal(by_mask.grouping.target, by_ends.grouping.target)
        torch.testing.assert_close(by_mask.x, by_ends.x)


def test_masked_tokens_anywhere_are_never_touched() -> None:
    x, q, k, v = draw(0, 4, 20)
    mask = torch.zeros(4, 20, dtype=torch.bool)
    for b in range(4):
        mask[b, torch.randperm(20, generator=torch.manual_seed(b))[:6]] = True
    for name, method in ALL.items():
        if name == "free_slicing":
            continue
        pooled = pool(x, q, k, v, r=6, method=method, protected=mask)
        for b in range(4):
            safe = mask[b].nonzero().ravel().tolist()
            kept = pooled.grouping.kept[b].tolist()
            assert set(safe) <= set(kept)
            assert not set(safe) & set(pooled.grouping.target[b].tolist())
            for i in safe:
                assert torch.equal(pooled.x[b, kept.index(i)], x[b, i])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_groups_as_float32_does_on_the_same_rounded_tokens(name: str, dtype: torch.dtype) -> None:
    for seed in range(6):
        parts = [part.to(dtype) for part in draw(seed, 2, 50)]
        mass = torch.randint(1, 5, (2, 50), generator=torch.manual_seed(seed)).float() if seed % 2 else None
        options: dict[str, Any] = {"r": 20, "method": ALL[name], "protected": (1, 2), "mass": mass}
        half = pool(*parts, **options)
        wide = pool(*(part.float() for part in parts), **options)
        assert half.x.dtype == dtype
        assert torch.equal(half.grouping.kept, wide.grouping.kept)
        assert torch.equal(half.grouping.target, wide.grouping.target)
        torch.testing.assert_close(half.x.float(), wide.x, rtol=2e-2, atol=2e-2)
