"""Quantiles and bounds without SciPy equal SciPy's."""

from __future__ import annotations

import pytest

from zipbrain.binomial import beta_quantile, beta_share, f_quantile, share_bounds

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")

BETAS = [(0.5, 0.5), (1, 299), (3.7, 120.4), (400, 2), (0.05, 900), (5000, 5000), (1, 1), (2, 30_000)]


@pytest.mark.parametrize(("a", "b"), BETAS)
def test_the_share_of_a_beta_distribution_is_scipys(a: float, b: float) -> None:
    for x in (0.0, 1e-6, 0.003, 0.2, 0.5, 0.97, 1 - 1e-9, 1.0):
        assert beta_share(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), BETAS)
@pytest.mark.parametrize("p", [0.01, 0.05, 0.5, 0.95])
def test_quantiles_of_a_beta_distribution_are_scipys(a: float, b: float, p: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(special.betaincinv(a, b, p), rel=1e-8)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("degrees", [(1, 10), (4, 295), (19, 1180), (49, 9950)])
def test_quantiles_of_an_f_distribution_are_scipys(p: float, degrees: tuple[int, int]) -> None:
    assert f_quantile(p, *degrees) == pytest.approx(stats.f.ppf(p, *degrees), rel=1e-8)


def test_299_windows_without_a_flip_bound_the_share_at_one_per_cent() -> None:
    assert share_bounds(0, 299)[1] < 0.01 < share_bounds(0, 298)[1]
    assert share_bounds(0, 10)[0] == 0
    assert share_bounds(10, 10)[1] == 1
