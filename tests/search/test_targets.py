"""Targets: what is read, which recipes are timed, which one wins."""

from __future__ import annotations

import pytest

from zipbrain.errors import OptionError
from zipbrain.evaluation.result import Result
from zipbrain.search.result import Entry, ranked
from zipbrain.search.space import Point
from zipbrain.search.targets import FINALISTS, Target, choose, finalists

ORIGINAL = Result.of({"scores": {"kappa": 0.8, "accuracy": 0.9}, "agreement": 1.0})


def entry(score: float, ratio: float | str = 0.8, key: str | None = None, agreement: float = 0.9) -> Entry:
    result = Result.of({"key": key or f"{score} {ratio}", "scores": {"kappa": score}, "agreement": agreement})
    return Entry(Point("x", "x", "x", 0.0), ratio, 1, score, result)


@pytest.mark.parametrize(
    ("text", "name", "bound", "relative"),
    [
        ("latency<=0.6", "latency", 0.6, True),
        ("latency <= 0.6x", "latency", 0.6, True),
        ("kappa>=0.99x", "kappa", 0.99, True),
        ("AUROC >= .85", "auroc", 0.85, False),
        ("agreement>=0.98", "agreement", 0.98, False),
    ],
)
def test_targets_are_read(text: str, name: str, bound: float, relative: bool) -> None:
    target = Target.parse(text)
    assert (target.name, target.bound, target.relative) == (name, bound, relative)
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text", ["fast", "latency>=0.6", "kappa<=0.9", "speed<=1", "kappa>=", "kappa>=1.5", "latency<=0", "kappa>=0.9y"]
)
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="target: got"):
        Target.parse(text)


def test_a_relative_bound_is_a_share_of_the_uncompressed_score() -> None:
    assert Target.parse("kappa>=0.5x").least(ORIGINAL) == pytest.approx(0.4)
    assert Target.parse("kappa>=0.5").least(ORIGINAL) == 0.5
    assert Target.parse("agreement>=0.9x").least(ORIGINAL) == 0.9


def test_finalists_are_a_few_different_networks_of_every_ratio() -> None:
    entries = ranked([entry(score / 100, ratio) for ratio in (0.4, "max") for score in range(70, 80)])
    twice = [entry(0.99, 0.4, key="same"), entry(0.99, 0.4, key="same")]
    found = finalists(Target.parse("latency<=0.6"), twice + entries, ORIGINAL)
    assert len(found) == 2 * FINALISTS
    assert [one.score for one in found if one.ratio == 0.4] == [0.99, 0.79, 0.78]
    assert [one.score for one in found if one.ratio == "max"] == [0.79, 0.78, 0.77]


def test_finalists_of_a_score_hold_it() -> None:
    entries = ranked([entry(0.5, 0.4), entry(0.79, 0.4), entry(0.6, "max"), entry(float("nan"), "max")])
    assert [one.score for one in finalists(Target.parse("kappa>=0.9x"), entries, ORIGINAL)] == [0.79]
    by_agreement = [entry(0.9, agreement=0.5), entry(0.1, agreement=0.99)]
    assert [one.score for one in finalists(Target.parse("agreement>=0.9"), by_agreement, ORIGINAL)] == [0.1]


def test_a_latency_target_takes_the_most_accurate_that_is_fast_enough() -> None:
    timed = [(entry(0.8), 0.7), (entry(0.7), 0.55), (entry(0.75), 0.59), (entry(0.6), 0.3)]
    target = Target.parse("latency<=0.6")
    won = choose(target, timed)
    assert won is not None
    assert won.score == 0.75
    assert choose(Target.parse("latency<=0.2"), timed) is None


def test_a_score_target_takes_the_fastest_and_the_better_of_two_equally_fast() -> None:
    target = Target.parse("kappa>=0.5")
    won = choose(target, [(entry(0.8), 0.7), (entry(0.6), 0.500), (entry(0.7), 0.505)])
    assert won is not None
    assert won.score == 0.7  # 1 % slower is no difference
    assert choose(target, []) is None


def test_undefined_scores_rank_last_and_ties_keep_their_order() -> None:
    nan, first, second, best = entry(float("nan")), entry(0.5, key="a"), entry(0.5, key="b"), entry(0.6)
    assert ranked([nan, first, second, best]) == [best, first, second, nan]
