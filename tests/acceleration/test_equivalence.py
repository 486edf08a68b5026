"""When two sets of logits count as the same answer."""

from __future__ import annotations

import math

import pytest
import torch

from zipbrain.acceleration.equivalence import NEAR_TIE, judge


def test_equal_logits_are_safe() -> None:
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    verdict = judge(logits, logits)
    assert verdict.safe
    assert (verdict.windows, verdict.lost, verdict.flipped, verdict.near_ties, verdict.error) == (8, 0, 0, 0, 0.0)
    assert str(verdict) == "8 of 8 decisions are the same; relative squared error 0.0e+00 (allowed: 1.0e-03)"


def test_a_decision_that_changes_is_not_safe_but_at_a_near_tie() -> None:
    reference = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.001]])
    near = judge(reference, torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.001, 1.0]]))
    assert near.safe
    assert near.near_ties == 1
    assert near.margin == pytest.approx(NEAR_TIE * math.sqrt((4 + 4 + 1e-6) / 3), rel=1e-5)
    clear = judge(reference, torch.tensor([[0.9, 1.0], [0.0, 2.0], [1.0, 1.001]]), tolerance=10)
    assert not clear.safe
    assert clear.flipped == 1
    assert "1 changed although their margin is" in str(clear)


def test_one_logit_decides_by_its_sign() -> None:
    reference = torch.tensor([[3.0], [-2.0], [0.01]])
    assert judge(reference, torch.tensor([[3.0], [-2.0], [-0.01]])).near_ties == 1
    assert judge(reference, torch.tensor([[3.0], [2.0], [0.01]]), 10).flipped == 1
    assert judge(reference.squeeze(1), torch.tensor([3.0, 2.0, 0.01]), 10).flipped == 1


def test_logits_that_are_not_finite_any_more_are_not_safe() -> None:
    reference = torch.ones(4, 2)
    found = reference.clone()
    found[1, 0] = torch.inf
    found[2] = torch.nan
    verdict = judge(reference, found)
    assert verdict.lost == 2
    assert not verdict.safe
    assert str(verdict) == "2 of 4 windows have logits that are not finite (overflow)"


def test_windows_without_a_finite_reference_are_left_out() -> None:
    reference = torch.tensor([[torch.nan, 1.0], [1.0, 0.0]])
    verdict = judge(reference, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert verdict.safe
    assert verdict.windows == 1
    nothing = judge(reference[:1], reference[:1])
    assert not nothing.safe
    assert math.isnan(nothing.error)
    assert str(nothing) == "no window of the example has finite logits to compare with"


def test_an_error_above_the_tolerance_is_not_safe() -> None:
    reference = torch.tensor([[10.0, 0.0]])
    found = torch.tensor([[9.0, 0.0]])
    assert judge(reference, found).error == pytest.approx(0.01)
    assert not judge(reference, found, 0.009).safe
    assert judge(reference, found, 0.011).safe
    assert judge(torch.zeros(1, 2), torch.zeros(1, 2)).error == 0
    assert judge(torch.zeros(1, 2), torch.ones(1, 2)).error == math.inf


def test_dense_logits_count_every_decision() -> None:
    reference = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert judge(reference, reference.half()).decisions == 10
    with pytest.raises(ValueError, match="can't be compared"):
        judge(reference, reference[:1])
