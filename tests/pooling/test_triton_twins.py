"""The Triton kernels for Twins against the plain operators, in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zipbrain
from interpreted import (
    INSIDE,
    MISSING,
    assert_same,
    draw,
    inside,
    on,
    pass_under_the_interpreter,
)
from zipbrain.models import TokenEncoder
from zipbrain.pooling import Twins
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.tokens import Tokens

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where numbers that are no numbers meet

sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 40), st.floats(0, 1))
ends = st.tuples(st.integers(0, 2), st.integers(0, 3))


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_for_twins_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=48)


def masses(seed: int, batch: int, total: int) -> Tensor:
    return torch.randint(1, 6, (batch, total), generator=torch.Generator().manual_seed(seed)).float()


@inside
@pytest.mark.parametrize(
    ("batch", "total", "width", "r", "ends", "dtype"),
    [
        (2, 3, 2, 1, (0, 0), torch.float32),
        (3, 24, 8, 5, (1, 2), torch.float16),
        (3, 24, 8, 5, (1, 2), torch.bfloat16),
        (2, 65, 70, 40, (0, 1), torch.float16),  # two tiles, two chunks, several blocks of sources
        (1, 150, 20, 149, (0, 0), torch.float32),  # all but one; keys compared in a loop
        (1, 260, 36, 60, (1, 0), torch.bfloat16),
    ],
)
def test_twins_agree_with_the_plain_operators(
    batch: int, total: int, width: int, r: int, ends: tuple[int, int], dtype: torch.dtype, launches: list[str]
) -> None:
    parts = draw(total, batch, total, dtype, width)
    rtol = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for mass in (None, masses(total, batch, total)):
        options: dict[str, Any] = {"r": r, "method": Twins(), "protected": ends, "mass": mass}
        found, expected = on(True, *parts, **options), on(False, *parts, **options)
        if dtype == torch.float32:  # a sum of 149 tokens by a CPU's matrix product is itself 9e-6 off on some of them
            exact = on(False, *(part.double() for part in parts), **options)
            assert (expected.x - exact.x).abs().max() < 3e-5
            expected = dataclasses.replace(expected, x=exact.x.float())
        assert_same(found, expected, rtol)
        assert mass is None or torch.equal(found.mass, expected.mass)
    assert launches == ["twins", "merge", "twins", "merge"]


@inside
@given(size=sizes, ends=ends, massed=st.booleans())
@settings(max_examples=12)
def test_twins_of_any_size_agree(size: tuple[int, int, int, float], ends: tuple[int, int], massed: bool) -> None:
    seed, batch, n, share = size
    total = n + sum(ends)
    options: dict[str, Any] = {"r": max(1, min(n - 1, int(share * n))), "method": Twins(), "protected": ends}
    options["mass"] = masses(seed, batch, total) if massed else None
    parts = draw(seed, batch, total)
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
def test_twins_at_the_most_tokens_agree(launches: list[str]) -> None:
    total = entry.MOST_TOKENS + 1
    parts = draw(0, 1, total, width=4)
    options: dict[str, Any] = {"r": 30, "method": Twins(), "protected": 1, "mass": masses(0, 1, total)}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))
    assert launches == ["twins", "merge"]


@inside
@given(seed=st.integers(0, 10**6), copies=st.integers(2, 8), zeros=st.integers(0, 3), massed=st.booleans())
@settings(max_examples=10)
def test_copies_and_zero_tokens_are_twins_as_for_the_plain_operators(
    seed: int, copies: int, zeros: int, massed: bool
) -> None:
    parts = draw(seed, 2, 24)
    order = torch.randperm(24, generator=torch.manual_seed(seed))
    twins, dead = order[:copies].sort().values, order[copies : copies + zeros]
    for part in parts:
        part[..., twins, :] = part[..., twins[:1], :].clone()
        part[..., dead, :] = 0
    options: dict[str, Any] = {"r": 10, "method": Twins(), "protected": 1}
    options["mass"] = masses(seed, 2, 24) if massed else None
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30, 1e15])
def test_twins_that_are_all_equal_agree(value: float) -> None:
    x, heads = torch.full((1, 9, 8), value), [torch.full((1, 2, 9, 4), value)] * 3
    assert_same(on(True, x, *heads, r=4, method=Twins()), on(False, x, *heads, r=4, method=Twins()))


@inside
@pytest.mark.parametrize(("value", "noise"), [(3.7, 0.0), (1e4, 1e-3), (0.0, 1e-25), (0.0, 1e25)])
@pytest.mark.parametrize("place", range(4))
def test_a_flat_a_tiny_and_a_huge_space_count_as_for_the_plain_operators(
    place: int, value: float, noise: float
) -> None:
    parts = list(draw(place, 2, 30))
    parts[place] = value + noise * parts[place]
    options: dict[str, Any] = {"r": 9, "method": Twins(), "mass": masses(place, 2, 30)}
    found, expected = on(True, *parts, **options).grouping, on(False, *parts, **options).grouping
    assert torch.equal(found.kept, expected.kept)
    assert torch.equal(found.target, expected.target)


@inside
@pytest.mark.parametrize(("places", "factor"), [((7,), 1e4), ((0, 3, 39), 1e4), ((5, 38), 30.0), ((11,), 1e9)])
def test_windows_with_outliers_agree(places: tuple[int, ...], factor: float) -> None:
    for seed in range(3):
        parts = draw(seed, 2, 41, width=40)
        for part in parts[seed:]:
            part[..., list(places), :] *= factor
        options: dict[str, Any] = {"r": 12, "method": Twins(), "protected": (0, 1)}
        options["mass"] = masses(seed, 2, 41) if seed else None
        found, expected = on(True, *parts, **options).grouping, on(False, *parts, **options).grouping
        assert torch.equal(found.kept, expected.kept)
        assert torch.equal(found.target, expected.target)


@inside
@pytest.mark.parametrize(("gap", "partner"), [(6e-7, 0), (3e-6, 1)])
def test_a_twin_is_the_first_within_the_resolution_of_the_cheapest(gap: float, partner: int) -> None:
    # Two heavy tokens and a light one between them, a little closer to the second: sum and spread stay as they are.
    x = torch.tensor([[[-1.0], [1.0], [gap]]])
    flat = torch.zeros(1, 1, 3, 1)
    mass = torch.tensor([[3.0, 3.0, 1.0]])
    scale = 0.5 / math.sqrt(2 / 3)
    between = 0.75 * scale**2 * ((1 + gap) ** 2 - (1 - gap) ** 2)
    assert (between > 2.0**-20) == (partner == 1)
    for kernels in (True, False):
        assert on(kernels, x, flat, flat, flat, r=1, method=Twins(), mass=mass).grouping.target.tolist() == [[partner]]


@inside
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize(("total", "massed"), [(20, False), (20, True), (70, True)])
def test_broken_numbers_stay_in_their_window_of_twins(bad: float, everywhere: bool, total: int, massed: bool) -> None:
    for place in range(4) if total == 20 else (1,):
        parts = draw(5, 3, total)
        mass = masses(0, 3, total) if massed else None
        options: dict[str, Any] = {"r": total // 2, "method": Twins(), "protected": 1}
        rest = None if mass is None else mass[[0, 2]]
        healthy = on(True, *(part[[0, 2]] for part in parts), **options, mass=rest).grouping
        parts[place][1, ..., slice(0, None) if everywhere else 4, :] = bad
        found = on(True, *parts, **options, mass=mass).grouping
        plain = on(False, *parts, **options, mass=mass).grouping
        assert torch.equal(found.target[[0, 2]], healthy.target)
        assert torch.equal(found.kept, plain.kept)
        assert torch.equal(found.source, plain.source)
        assert torch.equal(found.target, plain.target)


@inside
def test_twins_are_read_where_they_lie_and_get_the_same_bits_in_any_batch() -> None:
    parts, mass = draw(7, 4, 40), masses(7, 4, 40)
    options: dict[str, Any] = {"r": 21, "method": Twins(), "protected": (2, 1)}
    whole = on(True, *parts, **options, mass=mass)
    for change in (
        lambda part: part.transpose(0, 1).contiguous().transpose(0, 1),
        lambda part: part.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda part: torch.cat((part, part), dim=-1)[..., : part.shape[-1]],
    ):
        assert_same(on(True, *map(change, parts), **options, mass=change(mass)), whole, rtol=0)
    for some in (slice(0, 1), slice(3, 4), slice(1, 3)):
        alone = on(True, *(part[some] for part in parts), **options, mass=mass[some])
        assert torch.equal(alone.x, whole.x[some])
        assert torch.equal(alone.grouping.target, whole.grouping.target[some])
    spread = [part[:1].expand(3, *part.shape[1:]) for part in parts]
    wide = on(True, *spread, **options, mass=mass[:1].expand(3, -1))
    assert torch.equal(wide.grouping.target, whole.grouping.target[:1].expand(3, -1))
    nothing = on(True, *(part[:0] for part in parts), **options, mass=mass[:0])
    assert nothing.x.shape == (0, 19, 8)


@inside
def test_twins_with_protected_tokens_anywhere_and_half_masses_agree(launches: list[str]) -> None:
    parts = draw(9, 3, 20)
    mask = torch.zeros(3, 20, dtype=torch.bool)
    for b in range(3):
        mask[b, torch.randperm(20, generator=torch.manual_seed(b))[:6]] = True
    options: dict[str, Any] = {"r": 6, "method": Twins(), "protected": mask, "mass": masses(9, 3, 20).half()}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))
    assert launches == ["twins"]  # the merge kernel wants float32 masses


@inside
def test_what_the_kernels_for_twins_cannot_take_goes_to_the_plain_operators(launches: list[str]) -> None:
    parts = draw(1, 1, 12)
    tokens = Tokens(parts[0], 3, *parts[1:])
    assert entry.usable_by_twins(tokens)
    assert not entry.usable_by_twins(dataclasses.replace(tokens, mass=torch.ones(1, 12).double()))
    assert not entry.usable_by_twins(dataclasses.replace(tokens, q=None))
    assert on(True, *(part.double() for part in parts), r=3, method=Twins()).x.dtype == torch.float64
    many = [torch.randn(1, entry.MOST_TOKENS + 1, 2), *[torch.randn(1, 1, entry.MOST_TOKENS + 1, 2)] * 3]
    assert on(True, *many, r=3, method=Twins()).x.shape == (1, entry.MOST_TOKENS - 2, 2)
    crowd = [parts[0], *[torch.randn(1, 33, 12, 2)] * 3]
    assert on(True, *crowd, r=3, method=Twins()).x.shape == (1, 9, 8)
    assert launches == ["merge", "merge"]


@inside
def test_a_captured_graph_of_twins_has_two_nodes_per_pooling_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=16, depth=2, heads=2).eval(), Twins(), ratio=0.6)
    x = torch.randn(2, 20, 16)
    before = entry.switch(False)
    try:
        plain = model(x).detach()
    finally:
        entry.switch(before)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain, rtol=1e-5, atol=1e-5)
        graph = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(graph(x), plain, rtol=1e-5, atol=1e-5)
        program = torch.export.export(model, (x,))
    names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
    assert names == ["zipbrain.twins.default", "zipbrain.merge.default"] * 2
    torch.testing.assert_close(program.module()(x), plain, rtol=1e-5, atol=1e-5)
