"""`EEGClassifier` among scikit-learn's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import (
    check_do_not_raise_errors_in_init_or_set_params,
    check_estimator_cloneable,
    check_estimator_repr,
    check_get_params_invariance,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
    check_set_params,
    check_valid_tag_types,
)

import zipbrain
from training.small import BIOT, windows
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models import BIOT as Biot
from zipbrain.seams import is_compressed
from zipbrain.training import EEGClassifier

NAMES = ["C3", "C4", "O1"]


def classifier(**options: Any) -> Any:
    overrides = {"options": BIOT, "dropout": 0.0}
    plain = {"epochs": 4, "lr": 5e-3, "batch_size": 8, "device": "cpu", "ch_names": NAMES, "overrides": overrides}
    return EEGClassifier("biot", **plain | options)


def data(classes: int = 2, n: int = 48) -> tuple[Any, Any]:
    found = windows(n, classes)
    return found.take(slice(None)), np.array(["rest", "task", "sleep"])[found.labels]


def test_cross_validation_grid_search_and_pipelines_work() -> None:
    x, y = data()
    scores = cross_val_score(classifier(), x, y, cv=2, scoring="roc_auc", error_score="raise")
    assert (scores > 0.9).all()
    groups = np.repeat(np.arange(6), 8)
    assert cross_val_score(classifier(epochs=1), x, y, groups=groups, cv=GroupKFold(2), error_score="raise").size == 2
    pipeline = make_pipeline(
        FunctionTransformer(lambda windows: windows - windows.mean(-1, keepdims=True)), classifier()
    )
    assert pipeline.fit(x, y).score(x, y) > 0.9
    search = GridSearchCV(classifier(epochs=1), {"lr": [1e-3, 0.0]}, cv=2, error_score="raise").fit(x, y)
    assert search.best_params_["lr"] in (1e-3, 0.0)


@pytest.mark.parametrize("classes", [2, 3])
def test_answers_agree_with_each_other(classes: int) -> None:
    x, y = data(classes)
    fitted = classifier().fit(x, y)
    assert fitted.classes_.tolist() == sorted(set(y))
    shares, margin = fitted.predict_proba(x), fitted.decision_function(x)
    assert shares.shape == (len(x), classes)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert margin.shape == ((len(x),) if classes == 2 else (len(x), classes))
    assert (fitted.predict(x) == fitted.classes_[shares.argmax(1)]).all()
    if classes == 2:
        assert ((margin > 0) == (shares[:, 1] > 0.5)).all()
    again = clone(fitted).fit(x, y)
    assert np.array_equal(again.predict_proba(x), shares)
    other = classifier(random_state=3).fit(x, y)
    assert not np.array_equal(other.predict_proba(x), shares)


def test_epochs_of_mne_are_taken_in_volts() -> None:
    mne = pytest.importorskip("mne")
    x, y = data()
    codes = np.where(y == "rest", 7, 9)
    events = np.column_stack((np.arange(len(x)) * 1000, np.zeros(len(x), int), codes))
    info = mne.create_info(NAMES, 200.0, "eeg")
    epochs = mne.EpochsArray(x * 1e-6, info, events, verbose="error")
    fitted = classifier(ch_names=None).fit(epochs)
    assert fitted.classes_.tolist() == [7, 9]
    plain = classifier().fit(x, codes)
    np.testing.assert_allclose(fitted.predict_proba(epochs), plain.predict_proba(x), atol=1e-3)
    assert fitted.predict(epochs[:3]).shape == (3,)
    with pytest.raises(OptionError, match="the model was fitted on C3, C4, O1 at 200 Hz"):
        fitted.predict(epochs.copy().rename_channels({"C3": "F3"}))
    broken = x.copy()
    broken[0, 0, 0] = np.nan
    with pytest.raises(OptionError, match="NaN or infinity"):
        classifier().fit(mne.EpochsArray(broken * 1e-6, info, events, verbose="error"))


def test_a_checkpoint_a_validation_share_and_compression(tmp_path: Path) -> None:
    x, y = data()
    start = zipbrain.save_pretrained(Biot(1, 3, 400, **BIOT), tmp_path / "start")
    options: dict[str, Any] = {"checkpoint": start, "settings": "scratch", "validation_fraction": 0.25, "ratio": 0.5}
    fitted = classifier(**options, method="tome", epochs=1).fit(x, y)
    assert is_compressed(fitted.model_)
    assert "val_auroc" in fitted.history_[0]
    assert fitted.predict(x).shape == y.shape
    assert classifier(checkpoint=str(start), epochs=1).fit(x, y).settings_.origin == "paper"


def test_what_can_not_be_used_is_refused() -> None:
    x, y = data()
    with pytest.raises(NotFittedError):
        classifier().predict(x)
    with pytest.raises(ShapeError, match=r"X: got 'float32 \(48, 3\)'"):
        classifier().fit(x[..., 0], y)
    with pytest.raises(ShapeError, match="one label for each"):
        classifier().fit(x, y[:5])
    with pytest.raises(OptionError, match="at least two classes"):
        classifier().fit(x, ["rest"] * len(x))
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier().fit(x, np.linspace(0, 1, len(x)))
    with pytest.raises(OptionError, match="requires y"):
        classifier().fit(x)
    broken = x.copy()
    broken[0, 0, 0] = np.inf
    with pytest.raises(OptionError, match="NaN or infinity"):
        classifier().fit(broken, y)
    fitted = classifier(epochs=1).fit(x, y)
    with pytest.raises(ShapeError, match=r"the model was fitted on \(n, 3, 400\)"):
        fitted.predict(x[:, :2])
    with pytest.raises(OptionError, match="validation_fraction"):
        classifier(validation_fraction=2.0).fit(x, y)
    with pytest.raises(OptionError, match="known settings are"):
        classifier(overrides={"momentum": 1}).fit(x, y)


@pytest.mark.parametrize(
    "check",
    [
        check_do_not_raise_errors_in_init_or_set_params,
        check_estimator_cloneable,
        check_estimator_repr,
        check_get_params_invariance,
        check_no_attributes_set_in_init,
        check_set_params,
        check_valid_tag_types,
    ],
)
def test_scikit_learns_checks_that_need_no_2d_input_pass(check: Any) -> None:
    check("EEGClassifier", EEGClassifier())


def test_it_is_a_classifier_of_3d_arrays() -> None:
    check_parameters_default_constructible("EEGClassifier", EEGClassifier())
    assert is_classifier(EEGClassifier())
    tags = EEGClassifier().__sklearn_tags__()
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
