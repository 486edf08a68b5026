"""Metrics against scikit-learn as the specification words them, and against cases counted by hand."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.exceptions import UndefinedMetricWarning

from zipbrain import metrics
from zipbrain.errors import OptionError
from zipbrain.evaluation import figures
from zipbrain.evaluation.plots import confusion


def binary(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, n)
    return labels, np.round(random.random(n) * 0.6 + 0.3 * labels, 2)  # rounded: with ties


def several(n: int = 500, k: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, k, n)
    return labels, random.normal(size=(n, k)) + 1.5 * np.eye(k)[labels]


def test_binary_scores_by_hand() -> None:
    # Called positive from 0.5 on: 1 1 0 0 1; right are the first, third and fifth.
    found = metrics.scores([1, 0, 0, 1, 1], [0.9, 0.5, 0.4, 0.3, 0.8])
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["auroc"] == pytest.approx(4 / 6)  # 0.9 and 0.8 beat both negatives, 0.3 none
    assert found["pr_auc"] == pytest.approx((1 / 1 + 2 / 2 + 3 / 5) / 3)
    chance = (3 * 3 + 2 * 2) / 25
    assert found["kappa"] == pytest.approx((0.6 - chance) / (1 - chance))
    assert found["weighted_f1"] == pytest.approx((3 * (4 / 6) + 2 * (2 / 4)) / 5)
    assert list(found) == list(metrics.METRICS)


def test_binary_scores_are_those_the_specification_names() -> None:
    labels, chances = binary()
    found = metrics.scores(labels, chances, threshold=0.4)
    called = chances >= 0.4
    assert found == {
        "accuracy": sk.accuracy_score(labels, called),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, called),
        "auroc": sk.roc_auc_score(labels, chances),
        "pr_auc": sk.average_precision_score(labels, chances),
        "kappa": sk.cohen_kappa_score(labels, called),
        "weighted_f1": sk.f1_score(labels, called, average="weighted"),
    }


def test_several_classes_are_scored_by_the_largest_logit() -> None:
    labels, logits = several()
    found = metrics.scores(labels, metrics.probabilities(logits))
    called = logits.argmax(axis=1)
    assert found == {
        "accuracy": sk.accuracy_score(labels, called),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, called),
        "kappa": sk.cohen_kappa_score(labels, called),
        "weighted_f1": sk.f1_score(labels, called, average="weighted"),
    }
    assert list(found) == [metric.name for metric in metrics.metrics_of(5)]


def test_a_class_absent_from_the_labels_does_not_count_in_balanced_accuracy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = metrics.scores([0, 0, 1, 1], np.eye(3)[[0, 2, 1, 1]])
    assert found["balanced_accuracy"] == pytest.approx((0.5 + 1) / 2)
    assert found["weighted_f1"] == pytest.approx((2 * (2 / 3) + 2 * 1) / 4)


def test_one_logit_and_two_give_the_same() -> None:
    labels, chances = binary()
    logit = np.log(chances.clip(0.01, 0.99) / (1 - chances.clip(0.01, 0.99)))
    one = metrics.probabilities(logit)
    np.testing.assert_allclose(one, chances.clip(0.01, 0.99))
    for shape in (logit[:, None], np.stack([np.zeros_like(logit), logit], axis=1), torch.tensor(logit)):
        np.testing.assert_allclose(metrics.probabilities(shape), one)
    both = np.stack([1 - one, one], axis=1)
    assert metrics.scores(labels, both) == metrics.scores(labels, one[:, None]) == metrics.scores(labels, one)


def test_probabilities_of_far_logits_are_finite() -> None:
    np.testing.assert_array_equal(metrics.probabilities([-1e4, 0, 1e4]), [0, 0.5, 1])
    rows = metrics.probabilities([[1e4, 0, -1e4], [0, 0, 0]])
    np.testing.assert_allclose(rows, [[1, 0, 0], [1 / 3] * 3])


def test_half_precision_probabilities_pass() -> None:
    labels, logits = several(k=6)
    half = torch.tensor(logits).softmax(1).half().numpy()
    assert metrics.scores(labels, half)["accuracy"] > 0.3


def test_the_biot_threshold_calls_as_many_positive_as_there_are() -> None:
    assert metrics.biot_threshold([0, 1, 1, 0, 0], [0.1, 0.7, 0.2, 0.6, 0.3]) == 0.6
    labels, chances = binary(n=1001)
    distinct = chances + np.random.default_rng(1).random(1001) * 1e-3
    threshold = metrics.biot_threshold(labels, distinct)
    assert (distinct >= threshold).sum() == labels.sum()
    plain, moved = metrics.scores(labels, distinct), metrics.scores(labels, distinct, threshold=threshold)
    assert (plain["auroc"], plain["pr_auc"]) == (moved["auroc"], moved["pr_auc"])
    assert plain["accuracy"] != moved["accuracy"]
    with pytest.raises(OptionError, match="at least one window of class 1"):
        metrics.biot_threshold([0, 0], [0.1, 0.2])


def test_one_class_only_is_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedMetricWarning, match="class 0 only, so auroc, pr_auc is undefined"):
        found = metrics.scores([0, 0, 0], [0.1, 0.2, 0.9])
    assert math.isnan(found["auroc"])
    assert math.isnan(found["pr_auc"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    with pytest.warns(UndefinedMetricWarning, match="kappa"):
        assert math.isnan(metrics.scores([2, 2], np.eye(3)[[2, 2]])["kappa"])


@pytest.mark.parametrize(
    ("labels", "chances", "words"),
    [
        ([0, 1], [0.1, np.nan], "1 of 2 values NaN"),
        ([0, 1], [0.1, np.inf], "NaN or infinite"),
        ([0, np.nan], [0.1, 0.2], "labels: got '1 of 2 values NaN"),
        ([0, 1], [-2.0, 3.0], "probabilities() makes them from logits"),
        ([0, 1], [[0.9, 0.9, 0.1], [0.1, 0.8, 0.1]], "add up to 1"),
        ([0, 1, 1], [0.1, 0.2], r"labels: got \(3,\)"),
        ([[0], [1]], [0.1, 0.2], r"labels: got \(2, 1\)"),
        ([0, 2], [0.1, 0.2], "whole numbers from 0 to 1"),
        ([0, 0.5], [0.1, 0.2], "whole numbers from 0 to 1"),
        ([-1, 0], [0.1, 0.2], "whole numbers from 0 to 1"),
        ([], [], "n at least 1"),
        (["rest", "task"], [0.1, 0.2], "array of numbers"),
        ([0, 1], torch.tensor([0.1, 0.2], requires_grad=True), "detach"),
        ([0, 1], np.zeros((2, 2, 2)), r"\(n, classes\)"),
    ],
)
def test_bad_input_is_refused(labels: object, chances: object, words: str) -> None:
    with pytest.raises(OptionError, match=words.replace("()", r"\(\)")):
        metrics.scores(labels, chances)


def test_bad_options_are_refused() -> None:
    labels, chances = binary()
    with pytest.raises(OptionError, match="n_classes: got 3, but the probabilities are those of 2 classes"):
        metrics.scores(labels, chances, n_classes=3)
    with pytest.raises(OptionError, match="threshold"):
        metrics.scores(labels, chances, threshold=1.5)
    with pytest.raises(OptionError, match="2 names are needed"):
        metrics.per_class(labels, chances, ["rest", "task", "other"])
    with pytest.raises(OptionError, match="logits: got"):
        metrics.probabilities(np.zeros((2, 2, 2)))


def test_the_main_metric_is_the_papers() -> None:
    found = {corpus: metrics.main_metric(corpus) for corpus in ("TUAB", "eegmat", "TUEV", "isruc", "EarEEG")}
    assert found == {"TUAB": "auroc", "eegmat": "auroc", "TUEV": "kappa", "isruc": "kappa", "EarEEG": "kappa"}
    assert (metrics.main_metric(2), metrics.main_metric(4)) == ("auroc", "kappa")
    with pytest.raises(OptionError, match="corpus"):
        metrics.main_metric("deap")
    with pytest.raises(OptionError, match="2 or more"):
        metrics.main_metric(1)


def test_per_class_by_hand() -> None:
    rows = metrics.per_class([0, 0, 1, 1, 1], np.eye(3)[[0, 1, 1, 1, 0]], ["W", "N1", "REM"])
    assert [row["class"] for row in rows] == ["W", "N1", "REM"]
    wake, n1, rem = rows
    assert (wake["support"], wake["predicted"]) == (2, 2)
    assert (wake["precision"], wake["recall"], wake["specificity"], wake["f1"]) == (0.5, 0.5, pytest.approx(2 / 3), 0.5)
    assert (n1["precision"], n1["recall"], n1["specificity"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3), 0.5)
    assert (rem["support"], rem["predicted"], rem["specificity"]) == (0, 0, 1.0)
    assert all(math.isnan(rem[name]) for name in ("precision", "recall", "f1"))


def test_the_confusion_figure_shows_shares_and_counts(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    ax = confusion.confusion([0, 0, 0, 1], [0.1, 0.2, 0.9, 0.8], ["rest", "task"])
    assert [text.get_text() for text in ax.texts] == ["67 %\n2", "33 %\n1", "0 %\n0", "100 %\n1"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rest\n(n = 3)", "task\n(n = 1)"]
    for name in ("confusion.png", "confusion.svg"):
        ax.figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    given = plt.figure().subplots()
    labels = [0, 1, 1]
    assert confusion.confusion(labels, np.eye(3)[[0, 1, 2]], ["W", "N1", "N2"], ax=given) is given
    assert figures.confusion is confusion.confusion  # its earlier place
    assert [text.get_text() for text in given.texts][-3:] == ["–"] * 3  # no window is of the last class
    plt.close("all")


def test_importing_the_package_imports_no_scikit_learn() -> None:
    code = (
        "import sys, zipbrain.metrics, zipbrain.evaluation as e; e.bootstrap, e.figures\n"
        "print({'sklearn', 'scipy', 'matplotlib', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
