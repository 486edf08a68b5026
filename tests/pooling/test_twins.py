"""Twins against a literal float64 loop, its own properties, and its first version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import zipbrain
from seams.small_models import DIM, linear_transformer, varied
from zipbrain import Recipe, Twins
from zipbrain.data import Synthetic
from zipbrain.errors import OptionError
from zipbrain.models import TokenEncoder
from zipbrain.pooling import Composition, Grouping, as_method, pool, steps
from zipbrain.pooling.merges import Mean, MeanNorm
from zipbrain.pooling.methods.twins import side_by_side
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_partner, cheapest_target
from zipbrain.training import predict

FIRST = Composition("close_pairs", "most_similar", "mean_norm")  # type: ignore[arg-type]


def draw(seed: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    heads = (torch.randn(2, 3, n, 4, generator=generator, dtype=dtype) for _ in range(3))
    return torch.randn(2, n, 10, generator=generator, dtype=dtype), *heads


def masses(seed: int, n: int) -> Tensor:
    return torch.randint(1, 5, (2, n), generator=torch.Generator().manual_seed(seed)).double()


def chosen(rows: Tensor, mass: Tensor, r: int) -> tuple[set[int], Tensor]:
    """Who goes, and the costs of all pairs, for one window, written as the docstring says it."""
    n = len(mass)
    rank = [float(mass[i]) + 0.5 * ((i * 0.6180339887498949) % 1.0) for i in range(n)]
    price = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            price[i, j] = mass[i] * mass[j] / (mass[i] + mass[j]) * (rows[i] - rows[j]).square().sum()
    cost = [min((float(price[i, j]) for j in range(n) if rank[j] > rank[i]), default=float("inf")) for i in range(n)]
    return set(sorted(range(n), key=lambda i: cost[i])[:r]), price


def literal(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor, r: int) -> dict[int, int]:
    parts = []
    for part in (x, q.mean(0), k.mean(0), v.mean(0)):
        centred = part - part.mean(0)
        parts.append(centred / centred.norm(dim=1).square().mean().sqrt())
    gone, price = chosen(torch.cat(parts, dim=1), mass, r)
    return {i: min(set(range(len(mass))) - gone, key=lambda j: float(price[i, j])) for i in gone}


def literal_first(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mass: Tensor, r: int) -> dict[int, int]:
    gone, _ = chosen(torch.cat([heads.mean(0) for heads in (q, k, v)], dim=1), mass, r)
    unit = x / x.norm(dim=1, keepdim=True)
    return {i: max(set(range(len(mass))) - gone, key=lambda j: float(unit[i] @ unit[j])) for i in gone}


@pytest.mark.parametrize(("method", "loop"), [(Twins(), literal), (FIRST, literal_first)], ids=["twins", "first"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("n", "r"), [(12, 3), (12, 11), (30, 9)])
def test_groups_are_those_of_the_literal_loop(method: object, loop: object, seed: int, n: int, r: int) -> None:
    parts, mass = draw(seed, n), masses(seed, n)
    found = pool(*parts, r=r, method=method, mass=mass)  # type: ignore[arg-type]
    for window in range(2):
        pairs = zip(found.grouping.source[window].tolist(), found.grouping.target[window].tolist(), strict=True)
        assert dict(pairs) == loop(*(part[window] for part in parts), mass[window], r)  # type: ignore[operator]
    assert found.mass is not None
    torch.testing.assert_close(found.mass.sum(1), mass.sum(1))


def test_a_large_common_part_and_the_size_of_a_space_do_not_matter() -> None:
    x, q, k, v = (part.float() for part in draw(3, 30))
    plain = pool(x, q, k, v, r=12, method=Twins()).grouping
    moved = pool(8 * x + 300, q / 64, k - 50, v * 1024, r=12, method=Twins()).grouping
    assert torch.equal(moved.source, plain.source)
    assert torch.equal(moved.target, plain.target)


def test_spaces_count_alike_and_a_flat_one_says_nothing() -> None:
    x, q, k, v = (part.float() for part in draw(2, 20))
    k[:] = 3.7 + 1e-7 * k
    q[:] = 0
    rows = side_by_side(Spaces(Tokens(x, 1, q, k, v)))
    widths = rows.square().sum(1).split([10, 4, 4, 4], dim=1)
    found = torch.stack([part.sum(1) / 20 for part in widths], dim=1)
    torch.testing.assert_close(found[:, [0, 3]], torch.full((2, 2), 0.25))
    assert found[:, 1].max() == 0
    assert found[:, 2].max() < 1e-4


def test_merging_depends_on_the_attention() -> None:
    parts, mass = draw(4, 16), masses(4, 16)
    for linear, rule in ((False, MeanNorm()), (True, Mean())):
        found = pool(*parts, r=6, method=Twins(), mass=mass, linear=linear)
        torch.testing.assert_close(found.x, rule(parts[0], found.grouping, mass))
    everywhere = pool(*parts, r=6, method=Twins(linear="mean_norm"), mass=mass, linear=True)  # type: ignore[arg-type]
    torch.testing.assert_close(everywhere.x, pool(*parts, r=6, method=Twins(), mass=mass).x)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, mass = draw(0, 40)[0], torch.randint(1, 9, (2, 40)).double()
    weight = mass + 0.5 * torch.rand(2, 40, dtype=torch.float64)
    closed = torch.rand(2, 40) < 0.5
    whole = cheapest_partner(rows, mass, weight), cheapest_target(rows, mass, rows, mass, closed, 0.0)
    monkeypatch.setattr(steps, "_MATCH_ELEMENTS", 2 * 40 * 7)
    torch.testing.assert_close(cheapest_partner(rows, mass, weight), whole[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(cheapest_target(rows, mass, rows, mass, closed, 0.0), whole[1])


def test_copies_of_a_token_merge_first() -> None:
    x, q, k, v = draw(1, 16)
    for values, dim in ((x, 1), (q, 2), (k, 2), (v, 2)):
        values.narrow(dim, 9, 1).copy_(values.narrow(dim, 4, 1))  # token 9 is token 4
    found = pool(x, q, k, v, r=1, method=Twins())
    pairs = torch.cat((found.grouping.source, found.grouping.target), dim=1).sort(dim=1).values
    assert pairs.tolist() == [[4, 9]] * 2
    torch.testing.assert_close(found.x, x[:, [i for i in range(16) if i != found.grouping.source[0, 0]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_dead_channels_go_into_the_lightest_of_their_kind_and_of_those_the_first(dtype: torch.dtype, seed: int) -> None:
    n, dead = 40, [3, 4, 11, 17, 25, 31, 38]
    parts = draw(seed, n, torch.float32)
    for part in parts:
        part[..., dead, :] = part[..., dead[:1], :].clone()
    parts = tuple(part.to(dtype) for part in parts)
    mass = torch.ones(2, n)
    mass[:, [11, 25]] = 8
    found = pool(*parts, r=3, method=Twins(), mass=mass)
    light = [place for place in dead if place not in (11, 25)]
    for window in range(2):
        gone, target = found.grouping.source[window].tolist(), found.grouping.target[window].tolist()
        assert set(gone) <= set(light)  # copies are cheapest, light ones before heavy ones
        assert target == [min(set(light) - set(gone))] * 3
    assert found.x.dtype == dtype
    torch.testing.assert_close(found.x[:, :3], parts[0][:, :3])


@pytest.mark.parametrize("value", [0.0, 1.0, -3e4])
def test_tokens_that_are_all_alike_give_a_lawful_result(value: float) -> None:
    x, heads = torch.full((2, 9, 8), value), torch.full((2, 2, 9, 4), value)
    found = pool(x, heads, heads, heads, r=5, method=Twins(), protected=(1, 1))
    torch.testing.assert_close(found.x, x[:, :4])
    assert found.grouping.target.unique().numel() == 1
    assert torch.equal(found.grouping.source[0], found.grouping.source[1])


def test_half_precision_groups_like_float32() -> None:
    parts = tuple(part.half() for part in draw(6, 30, torch.float32))
    half = pool(*parts, r=12, method=Twins())
    full = pool(*(part.float() for part in parts), r=12, method=Twins())
    assert torch.equal(half.grouping.target, full.grouping.target)
    torch.testing.assert_close(half.x.float(), full.x, rtol=2e-3, atol=2e-3)


def test_gradients_go_through_the_merge_alone() -> None:
    x, q, k, v = draw(5, 12)
    for part in (x, q, k, v):
        part.requires_grad_()
    pool(x, q, k, v, r=5, method=Twins(), mass=masses(5, 12)).x.square().sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(2) > 0).all()
    assert q.grad is k.grad is v.grad is None


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_network_of_copies_loses_nothing(attention: str) -> None:
    torch.manual_seed(0)
    model = TokenEncoder(dim=DIM, depth=4, heads=4).eval() if attention == "softmax" else varied(linear_transformer(4))
    some = torch.randn(3, 6, DIM)
    x = some.repeat_interleave(4, dim=1)  # 24 tokens, every one four times
    with torch.no_grad():
        before = model(x)
        zipbrain.compress(model, Twins(), r=[6, 6, 6, 0])
        after = model(x)
        zipbrain.compress(model, "zipbrain", r=[6, 6, 6, 0], mass=zipbrain.Mass(readout=True))
        papers = model(x)
    assert (after - before).abs().max() < 1e-4 * before.abs().max()
    assert (papers - before).abs().max() > 10 * (after - before).abs().max()


def test_memory_stays_bounded_with_many_tokens() -> None:
    x = torch.randn(1, 6000, 4)
    heads = torch.randn(1, 1, 6000, 2)
    assert pool(x, heads, heads, heads, r=10, method=Twins()).x.shape == (1, 5990, 4)


def recipe(method: dict[str, object], mass: bool = True) -> Recipe:
    return Recipe(method, {"name": "ratio", "ratio": 0.8}, mass)  # type: ignore[arg-type]


def test_recipes_of_the_first_version_stay_the_first_version() -> None:
    old = recipe({"name": "Twins", "merge": {"name": "mean_norm"}}, mass=False)
    assert as_method(old.method) == FIRST
    assert old.mass == {"attention": True, "merge": True, "readout": True}
    assert old.key() == recipe(FIRST.to_dict()).key()
    assert Recipe.from_dict(old.to_dict()) == old
    new = recipe({"name": "twins"}, mass=False)
    assert new.key() == recipe(Twins().to_dict()).key()
    assert new.key() not in (old.key(), recipe({"name": "twins", "linear": "mean_norm"}).key())
    assert '"merge":{"name":"mean_norm"}' not in new.key()  # the key that the first version's results were stored under
    assert replace(new) == new
    with pytest.raises(OptionError, match="twins takes linear, softmax"):
        as_method({"name": "twins", "merge": "mean_norm"})


# -- outliers ----------------------------------------------------------------------------------------------------------


def with_outliers(factor: float, places: tuple[int, ...], spaces: str = "xqkv") -> tuple[Tensor, ...]:
    parts = draw(3, 40, torch.float32)
    for name, part in zip("xqkv", parts, strict=True):
        if name in spaces:
            part[..., list(places), :] *= factor
    return parts


def without(parts: tuple[Tensor, ...], places: tuple[int, ...]) -> list[Tensor]:
    stay = [i for i in range(parts[0].shape[1]) if i not in places]
    return [part[..., stay, :] for part in parts]


@pytest.mark.parametrize("spaces", ["x", "k", "xqkv"])
@pytest.mark.parametrize("factor", [1e3, 1e4, 1e8])
@pytest.mark.parametrize("places", [(7,), (0, 39), (1, 2, 3)])
def test_outliers_leave_the_others_as_far_apart_as_they_are_without_them(
    spaces: str, factor: float, places: tuple[int, ...]
) -> None:
    parts = with_outliers(factor, places, spaces)
    x, q, k, v = parts
    rows = side_by_side(Spaces(Tokens(x, 1, q, k, v)))
    stay = [i for i in range(40) if i not in places]
    if spaces == "xqkv":
        x, q, k, v = without(parts, places)
        torch.testing.assert_close(rows[:, stay], side_by_side(Spaces(Tokens(x, 1, q, k, v))), rtol=1e-4, atol=1e-4)
    distance = torch.cdist(rows[:, stay], rows[:, stay]).square()
    assert 1.5 < distance.mean() < 2.5
    old = side_by_side(Spaces(Tokens(parts[0], 1, *parts[1:])), trimmed=False)
    assert torch.cdist(old[:, stay], old[:, stay]).square().mean() < 1.9


def test_one_outlier_leaves_no_other_token_at_the_floor() -> None:
    parts = with_outliers(1e4, (7,))
    grouping = pool(*parts, r=12, method=Twins()).grouping
    clean = [part.clone() for part in draw(3, 40, torch.float32)]
    usual = pool(*clean, r=12, method=Twins()).grouping
    for row in range(2):
        pairs = set(zip(grouping.source[row].tolist(), grouping.target[row].tolist(), strict=True))
        old = set(zip(usual.source[row].tolist(), usual.target[row].tolist(), strict=True))
        assert len(pairs & old) >= 9  # the outlier was one of the tokens, so a few pairs are others
        assert 7 not in grouping.source[row].tolist()
        assert 7 not in grouping.target[row].tolist()


@pytest.mark.parametrize("n", [2, 7, 12, 64])
@pytest.mark.parametrize("massed", [False, True])
def test_without_outliers_trimming_changes_nothing(n: int, massed: bool) -> None:
    for seed in range(10):
        parts = draw(seed, n)
        mass = masses(seed, n) if massed else None
        one, other = (pool(*parts, r=n // 2, method=Twins(trimmed=t), mass=mass).grouping for t in (True, False))
        assert torch.equal(one.kept, other.kept)
        assert torch.equal(one.target, other.target)


def test_a_few_tokens_among_copies_are_no_outliers() -> None:
    x, q, k, v = draw(1, 40, torch.float32)
    for part in (x, q, k, v):
        part[..., 4:, :] = 0.0
    one, other = (side_by_side(Spaces(Tokens(x, 1, q, k, v)), trimmed) for trimmed in (True, False))
    torch.testing.assert_close(torch.cdist(one, one), torch.cdist(other, other), rtol=1e-3, atol=1e-2)
    grouping = pool(x, q, k, v, r=38, method=Twins()).grouping
    assert grouping.kept.shape == (2, 2)
    assert (grouping.kept[:, 0] < 4).all()  # copies go first


@pytest.mark.parametrize("value", [1e-15, 1.0, 1e15])
def test_the_scale_of_a_window_does_not_matter(value: float) -> None:
    parts = with_outliers(1e4, (7,)) if value == 1 else tuple(part * value for part in with_outliers(1e3, (7,)))
    grouping = pool(*parts, r=12, method=Twins()).grouping
    expected = pool(*(part.double() for part in parts), r=12, method=Twins()).grouping
    assert torch.equal(grouping.kept, expected.kept)
    assert torch.equal(grouping.target, expected.target)


class Both(Twins):
    """Twins that notes whether trimming changes who goes where."""

    def __call__(self, tokens: Tokens) -> Grouping:
        one, other = Twins()(tokens), Twins(trimmed=False)(tokens)
        same = (one.kept == other.kept).all(1) & (one.target == other.target).all(1)
        SAME.extend(same.tolist())
        return one


SAME: list[bool] = []


def test_trimming_changes_few_groupings_of_a_trained_network() -> None:
    model = zipbrain.from_pretrained(Path(zipbrain.__file__).parent / "demo_model")
    windows = Synthetic("events", n_subjects=30, windows_per_subject=6).split("test")
    SAME.clear()
    zipbrain.compress(model, Both(), ratio=0.8)
    predict(model, windows, batch_size=18)
    assert len(SAME) == 12 * len(windows)
    assert sum(SAME) / len(SAME) > 0.9


def test_recipes_from_before_trimming_stay_untrimmed() -> None:
    old = {"name": "twins", "softmax": {"name": "mean_norm"}, "linear": {"name": "mean"}}
    read = Recipe.from_dict({"method": old, "schedule": {"name": "ratio", "ratio": 0.8}})
    assert as_method(read.method) == Twins(trimmed=False)
    assert '"trimmed"' not in read.key()  # what results were stored under then
    assert recipe({"name": "twins"}).key() != read.key()
    assert Recipe.from_dict(recipe({"name": "twins"}).to_dict()).key() == recipe(Twins().to_dict()).key()


def test_all_uses_of_mass_belong_to_the_method() -> None:
    torch.manual_seed(0)
    model, x = TokenEncoder(dim=16, depth=4, heads=2).eval(), torch.randn(2, 30, 16)
    with torch.no_grad():
        own = zipbrain.compress(model, Twins(), ratio=0.8)(x)
        zipbrain.restore(model)
        asked = zipbrain.compress(model, Twins(), ratio=0.8, mass=True)(x)
    assert torch.equal(own, asked)
    assert Twins().mass == zipbrain.Mass(attention=True, merge=True, readout=True)
