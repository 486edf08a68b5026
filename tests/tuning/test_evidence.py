"""What flips of windows in groups are worth: the bound, its correction for groups, and what a promise needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zipbrain.errors import OptionError
from zipbrain.tuning.evidence import CONFIDENCE, Evidence, dispersion_limit, weigh


def _flips(*per_group: int, of: int = 60) -> tuple[np.ndarray, np.ndarray]:
    groups = np.repeat(np.arange(len(per_group)), of)
    return np.concatenate([np.arange(of) < count for count in per_group]), groups


def test_windows_of_one_person_each_are_worth_what_clopper_and_pearson_say() -> None:
    alone = Evidence(0, 300, 300, 1.0, 0.0)
    assert alone.effective == 300
    assert alone.bound() == pytest.approx(0.05 ** (1 / 300))


def test_the_same_flips_in_one_person_are_worth_less_than_spread_over_all() -> None:
    spread, one = weigh(*_flips(*[1] * 10)), weigh(*_flips(10, *[0] * 9))
    assert spread.agreement == one.agreement
    assert one.dispersion > 5 * spread.dispersion
    assert one.bound() < spread.bound() < spread.agreement


def test_flips_that_were_looked_at_twice_still_say_how_people_differ() -> None:
    none, groups = _flips(*[0] * 10)
    alike, unlike = _flips(*[4] * 10)[0], _flips(40, *[0] * 9)[0]
    assert weigh(none, groups, alike).bound() > weigh(none, groups, unlike).bound()


def test_flips_that_remain_with_one_person_count_though_those_before_were_spread() -> None:
    before, groups = _flips(*[8] * 10)
    one, all_of_them = _flips(8, *[0] * 9)[0], _flips(*[1] * 8, 0, 0)[0]
    assert weigh(one, groups, before).bound() < weigh(all_of_them, groups, before).bound()


def test_without_flips_nothing_is_known_of_people_and_much_is_assumed() -> None:
    none, groups = _flips(*[0] * 20)
    assert weigh(none, groups).bound() < weigh(none, groups, _flips(*[2] * 20)[0]).bound()


def test_there_is_one_bound_below_it_no_share_is_refuted_and_above_it_every_one() -> None:
    for spread in (0.0, 0.5, 3.0, 8.0, 15.0, 60.0):
        for flips in (0, 1, 7, 40):
            one = Evidence(flips, 1200, 20, 60.0, spread)
            shares = np.linspace(0.0005, 0.999, 800)
            is_refuted = np.array([one.refutes(share) >= CONFIDENCE for share in shares])
            np.testing.assert_array_equal(is_refuted, shares >= 1 - one.bound())


def test_more_windows_people_and_fewer_flips_never_lower_the_bound() -> None:
    one = Evidence(3, 600, 10, 60.0, 1.0)
    assert one.bound() < replace(one, flips=2).bound()
    assert one.bound() < replace(one, windows=1200, flips=6, groups=20).bound()
    assert one.bound(0.99) < one.bound() < one.bound(0.5)
    assert one.bound() <= one.best_promise()


def test_every_decision_flipped_bounds_nothing() -> None:
    assert weigh(*_flips(*[60] * 6)).bound() == 0


@pytest.mark.parametrize("sizes", [(60,) * 8, (5, 200, 60, 33, 90, 12, 60, 71)])
def test_the_estimate_of_dispersion_finds_that_of_simulated_people(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rates = rng.beta(2.0, 38.0, (20_000, len(sizes)))  # mean 0.05, variance 0.05 * 0.95 / 41
    counts = rng.binomial(sizes, rates).astype(float)
    found = dispersion_limit(counts, np.broadcast_to(np.array(sizes, float), counts.shape), None)
    assert np.nanmedian(found) == pytest.approx(0.95 / 0.05 / 41, rel=0.35)


def test_the_upper_limit_of_dispersion_is_rarely_exceeded() -> None:
    rng = np.random.default_rng(1)
    counts = rng.binomial(200, rng.beta(2.0, 38.0, (4000, 10))).astype(float)
    found = dispersion_limit(counts, np.full(counts.shape, 200.0), 0.1)
    assert 0.84 < (found >= 0.95 / 0.05 / 41).mean() < 0.96


def test_as_many_people_as_are_needed_prove_it_and_one_less_does_not() -> None:
    seen = Evidence(2, 600, 10, 60.0, 1.0)
    people = seen.groups_needed(0.99)
    assert people is not None
    for count, is_enough in ((people, True), (people - 1, False)):
        scaled = replace(seen, windows=count * 60, groups=count, flips=count * 60 * 2 / 600)
        assert (scaled.bound() >= 0.99) is is_enough
    assert seen.groups_needed(0.998) is None
    without = replace(seen, flips=0).groups_needed(0.99)
    assert without is not None
    assert Evidence(0, without * 60, without, 60.0, 1.0).bound() >= 0.99
    assert Evidence(0, (without - 1) * 60, without - 1, 60.0, 1.0).bound() < 0.99


def test_arrays_of_other_lengths_are_refused() -> None:
    with pytest.raises(OptionError, match="one value for every window"):
        weigh([True, False], [1, 2, 3])
    with pytest.raises(OptionError, match="one value for every window"):
        weigh([], [])
