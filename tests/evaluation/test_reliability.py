"""One class for all windows, scores of guesses and few windows are said, under every table."""

from __future__ import annotations

import numpy as np
import pytest

from zipbrain.evaluation.reliability import (
    FEW,
    FEW_OF_CLASS,
    Scored,
    doubts_about,
    doubts_of_training,
    find_doubts,
    find_few,
)
from zipbrain.evaluation.result import Result
from zipbrain.metrics import check, score

TWO, THREE = ("rest", "task"), ("W", "N1", "N2")


def guesses(n: int, classes: int, seed: int) -> Scored:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    logits = rng.normal(size=(n, classes))
    metric = "auroc" if classes == 2 else "kappa"
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Scored(str(seed), score(logits, labels, metric), check(labels, shares).table)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("n", [40, 400])
def test_guesses_are_found_to_be_chance_and_good_models_are_not(n: int, classes: int) -> None:
    found = [guesses(n, classes, seed).is_chance for seed in range(400)]
    assert 0.94 < np.mean(found) < 0.998  # one in 40 is better by luck
    good = np.full((classes, classes), 1.0) + np.diag([n / classes] * classes)
    assert not Scored("good", 0.9, good).is_chance


def test_an_interval_decides_where_there_is_one() -> None:
    table = [[40, 20], [20, 40]]
    assert not Scored("a", 0.7, table).is_chance
    assert Scored("a", 0.7, table, (0.45, 0.9)).is_chance
    assert not Scored("a", 0.55, table, (0.51, 0.6)).is_chance
    assert not Scored("a", 0.7, table, (float("nan"), 0.9)).is_chance
    assert not Scored("a", float("nan"), table).is_chance


def test_one_class_for_all_windows_is_named() -> None:
    useless, good = [[60, 0], [60, 0]], [[50, 10], [10, 50]]
    assert find_doubts([Scored("a", 0.9, good)], TWO) == []
    lines = find_doubts([Scored("a", 0.9, good), Scored("b", 0.5, useless), Scored("c", 0.5, useless)], TWO)
    assert lines == [
        "All windows are called rest by b, c: such a model says nothing.",
        "No better than chance (AUROC 0.5): b, c.",
    ]
    assert "every row" in find_doubts([Scored("b", 0.5, useless), Scored("c", 0.5, useless)], TWO)[0]
    same = [[0, 0, 60], [0, 0, 30], [0, 0, 30]]
    assert find_doubts([Scored("a", 0.0, same)], THREE)[0].startswith("All windows are called N2 by a")
    many = find_doubts([Scored(str(i), 0.5, useless) for i in range(9)] + [Scored("a", 0.9, good)], TWO)
    assert "0, 1, 2, 3, 4, 5 and 3 more" in many[0]
    assert find_doubts([], TWO) == []


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((FEW, FEW), None),
        ((FEW, 0), None),  # a class that does not occur is another matter
        ((5, 5), "Few windows: 10."),
        ((FEW, FEW_OF_CLASS - 1), f"Few windows: {FEW + FEW_OF_CLASS - 1} ({FEW_OF_CLASS - 1} of task)."),
    ],
)
def test_few_windows_are_said(counts: tuple[int, int], words: str | None) -> None:
    assert [line.startswith(words or "?") for line in find_few(counts, TWO)] == [True] * (words is not None)


def test_results_are_named_as_in_their_table() -> None:
    task = {"classes": list(TWO)}
    result = lambda label, ratio, **more: Result(  # noqa: E731
        "k",
        "compare",
        label,
        ratio,
        task,
        {"method": {"name": "tome"}},
        {"auroc": 0.5},
        confusion=[[60, 0], [60, 0]],
        **more,
    )
    good = Result("k", "compare", "Original", None, task, None, {"auroc": 0.9}, confusion=[[55, 5], [5, 55]])
    lines = doubts_about([good, result("ToMe", 0.8), result("ToMe", 0.8, extra={"mass": True}), result("ToMe", "max")])
    assert "ToMe 80 %, ToMe + mass 80 %, ToMe max" in lines[0]
    (line,) = doubts_about([result("ToMe + mass", 0.8, extra={"mass": True})])[:1]  # as a report labels it
    assert "mass + mass" not in line
    old = Result("k", "compare", "Original", None, task, None, {"auroc": 0.5})  # stored without its confusion matrix
    assert doubts_about([old]) == []


def test_a_run_that_learnt_nothing_says_so() -> None:
    record = {"validation": {"counts": [100, 100], "classes": list(TWO)}}
    assert doubts_of_training(record, {"val_auroc": 0.9}) == []
    assert doubts_of_training(record, {"val_auroc": 0.55}) == [
        "No better than chance (AUROC 0.5) on the validation windows."
    ]
    assert "not known" in doubts_of_training({"validation": None}, {})[0]
    few = {"validation": {"counts": [3, 3, 4], "classes": list(THREE)}}
    assert [line.split(":")[0] for line in doubts_of_training(few, {"val_kappa": 0.9})] == ["Few windows"]
    lone = {"validation": {"counts": [60, 0], "classes": list(TWO)}}
    assert doubts_of_training(lone, {"val_auroc": float("nan")}) == []


def test_the_errors_are_those_of_guessing() -> None:
    values = np.array([guesses(60, 3, seed).value for seed in range(600)])
    table = guesses(60, 3, 0).confusion
    from zipbrain.metrics.triviality import _auroc_error, _kappa_error

    assert abs(values.std() / _kappa_error(np.asarray(table)) - 1) < 0.15
    values = np.array([guesses(60, 2, seed).value for seed in range(600)])
    assert abs(values.std() / _auroc_error(np.array([[20, 10], [10, 20]])) - 1) < 0.15
