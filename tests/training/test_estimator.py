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
from sklearn.utils import Tags
from sklearn.utils.estimator_checks import check_estimator

import zipbrain
from training.small import BIOT, windows
from zipbrain.data import Windows
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
    with pytest.raises(OptionError, match=r"the model was fitted on C3, C4, O1 \(missing: C3; not wanted: F3\)"):
        fitted.predict(epochs.copy().rename_channels({"C3": "F3"}))
    with pytest.warns(
        UserWarning, match=r"ch_names \(F3, C4, O1\) are not used: mne.Epochs bring theirs \(C3, C4, O1\)"
    ):
        classifier(epochs=1, ch_names=["F3", "C4", "O1"]).fit(epochs)
    broken = x.copy()
    broken[0, 0, 0] = np.nan
    with pytest.raises(OptionError, match="NaN or infinity"):
        classifier().fit(mne.EpochsArray(broken * 1e-6, info, events, verbose="error"))


def test_epochs_survive_cross_validation_and_pipelines() -> None:
    mne = pytest.importorskip("mne")
    x, y = data()
    info = mne.create_info([*NAMES, "EOG"], 200.0, ["eeg"] * 3 + ["eog"])
    with_eog = np.concatenate((x, x[:, :1]), axis=1)
    codes = np.where(y == "rest", 7, 9)
    events = np.column_stack((np.arange(len(x)) * 1000, np.zeros(len(x), int), codes))
    epochs = mne.EpochsArray(with_eog * 1e-6, info, events, event_id={"rest": 7, "task": 9}, verbose="error")
    ready = classifier(ch_names=None)
    scores = cross_val_score(ready, epochs, y, cv=2, error_score="raise")
    np.testing.assert_allclose(scores, cross_val_score(classifier(), x, y, cv=2), atol=0.05)
    assert (scores > 0.9).all()
    assert (cross_val_score(make_pipeline("passthrough", ready), epochs, codes, cv=2, error_score="raise") > 0.9).all()
    search = GridSearchCV(ready, {"lr": [5e-3]}, cv=2, error_score="raise").fit(epochs, y)
    assert (
        search.best_estimator_.predict(epochs).tolist() == search.predict([epochs[i] for i in range(len(x))]).tolist()
    )
    halves = [epochs[:24], epochs[24:]]
    np.testing.assert_array_equal(ready.fit(halves).predict(halves), ready.predict(epochs))


def test_a_fourth_axis_of_one_is_dropped() -> None:
    x, y = data()
    fitted = classifier(epochs=1).fit(x[:, None], y)
    np.testing.assert_array_equal(fitted.predict_proba(x), fitted.predict_proba(x[:, None]))
    with pytest.raises(ShapeError, match=r"float32 \(48, 2, 3, 400\)"):
        fitted.predict(np.stack((x, x), axis=1))


def test_volts_are_refused_in_fit_and_predict_unless_they_are_called_so() -> None:
    x, y = data()
    with pytest.raises(OptionError, match=r"x: got 'a typical deviation of .*e-0\d uV', .*with units='V'"):
        classifier().fit(x * 1e-6, y)
    fitted = classifier(epochs=1).fit(x, y)
    with pytest.raises(OptionError, match=r"x: got 'a typical deviation of .*e-0\d uV'"):
        fitted.predict(x * 1e-6)
    with pytest.raises(OptionError, match=r"x: got 'channel C4: a typical deviation of"):
        classifier().fit(x * [[1], [1e-3], [1]], y)
    volts = classifier(epochs=1, units="V").fit(x * 1e-6, y)
    np.testing.assert_allclose(volts.predict_proba(x * 1e-6), fitted.predict_proba(x), atol=1e-4)
    with pytest.warns(UserWarning, match="x: a typical deviation of"):
        fitted.predict(x / x.std() * 0.02)
    assert classifier(epochs=1, check=False).fit(x * 1e-6, y).classes_.tolist() == ["rest", "task"]
    with pytest.raises(OptionError, match="units: got 'pV'"):
        classifier(units="pV").fit(x, y)


def test_a_checkpoint_a_validation_share_and_compression(tmp_path: Path) -> None:
    x, y = data()
    start = zipbrain.save_pretrained(Biot(1, 3, 400, **BIOT), tmp_path / "start")
    options: dict[str, Any] = {"checkpoint": start, "settings": "scratch", "validation_fraction": 0.25, "ratio": 0.5}
    fitted = classifier(**options, method="tome", epochs=1).fit(x, y)
    assert is_compressed(fitted.model_)
    assert "val_auroc" in fitted.history_[0]
    assert fitted.predict(x).shape == y.shape
    assert classifier(checkpoint=str(start), epochs=1).fit(x, y).settings_.origin == "paper"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ratio": 80}, "ratio: got 80"),
        ({"ratio": "most"}, "ratio: got 'most'"),
        ({"ratio": 0.5, "method": "zipbrian"}, "method: got 'zipbrian'"),
        ({"ratio": 0.5, "method": 3}, "method: got 3"),
    ],
)
def test_a_compression_that_can_not_be_is_refused_before_training(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zipbrain.training.estimator.finetune", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(OptionError, match=said):
        classifier(**options).fit(*data())


class _Missing:
    """Behaves as pandas.NA: comparisons give itself, and it has no truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __lt__ = __gt__ = __eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize("missing", [_Missing(), None, np.nan, np.datetime64("NaT")])
@pytest.mark.parametrize("names", [("a", "b"), (0, 1)])
def test_a_missing_label_is_refused(missing: object, names: tuple[object, object]) -> None:
    x, _ = data(n=8)
    with pytest.raises(OptionError, match="y: got '1 labels that are None, NA, NaT or NaN'"):
        classifier().fit(x, np.array([*names * 3, names[0], missing], dtype=object))


def test_labels_of_several_kinds_are_refused() -> None:
    x, _ = data(n=8)
    with pytest.raises(OptionError, match="y: got 'labels of several kinds'"):
        classifier().fit(x, np.array(["a", 1] * 4, dtype=object))


@pytest.mark.parametrize(
    ("fraction", "labels"),
    [(0.01, [0, 1] * 10), (0.99, [0, 1] * 10), (0.1, [0] * 17 + [1] * 3), (0.1, [0] * 19 + [1]), ("a", [0, 1] * 10)],
)
def test_a_validation_share_without_two_classes_is_refused(fraction: Any, labels: list[int]) -> None:
    x, _ = data(n=20)
    with pytest.raises(OptionError, match="validation_fraction: got"):
        classifier(validation_fraction=fraction).fit(x, labels)


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


class OfTables(EEGClassifier):  # type: ignore[misc]
    """Draws every number of scikit-learn's tables (n, F) out into a channel: two waves in that proportion."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags

    def _windows(self, X: Any, *fitted: Any) -> Windows:
        table = X if hasattr(X, "toarray") else np.asarray(X)
        if hasattr(X, "toarray") or table.ndim != 2 or table.dtype.kind not in "fiuO":
            return super()._windows(X, *fitted)
        if table.dtype.kind == "O":
            return super()._windows(np.repeat(table[:, :, None], 200, axis=2), *fitted)
        number = np.where(np.isfinite(table), np.clip(table, -9, 9), table)[:, :, None]
        slow, fast = (np.sin(np.arange(200) * step) for step in (0.2, 0.9))
        with np.errstate(invalid="ignore"):
            drawn = 20 * (slow + np.exp(number / 2) * fast)
        return super()._windows(drawn, *fitted)


# Also in docs/guides/training.md.
EXCEPTIONS = {
    "check_n_features_in": "a feature is a sample of a window, not a column of a table: n_chans_ counts channels",
    "check_n_features_in_after_fitting": "as above",
    "check_estimators_empty_data_messages": "the shape in the message has three numbers",
    "check_methods_sample_order_invariance": "equal to 1e-5, not to 1e-9: networks compute in float32",
    "check_methods_subset_invariance": "as above",
}


def test_scikit_learns_check_estimator_passes_but_for_what_is_listed() -> None:
    tiny = {"options": {"dim": 16, "depth": 1}}
    ready = OfTables("biot", epochs=8, lr=5e-3, batch_size=16, overrides=tiny, device="cpu", random_state=0)
    found = check_estimator(ready, expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None)
    status = {row["check_name"]: row["status"] for row in found}
    assert {name for name, said in status.items() if said == "failed"} == set()
    assert {name for name, said in status.items() if said == "xfail"} == set(EXCEPTIONS)
    assert sum(row["status"] == "passed" for row in found) > 40


def test_order_and_company_of_windows_change_no_answer() -> None:
    x, y = data()
    fitted = classifier(epochs=1).fit(x, y)
    wanted, order = fitted.predict_proba(x), np.random.default_rng(0).permutation(len(x))
    np.testing.assert_allclose(fitted.predict_proba(x[order]), wanted[order], atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([fitted.predict_proba(x[i : i + 1]) for i in range(9)]), wanted[:9], atol=1e-5
    )


def test_it_is_a_classifier_of_3d_arrays() -> None:
    check_estimator(EEGClassifier(), on_skip=None)
    assert is_classifier(EEGClassifier())
    tags = EEGClassifier().__sklearn_tags__()
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
