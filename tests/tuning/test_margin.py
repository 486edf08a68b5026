"""The margin of a second look: flips it leaves, windows it sends round again, and how likely a certificate is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from zipbrain import metrics
from zipbrain.seams.second_look import is_doubtful, margins
from zipbrain.tuning.evidence import weigh
from zipbrain.tuning.margin import FlipMargins, certification_probability


@pytest.fixture
def flip_margins() -> FlipMargins:
    rng = np.random.default_rng(1)
    before = rng.normal(size=(600, 3)).astype(np.float32) * 2
    first = before + 0.3 * rng.normal(size=before.shape).astype(np.float32)
    return FlipMargins(before, first, np.repeat(np.arange(20), 30))


def test_margins_and_doubts_are_those_of_the_model() -> None:
    logits = torch.randn(50, 4)
    logits[3], logits[5, 1], logits[7, 2] = torch.nan, torch.nan, torch.inf
    for some in (logits, logits[:, :1], logits[:, :2]):
        np.testing.assert_allclose(metrics.decision_margins(some.numpy()), margins(some).numpy(), rtol=1e-6)
        for margin in (0.0, 0.5, torch.inf):
            expected = is_doubtful(some, margin).numpy()
            np.testing.assert_array_equal(metrics.is_doubtful(some.numpy(), margin), expected)
    assert metrics.is_doubtful(logits.numpy(), 0.0).nonzero()[0].tolist() == [3, 5]


@pytest.mark.parametrize("flips", [0, 1, 3, 10])
def test_the_smallest_margin_leaves_no_more_flips_than_allowed(flip_margins: FlipMargins, flips: int) -> None:
    found = flip_margins.smallest_margin_leaving(flips)
    assert found.evidence.flips == flips
    smaller = flip_margins.margins[flip_margins.margins < found.margin].max()
    assert flip_margins.outcome_at(float(smaller)).evidence.flips == flips + 1


def test_without_doubts_nothing_looks_twice() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 1.0]] * 40, dtype=np.float32)
    found = FlipMargins(logits, logits, np.repeat(np.arange(8), 10)).smallest_margin_leaving(0)
    assert (found.margin, found.second_look_share, found.agreement) == (0.0, 0.0, 1.0)


def test_a_higher_promise_costs_more_second_looks(flip_margins: FlipMargins) -> None:
    shares = [flip_margins.margin_for_promise(agree).second_look_share for agree in (0.8, 0.9, 0.95, 0.98)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_what_is_kept_is_likely_to_be_certified_and_more_flips_are_not(flip_margins: FlipMargins) -> None:
    found = flip_margins.margin_for_promise(0.95)
    assert certification_probability(found.evidence, 0.95) >= 0.95
    assert (
        certification_probability(flip_margins.smallest_margin_leaving(found.evidence.flips + 1).evidence, 0.95) < 0.95
    )


def test_the_chance_is_that_of_a_simulation() -> None:
    flipped = np.zeros(800, dtype=bool)
    flipped[::200] = True
    seen = weigh(flipped, np.repeat(np.arange(40), 20))
    rng = np.random.default_rng(0)
    effective = seen.effective_at(0.015)
    flips = seen.flips / seen.windows * effective
    shares = rng.beta(flips + 0.5, effective - flips + 0.5, 20_000)
    others = rng.binomial(round(effective), shares)
    bounds = {k: replace(seen, flips=k / round(effective) * seen.windows).bound() for k in np.unique(others)}
    simulated = np.mean([bounds[k] >= 0.985 for k in others])
    assert certification_probability(seen, 0.985) == pytest.approx(simulated, abs=0.01)


def test_a_share_of_second_looks_is_not_exceeded(flip_margins: FlipMargins) -> None:
    for share in (0.0, 0.05, 0.5, 1.0):
        found = flip_margins.margin_for_share(share)
        assert found.second_look_share <= share + 1e-9
    assert flip_margins.margin_for_share(1.0).second_look_share == 1
    assert flip_margins.margin_for_share(1.0).evidence.flips == 0


def test_a_promise_that_can_not_be_proved_is_kept_by_the_best_of_many_candidates_all_the_same() -> None:
    """The candidate whose last flip has the smallest margin was lucky: other people's flips lie beyond it."""
    chosen_on = 300
    kept: dict[str, list[float]] = {"the last flip": [], "keeping": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        before = rng.normal(0, 3, (chosen_on + 2000, 1)).astype(np.float32)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kept}
        for _ in range(30):
            strength = rng.uniform(0.3, 1.2)
            after = before + strength * rng.normal(size=before.shape).astype(np.float32)
            flips = FlipMargins(before[:chosen_on], after[:chosen_on], np.repeat(np.arange(15), 20))
            others = FlipMargins(before[chosen_on:], after[chosen_on:], np.repeat(np.arange(100), 20))
            for name, looked in (
                ("the last flip", flips.smallest_margin_leaving(0)),
                ("keeping", flips.margin_for_promise(0.99)),
            ):
                found[name].append(
                    (0.8 * looked.second_look_share - 0.35 * strength, others.outcome_at(looked.margin).agreement)
                )
        for name, candidates in found.items():
            kept[name].append(min(candidates)[1])
    assert np.mean(kept["the last flip"]) < 0.99
    assert np.mean(kept["keeping"]) > 0.993
    assert np.mean(np.array(kept["keeping"]) >= 0.99) > 0.8
