"""What the scalings make of windows."""

from __future__ import annotations

import numpy as np
import pytest

from zipbrain.data import scale

X = np.random.default_rng(0).normal(5.0, 20.0, (3, 4, 400)).astype(np.float32) + np.float32(30)


def test_z_scores_have_mean_zero_and_deviation_one_in_every_channel() -> None:
    found = np.asarray(scale(X, "zscore"), dtype=np.float64)
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found[0, 0], (X[0, 0] - X[0, 0].mean()) / X[0, 0].std(), atol=1e-4)


def test_the_average_of_all_channels_is_taken_off_z_scores() -> None:
    found, plain = (np.asarray(scale(X, name), dtype=np.float64) for name in ("zscore-average", "zscore"))
    np.testing.assert_allclose(found, plain - plain.mean(1, keepdims=True), atol=1e-5)


def test_the_95_per_cent_quantile_becomes_one_and_hundred_microvolts_become_one() -> None:
    np.testing.assert_allclose(np.quantile(np.abs(scale(X, "q95")), 0.95, axis=-1), 1, rtol=1e-4)
    np.testing.assert_allclose(scale(X, "hundred"), X / 100, rtol=1e-6)
    np.testing.assert_array_equal(scale(X, "none"), X)


@pytest.mark.parametrize("name", ["zscore", "zscore-average", "q95", "hundred"])
def test_flat_channels_stay_finite(name: str) -> None:
    flat = X.copy()
    flat[:, 1] = 0.1
    flat[:, 2] = 0
    found = np.asarray(scale(flat, name))
    assert np.isfinite(found).all()
    if name == "zscore":
        assert not found[:, 1:3].any()
