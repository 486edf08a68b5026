"""Intervals over subjects: equal to resampling plainly, seeded, wide where subjects differ, honest where undefined."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

from zipbrain import metrics
from zipbrain.errors import OptionError
from zipbrain.evaluation import bootstrap


def recordings(k: int, subjects: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities with ties, and subjects of unequal length."""
    random = np.random.default_rng(seed)
    whose = np.repeat(np.arange(subjects), random.integers(5, 40, subjects))
    labels = random.integers(0, k, len(whose))
    if k == 2:
        return labels, np.round(0.7 * random.random(len(whose)) + 0.2 * labels, 1), whose
    return labels, metrics.probabilities(random.normal(size=(len(whose), k)) + np.eye(k)[labels]), whose


def plainly(labels: np.ndarray, chances: np.ndarray, whose: np.ndarray, n: int, seed: int, threshold: float) -> dict:
    """The same draws, with the windows of the drawn subjects put together and given to `metrics.scores`."""
    names = np.unique(whose)
    times = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=n)
    rows = []
    for row in times:
        times_drawn = dict(zip(names, row, strict=True))
        windows = np.concatenate([np.tile(np.flatnonzero(whose == name), t) for name, t in times_drawn.items()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(metrics.scores(labels[windows], chances[windows], threshold=threshold))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("block", [1, 1000, 1 << 21])
def test_equal_to_resampling_plainly(k: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    labels, chances, whose = recordings(k)
    drawn = bootstrap.resample(labels, chances, whose, n=60, seed=3, threshold=0.45)
    expected = plainly(labels, chances, whose, 60, 3, 0.45)
    assert drawn.scores.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(drawn.scores[name], values, rtol=1e-10, err_msg=name)
    assert drawn.undefined == dict.fromkeys(expected, 0)


def test_equal_to_resampling_plainly_where_metrics_are_undefined() -> None:
    # Each subject holds one class, so about one draw in eight holds one class only.
    whose = np.repeat(["a", "b", "c", "d"], 5)
    labels = np.repeat([0, 0, 1, 1], 5)
    chances = np.linspace(0.05, 0.9, 20).round(1)
    drawn = bootstrap.resample(labels, chances, whose, n=200, seed=0)
    expected = plainly(labels, chances, whose, 200, 0, 0.5)
    for name, values in expected.items():
        np.testing.assert_allclose(drawn.scores[name], values, rtol=1e-10, err_msg=name)
    assert drawn.undefined["auroc"] == drawn.undefined["pr_auc"] == drawn.short == np.isnan(expected["auroc"]).sum()
    assert 0.05 < drawn.short / 200 < 0.25
    assert drawn.undefined["accuracy"] == 0
    with pytest.warns(UserWarning, match=rf"of 200 resamples .* left out: .*auroc in {drawn.short}"):
        found = bootstrap.intervals(labels, chances, whose, n=200)
    assert np.isfinite(found["auroc"]).all()


def test_labels_of_one_class_give_nan_intervals() -> None:
    with pytest.warns(UserWarning, match="auroc in 50"):
        found = bootstrap.intervals(np.zeros(10), np.linspace(0, 1, 10), np.arange(10) % 3, n=50)
    assert np.isnan(found["auroc"]).all()
    assert np.isfinite(found["accuracy"]).all()


def test_a_class_missing_from_a_draw_is_counted() -> None:
    labels, chances, whose = recordings(3, subjects=6)
    labels[whose != 0] = labels[whose != 0] % 2  # class 2 only with the first subject
    labels[np.flatnonzero(whose == 0)[0]] = 2
    drawn = bootstrap.resample(labels, chances, whose, n=1000)
    assert abs(drawn.short / 1000 - (5 / 6) ** 6) < 0.05
    assert not any(drawn.undefined.values())


def test_intervals_are_seeded_ordered_and_hold_the_score() -> None:
    labels, chances, whose = recordings(2, subjects=40)
    found = bootstrap.intervals(labels, chances, whose, n=500, seed=1)
    assert found == bootstrap.intervals(labels, chances, whose, n=500, seed=1)
    assert found != bootstrap.intervals(labels, chances, whose, n=500, seed=2)
    narrow = bootstrap.intervals(labels, chances, whose, n=500, seed=1, level=0.5)
    for name, score in metrics.scores(labels, chances).items():
        assert found[name][0] < narrow[name][0] < narrow[name][1] < found[name][1]
        assert found[name][0] < score < found[name][1]


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        skill = random.beta(8, 3, size=40)  # subjects differ; their mean accuracy is 8 / 11
        right = random.random((40, 20)) < skill[:, None]
        labels = random.integers(0, 2, (40, 20))
        chances = np.where(right, labels, 1 - labels).astype(float)
        subjects = np.repeat(np.arange(40), 20)
        low, high = bootstrap.intervals(labels.ravel(), chances.ravel(), subjects, n=200, seed=trial)["accuracy"]
        held += low <= 8 / 11 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_subjects_that_differ_widen_the_interval() -> None:
    labels = np.tile([0, 1], 200)
    whose = np.repeat(np.arange(20), 20)
    chances = np.where(whose < 10, labels, 1 - labels).astype(float)  # ten subjects all right, ten all wrong
    by_subject = bootstrap.intervals(labels, chances, whose, n=500)["accuracy"]
    by_window = bootstrap.intervals(labels, chances, np.arange(400), n=500)["accuracy"]
    assert by_subject[1] - by_subject[0] > 3 * (by_window[1] - by_window[0])


def test_two_thousand_resamples_of_a_test_set_as_large_as_tuab_take_seconds() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 36_945)
    chances = 0.8 * random.random(36_945) + 0.2 * labels
    whose = random.integers(0, 253, 36_945)
    start = time.perf_counter()
    bootstrap.intervals(labels, chances, whose)
    assert time.perf_counter() - start < 30


def test_bad_input_is_refused() -> None:
    labels, chances, whose = recordings(2)
    for change, words in (
        ({"subjects": whose[:-1]}, "subjects: got"),
        ({"subjects": np.zeros(len(labels))}, "two or more are needed"),
        ({"n": 0}, "at least one resample"),
        ({"level": 1.0}, "level"),
        ({"probabilities": np.full(len(labels), np.nan)}, "NaN"),
    ):
        given = {"labels": labels, "probabilities": chances, "subjects": whose} | change
        with pytest.raises(OptionError, match=words):
            bootstrap.intervals(**given)
