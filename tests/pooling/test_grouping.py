"""Grouping: merging any tensor, un-merging, composing; merge rules and their two implementations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zipbrain.errors import OptionError, ShapeError
from zipbrain.pooling import (
    DART,
    Composition,
    EViT,
    Grouping,
    LargestNorm,
    Mean,
    MeanNorm,
    Prune,
    Sum,
    ToFu,
    ToMe,
    WeightedMean,
    ZIPBrain,
    as_method,
    compose,
    merges,
    pool,
)
from zipbrain.pooling import grouping as grouping_module
from zipbrain.recipe import Recipe

METHODS = [ZIPBrain("x", "x", "x", 0.5), ToMe(), ToFu(None), EViT("mean", fuse=False), EViT("mean"), DART(pivots=2)]


def example(dropped: bool = False) -> Grouping:
    """Seven tokens: 1 and 5 join 0, 3 joins 6 (or is dropped)."""
    kept = torch.tensor([[0, 2, 4, 6]])
    source, target = torch.tensor([[1, 3, 5]]), torch.tensor([[0, -1 if dropped else 6, 0]])
    return Grouping(kept, source, target, 7, drops=dropped)


def test_recipes_with_the_means_other_name_are_still_read() -> None:
    method = {"name": "composition", "merge": {"name": "weighted_mean"}}
    stored = Recipe.from_dict({"format": 1, "method": method, "schedule": {"name": "constant", "r": 1}})
    assert as_method(method) == as_method(stored.method) == Composition(merge=Mean())
    assert WeightedMean is Mean


def test_each_rule_merges_as_its_name_says() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])
    mass = torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0]])
    merged = example().merge
    assert merged(x, "sum").tolist() == [[9.0, 3.0, 5.0, 11.0]]
    assert merged(x, "mean").tolist() == [[3.0, 3.0, 5.0, 5.5]]
    assert merged(x, "weighted_mean", mass).tolist() == [[11 / 4, 3.0, 5.0, 19 / 4]]
    assert merged(x, "max").tolist() == [[6.0, 3.0, 5.0, 7.0]]
    assert merged(x, "prune").tolist() == [[1.0, 3.0, 5.0, 7.0]]
    vectors = torch.tensor([[[3.0, 0], [0, 4.0], [1, 1], [1, 0], [2, 2], [0, 0], [0, 1.0]]])
    assert torch.allclose(merged(vectors, "largest_norm")[0, 0], torch.tensor([3.0, 4.0]) / 5 * 4)
    assert torch.allclose(merged(vectors, "mean_norm")[0, 0], torch.tensor([3.0, 4.0]) / 5 * (7 / 3))
    weighted = merged(vectors, "mean_norm", mass)[0, 0]
    assert torch.allclose(weighted, torch.nn.functional.normalize(torch.tensor([3.0, 8.0]), dim=0) * (11 / 4))


def test_dropped_tokens_enter_no_sum_and_come_back_as_the_fill() -> None:
    x = torch.arange(1.0, 8.0)[None]
    grouping = example(dropped=True)
    assert grouping.merge(x, "sum").tolist() == [[9.0, 3.0, 5.0, 7.0]]
    assert grouping.unmerge(torch.tensor([[10.0, 20.0, 30.0, 40.0]]), fill=-5.0).tolist() == [
        [10.0, 10.0, 20.0, -5.0, 30.0, 10.0, 40.0]
    ]
    assert grouping.places().tolist() == [[0, 0, 1, -1, 2, 0, 3]]


@given(seed=st.integers(0, 10**6), n=st.integers(4, 30), which=st.integers(0, len(METHODS) - 1))
@settings(max_examples=200)
def test_unmerge_gives_every_member_its_groups_value(seed: int, n: int, which: int) -> None:
    x = torch.randn(2, n, 6, generator=torch.manual_seed(seed))
    heads = [torch.randn(2, 2, n, 3, generator=torch.manual_seed(seed + i)) for i in range(3)]
    pooled = pool(x, *heads, r=n // 3, method=METHODS[which], layer=2, depth=2)
    grouping = pooled.grouping
    spread = grouping.unmerge(pooled.x, fill=7.0)
    for b in range(2):
        kept = grouping.kept[b].tolist()
        owner = dict(zip(grouping.source[b].tolist(), grouping.target[b].tolist(), strict=True))
        for i in range(n):
            end = owner.get(i, i)
            expected = torch.full((6,), 7.0) if end == -1 else pooled.x[b, kept.index(end)]
            assert torch.equal(spread[b, i], expected)


@given(seed=st.integers(0, 10**6), picks=st.lists(st.integers(0, len(METHODS) - 1), min_size=1, max_size=4))
@settings(max_examples=200)
def test_composition_over_layers_is_the_map_from_original_to_final_token(seed: int, picks: list[int]) -> None:
    x = torch.randn(2, 24, 6, generator=torch.manual_seed(seed))
    steps = []
    names = torch.arange(24).expand(2, 24)  # which original (or appended) token stands at each place
    owner = torch.arange(24).repeat(2, 1)  # where each original token is now, by original name
    fresh = 24
    for layer, pick in enumerate(picks):
        heads = [torch.randn(2, 2, x.shape[1], 3, generator=torch.manual_seed(seed + layer))] * 3
        pooled = pool(x, *heads, r=4, method=METHODS[pick], layer=layer + 1, depth=4)
        step = pooled.grouping
        steps.append(step)
        names = torch.cat((names, torch.full((2, step.appended), fresh)), dim=1)
        fresh += step.appended
        for b in range(2):
            for s, t in zip(step.source[b].tolist(), step.target[b].tolist(), strict=True):
                gone, to = int(names[b, s]), -1 if t < 0 else int(names[b, t])
                owner[b][owner[b] == gone] = to
        names = names.gather(1, step.kept)
        x = pooled.x
    whole = compose(steps)
    assert torch.equal(whole.kept, names)
    places = whole.places()
    found = torch.where(places < 0, -1, whole.kept.gather(1, places.clamp_min(0)))
    assert torch.equal(found, owner)


@pytest.mark.parametrize(
    "rule", [Sum(), Mean(), MeanNorm(), LargestNorm(), Prune(), merges.Max()], ids=lambda r: r.name
)
@pytest.mark.parametrize("weighted", [False, True])
def test_one_hot_products_and_scatters_agree(rule: object, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 60, 5, generator=torch.manual_seed(0), dtype=torch.float64)
    mass = torch.rand(3, 60, generator=torch.manual_seed(1), dtype=torch.float64) + 0.5 if weighted else None
    for method in (ZIPBrain("x", "x", "x", 0.3), DART()):
        keys = torch.randn(3, 1, 60, 4, generator=torch.manual_seed(2), dtype=torch.float64)
        grouping = pool(x, k=keys, r=30, method=method).grouping
        small = grouping.merge(x, rule, mass)
        monkeypatch.setattr(grouping_module, "_ONE_HOT_ELEMENTS", 0)
        assert not grouping.small
        large = grouping.merge(x, rule, mass)
        monkeypatch.undo()
        torch.testing.assert_close(small, large, rtol=1e-12, atol=1e-12)


def test_gradients_flow_through_every_merge_rule_and_match_finite_differences() -> None:
    grouping = pool(torch.randn(2, 9, 4, generator=torch.manual_seed(0)), r=4, method=ZIPBrain("x", "x", "x")).grouping
    x = torch.randn(2, 9, 4, generator=torch.manual_seed(1), dtype=torch.float64, requires_grad=True)
    mass = torch.rand(2, 9, generator=torch.manual_seed(2), dtype=torch.float64) + 0.5
    for rule in (Sum(), Mean(), MeanNorm(), LargestNorm()):
        for weight in (None, mass):

            def merged(values: Tensor, rule: object = rule, weight: Tensor | None = weight) -> Tensor:
                return grouping.merge(values, rule, weight)

            assert torch.autograd.gradcheck(merged, (x,))


def test_wrong_shapes_and_unknown_rules_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ShapeError, match=r"values: got \(1, 8\).*7 tokens"):
        example().merge(torch.zeros(1, 8))
    with pytest.raises(ShapeError, match="4 tokens"):
        example().unmerge(torch.zeros(1, 7))
    with pytest.raises(OptionError, match="largest_norm"):
        example().merge(torch.zeros(1, 7), "largest")
    with pytest.raises(ShapeError, match="4 tokens are left"):
        example().compose(example())
    with pytest.raises(OptionError, match="at least one"):
        compose([])
