"""ZIPBrain against a literal float64 reference, for all spaces, both paths and every precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from zipbrain.pooling import SPACES, ZIPBrain, pool
from zipbrain.pooling.backends import cpu

RHOS = [f"{i / 10:.1f}" for i in range(11)]


def draw(seed: int, batch: int, total: int, heads: int, width: int, dim: int) -> tuple[Tensor, ...]:
    """x, q, k, v in float64; multiples of 1/1024, so that float32 sees the same numbers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 1024).round() / 1024

    return normal(batch, total, dim), *(normal(batch, heads, total, width) for _ in range(3))


def expect(parts: tuple[Tensor, ...], window: int, *args: object) -> reference.Result:
    x, q, k, v = (part[window].double().numpy() for part in parts)
    return reference.zipbrain(x, {"q": q, "k": k, "v": v}, *args)  # type: ignore[arg-type]


@pytest.mark.parametrize("spaces", list(itertools.product(SPACES, repeat=3)), ids="".join)
def test_all_343_combinations_of_spaces_agree_with_the_reference(spaces: tuple[str, str, str]) -> None:
    number = SPACES.index(spaces[0]) * 49 + SPACES.index(spaces[1]) * 7 + SPACES.index(spaces[2])
    parts = draw(number, 1, 14, 3, 4, 12)
    rho = RHOS[number % 11]
    wanted = expect(parts, 0, 5, spaces, rho, 1)
    for dtype, compiled in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        before = cpu.switch(compiled)
        pooled = pool(*(part.to(dtype) for part in parts), r=5, method=ZIPBrain(*spaces, float(rho)), protected=1)
        cpu.switch(before)
        if dtype == torch.float32 and wanted.margin < 1e-5:
            continue
        assert pooled.grouping.kept[0].tolist() == wanted.kept
        assert pooled.grouping.source[0].tolist() == wanted.source
        assert pooled.grouping.target[0].tolist() == wanted.target
        bound = 1e-12 if dtype == torch.float64 else 2e-6
        assert np.abs(pooled.x[0].double().numpy() - wanted.out).max() <= bound * np.abs(wanted.out).max()


@given(
    seed=st.integers(0, 10**6), batch=st.integers(1, 3), n=st.integers(2, 24), heads=st.sampled_from([1, 2, 4]),
    ends=st.tuples(st.integers(0, 2), st.integers(0, 2)), spaces=st.tuples(*[st.sampled_from(SPACES)] * 3),
    rho=st.sampled_from(RHOS), share=st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=300)
def test_any_size_ratio_and_protection_agrees_with_the_reference(
    seed: int, batch: int, n: int, heads: int, ends: tuple[int, int], spaces: tuple[str, str, str], rho: str,
    share: float,
) -> None:  # fmt: skip
    parts = draw(seed, batch, n + sum(ends), heads, 3, 7)
    r = min(n - 1, int(share * n))
    for dtype, compiled in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        before = cpu.switch(compiled)
        pooled = pool(*(part.to(dtype) for part in parts), r=r, method=ZIPBrain(*spaces, float(rho)), protected=ends)
        cpu.switch(before)
        for window in range(batch):
            wanted = expect(parts, window, r, spaces, rho, *ends)
            if dtype == torch.float32 and wanted.margin < 1e-5:
                continue
            assert pooled.grouping.kept[window].tolist() == wanted.kept
            assert pooled.grouping.source[window].tolist() == wanted.source
            assert pooled.grouping.target[window].tolist() == wanted.target
            bound = 1e-11 if dtype == torch.float64 else 1e-5
            assert np.abs(pooled.x[window].double().numpy() - wanted.out).max() <= bound * np.abs(wanted.out).max()


@given(seed=st.integers(0, 10**6), spaces=st.tuples(*[st.sampled_from(SPACES)] * 3), rho=st.sampled_from(RHOS))
@settings(max_examples=200)
def test_half_precision_groups_as_float64_does_on_the_same_rounded_numbers(
    seed: int, spaces: tuple[str, str, str], rho: str
) -> None:
    parts = draw(seed, 1, 16, 2, 4, 8)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = tuple(part.to(dtype) for part in parts)
        wanted = expect(rounded, 0, 5, spaces, rho)
        if wanted.margin < 1e-3:
            continue
        pooled = pool(*rounded, r=5, method=ZIPBrain(*spaces, float(rho)))
        assert pooled.x.dtype == dtype
        assert pooled.grouping.source[0].tolist() == wanted.source
        assert pooled.grouping.target[0].tolist() == wanted.target
        assert np.abs(pooled.x[0].double().numpy() - wanted.out).max() <= 0.02 * np.abs(wanted.out).max()


def test_number_of_pivots_is_exact_where_floating_point_is_not() -> None:
    # (N - r) rho = 30 * 0.1 is 3.0000000000000004 in binary; the fourth pivot would be wrong.
    from fractions import Fraction

    from zipbrain.pooling.steps import pivot_count

    assert pivot_count(40, 10, Fraction("0.1")) == 3
    assert pivot_count(40, 10, Fraction(0)) == 1
    assert pivot_count(40, 10, Fraction(1)) == 30


def test_autocast_does_not_lower_the_precision_of_decisions(path: str) -> None:
    parts = tuple(part.float() for part in draw(3, 2, 40, 2, 8, 16))
    plain = pool(*parts, r=20, method=ZIPBrain("x", "kh", "v", 0.4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = pool(*parts, r=20, method=ZIPBrain("x", "kh", "v", 0.4))
    assert torch.equal(plain.grouping.target, mixed.grouping.target)
    assert torch.equal(plain.x, mixed.x)
