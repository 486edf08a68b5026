"""Schedules by damage and time, and what a network's blocks cost."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.tuning.conftest import TOKENS, WIDTH, Small

import zipbrain
from zipbrain.errors import OptionError
from zipbrain.pooling.methods.base import as_method
from zipbrain.seams.forward import plan_of
from zipbrain.tuning.allocation import PROBES, Damage, TimeModel, allocate, fit_damage, probes
from zipbrain.tuning.candidates import Anatomy, MethodSchedule, read_methods, usual_schedules
from zipbrain.tuning.times import second_look_time


@pytest.fixture(scope="module")
def anatomy(small: Small) -> Anatomy:
    return Anatomy.of(copy.deepcopy(small), torch.zeros(1, TOKENS, WIDTH))


@pytest.fixture(scope="module")
def twins() -> MethodSchedule:
    return read_methods(["twins"], lambda recipe: "")[0][0]


def _with(method: MethodSchedule, *removed: int) -> MethodSchedule:
    return MethodSchedule(method.method, method.mass, removed, "")


def test_operations_are_those_of_the_summary(small: Small, anatomy: Anatomy, twins: MethodSchedule) -> None:
    one = _with(twins, 6, 0, 5, 3)
    model = zipbrain.compress(copy.deepcopy(small), one.recipe(anatomy))
    found = zipbrain.summary(model, TOKENS)
    assert found.token_counts == [24, 18, 18, 13, 10]
    assert anatomy.operations(one) == pytest.approx((found.macs + found.pooling_macs) / found.original_macs)


def test_a_second_look_runs_what_lies_behind_the_first_reduction(anatomy: Anatomy, twins: MethodSchedule) -> None:
    shape, whole = anatomy.shape, TOKENS
    attention, feed = shape.attention_macs(whole), shape.feed_forward_macs(whole)
    one = _with(twins, 0, 6, 0, 0)
    assert anatomy.second_pass_cost(one) == pytest.approx((feed + 2 * (attention + feed)) / (4 * (attention + feed)))
    assert anatomy.second_pass_cost(_with(twins, 0, 0, 0, 0)) == 0


def test_usual_schedules_remove_about_what_they_say(anatomy: Anatomy) -> None:
    for title, removed in usual_schedules(anatomy, as_method("twins")).items():
        share = float(title.split()[-1].rstrip("%")) / 100
        assert sum(removed) == pytest.approx(share * TOKENS, abs=4), title


def test_damage_is_fitted_through_its_probes(anatomy: Anatomy, twins: MethodSchedule) -> None:
    tried = probes(anatomy, twins)
    assert len(tried) == 4 * len(PROBES)
    true = Damage((0.4, 0.2, 0.1, 0.05), (2.0, 1.5, 2.5, 1.0))
    errors = [true.of(anatomy, one.removed) for one in tried]
    found = fit_damage(anatomy, tried, errors)
    np.testing.assert_allclose(found.factors, true.factors, rtol=1e-6)
    np.testing.assert_allclose(found.powers, true.powers, rtol=1e-6)


def test_tokens_go_where_they_do_least_harm_for_the_time_they_save(anatomy: Anatomy, twins: MethodSchedule) -> None:
    model = TimeModel(0.0, 1.0, 0.0)
    harmless_late = Damage((5.0, 5.0, 1e-3, 5.0), (1.0,) * 4)
    found = allocate(anatomy, twins, harmless_late, lambda one: model.of(anatomy, one), (0.8,))
    assert found[0].removed[2] == max(found[0].removed)
    equal = Damage((1.0,) * 4, (1.0,) * 4)
    early = allocate(anatomy, twins, equal, lambda one: model.of(anatomy, one), (0.8, 0.5))
    assert early[0].removed[0] == max(early[0].removed)  # an early reduction saves most
    assert [model.of(anatomy, one) <= target for one, target in zip(early, (0.8, 0.5), strict=True)] == [True, True]


def test_costly_reductions_are_few(anatomy: Anatomy, twins: MethodSchedule) -> None:
    equal = Damage((1.0,) * 4, (3.0,) * 4)  # spreads where a reduction costs nothing

    def blocks(price: float) -> int:
        model = TimeModel(0.0, 1.0, price)
        return sum(
            r > 0 for r in allocate(anatomy, twins, equal, lambda one: model.of(anatomy, one), (0.7,))[0].removed
        )

    assert blocks(0.1) < blocks(0.0)


def test_the_time_model_finds_the_costs_and_none_below_zero(anatomy: Anatomy, twins: MethodSchedule) -> None:
    tried = [_with(twins, 6, 0, 0, 0), _with(twins, 6, 6, 0, 0), _with(twins, 2, 2, 2, 2), _with(twins, 12, 0, 0, 0)]
    true = TimeModel(0.2, 0.8, 0.03)
    found = TimeModel.fit(anatomy, {one: true.of(anatomy, one) for one in tried})
    assert (found.fixed, found.per_operation, found.per_reduction) == pytest.approx((0.2, 0.8, 0.03))
    cheaper = TimeModel(0.2, 0.8, -0.05)
    found = TimeModel.fit(anatomy, {one: cheaper.of(anatomy, one) for one in tried})
    assert found.per_reduction == 0
    assert found.fixed >= 0


def test_second_looks_cost_their_share_and_more_where_few_windows_are_slow() -> None:
    assert second_look_time(0.9, 0.1, 1, 1.0) == pytest.approx(0.09)
    assert second_look_time(0.9, 0.1, 32, 1 / 32) == pytest.approx(0.09)  # time grows with the windows alone
    assert second_look_time(0.9, 0.1, 32, 0.2) > 0.09
    assert second_look_time(0.9, 0.0, 32, 0.2) == 0


def test_methods_that_a_runtime_refuses_lose_their_mass_or_are_left_out(anatomy: Anatomy, small: Small) -> None:
    kinds, notes = read_methods(["zipbrain", "twins"], lambda recipe: "no mass" if any(recipe.mass.values()) else "")
    assert [one.method["name"] for one in kinds] == ["zipbrain"]
    assert not any(kinds[0].mass.values())
    assert ["zipbrain" in notes[0], "twins" in notes[1]] == [True, True]
    with pytest.raises(OptionError, match="methods"):
        read_methods(["twins"], lambda recipe: "never")
    one = MethodSchedule(kinds[0].method, kinds[0].mass, (0, 7, 0, 4), "")
    plan = plan_of(zipbrain.compress(copy.deepcopy(small), one.recipe(anatomy)))
    assert plan.removals(TOKENS) == (0, 7, 0, 4)
