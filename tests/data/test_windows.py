"""Windows from arrays, epochs and prepared folders; scaling; splits; channels by name."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mne
import numpy as np
import pytest

from data import tiny_corpora
from zipbrain.data import Processing, Windows, convention, open_prepared, prepare, scale
from zipbrain.data.labelling import Cutter, Plan
from zipbrain.data.splits import by_number, by_subject
from zipbrain.errors import DataError, OptionError, ShapeError
from zipbrain.signal.montage import derive, scalp_channels
from zipbrain.signal.scaling import SCALINGS

X = np.random.default_rng(0).normal(size=(6, 2, 10)) * 20


@pytest.fixture
def arrays() -> Windows:
    return Windows.from_arrays(X, list("bacbab"), ch_names=["C3", "C4"], sfreq=200, subjects=list("uuvvww"))


def of(x: Any, **options: Any) -> Windows:
    return Windows.from_arrays(x, list("bacbab"), ch_names=["C3", "C4"], sfreq=200, **options)


@pytest.mark.parametrize(("units", "factor"), [("nV", 1e3), ("uV", 1.0), ("mV", 1e-3), ("V", 1e-6)])
def test_arrays_of_any_unit_become_microvolts(units: str, factor: float) -> None:
    found = of(X * factor, units=units)
    np.testing.assert_allclose(found.take([1, 5]), X[[1, 5]], rtol=1e-5)
    np.testing.assert_allclose(found.select([5]).take([0]), X[[5]], rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "units", "words"),
    [
        (
            X * 1e-6,
            "uV",
            r"a typical deviation of 1\.\d+e-05 uV.*EEG has 0\.1 to 2000 uV: say what they are with units='V'",
        ),
        (X, "V", r"a typical deviation of 1\.\d+e\+07 uV"),
        (X * 1e30, "uV", r"a typical deviation of 1\.\d+e\+31 uV"),
        (X * [[1e3], [1]], "uV", r"channel C3: a typical deviation of 1\.\d+e\+04 uV, where the other channels have"),
        (np.repeat(X, 3, axis=2) + np.linspace(0, 9, 30) * [[0], [1]], "pV", "units"),
    ],
)
def test_arrays_that_can_not_be_in_their_unit_are_refused(x: Any, units: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        of(x, units=units)
    if units != "pV":
        assert np.isfinite(of(x, units=units, check=False).take([0])).all()


def test_a_channel_in_volts_among_microvolts_is_named() -> None:
    x = 20 * np.random.default_rng(1).normal(size=(40, 5, 400))
    x[:, 3] *= 1e-6
    names = ["FP1", "C3", "T7", "EOG", "O1"]
    with pytest.raises(OptionError, match=r"channel EOG: a typical deviation of 1\.\d+e-05 uV, .*one unit"):
        Windows.from_arrays(x, [0, 1] * 20, ch_names=names, sfreq=200)
    info = mne.create_info(names, 200.0, "eeg")
    with pytest.raises(OptionError, match="channel EOG"):
        Windows.from_epochs(mne.EpochsArray(x * 1e-6, info, verbose="error"))
    with pytest.raises(OptionError, match=r"a typical deviation of 1\.\d+e\+07 uV.*mne\.Epochs are in volts"):
        Windows.from_epochs(
            mne.EpochsArray(np.delete(x, 3, axis=1), mne.pick_info(info, [0, 1, 2, 4]), verbose="error")
        )
    x[:, 3] = 1e-12 * x[:, 0]  # what a filter leaves of a constant
    assert len(Windows.from_arrays(x, [0, 1] * 20, ch_names=names, sfreq=200)) == 40


def test_classes_can_be_put_in_another_order(arrays: Windows) -> None:
    mapped = arrays.reorder(["c", "a", "b"])
    assert [mapped.classes[label] for label in mapped.labels] == list("bacbab")
    np.testing.assert_array_equal(mapped.take(slice(None)), arrays.take(slice(None)))
    assert arrays.reorder("abc") is arrays
    assert arrays.reorder("abd") is arrays


def test_scaled_arrays_are_taken_with_a_warning_where_they_may_be_meant() -> None:
    normal = X / X.std()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(normal)
        of(np.zeros_like(X))
        of(normal * 0.01, check=False)
    with pytest.warns(UserWarning, match=r"x: a typical deviation of 0\.00\d+ uV, but EEG has") as caught:
        of(normal * 0.01)
    assert caught[0].filename == __file__


def test_arrays_become_windows(arrays: Windows) -> None:
    assert (len(arrays), arrays.n_chans, arrays.n_times, arrays.sfreq, arrays.model) == (6, 2, 10, 200.0, None)
    assert arrays.classes == ("a", "b", "c")
    assert arrays.labels.tolist() == [1, 0, 2, 1, 0, 1]
    assert arrays.labels.dtype == np.int64
    assert arrays.subjects.tolist() == list("uuvvww")
    taken = arrays.take([4, 0, 4])
    assert taken.dtype == np.float32
    np.testing.assert_array_equal(taken, X[[4, 0, 4]].astype(np.float32))
    window, label = arrays[-1]
    np.testing.assert_array_equal(window, X[5].astype(np.float32))
    assert label == 1
    assert [label for _, label in arrays] == arrays.labels.tolist()  # iterable as a sequence
    with pytest.raises(IndexError):
        arrays[6]
    assert "6 windows of 2 channels x 0.05 s at 200 Hz" in repr(arrays)


def test_a_selection_is_windows_again(arrays: Windows) -> None:
    some = arrays.select(arrays.subjects != "v").select([3, 0])
    assert some.subjects.tolist() == ["w", "u"]
    assert some.labels.tolist() == [1, 1]
    np.testing.assert_array_equal(some.take(slice(None)), X[[5, 0]].astype(np.float32))
    assert len(arrays.select([])) == 0
    assert arrays.select([]).take([]).shape == (0, 2, 10)
    assert len(arrays) == 6


def test_wrong_arrays_are_refused() -> None:
    good = {"ch_names": ["C3", "C4"], "sfreq": 200}
    for arguments, options, words in (
        ((X[0], [0]), good, "x: got"),
        ((X, [0] * 5), good, "y: got 'length 5'"),
        ((X, [[0]] * 6), good, "flat"),
        ((X, [0] * 6), good | {"ch_names": ["C3"]}, "2 channels"),
        ((X, [0] * 6), good | {"sfreq": 0}, "positive"),
        ((X, [0, 1, 2, 0, 1, 2]), good | {"classes": ["a", "b"]}, "from 0 to 1"),
        ((X, [0, 1, -1, 0, 1, 2]), good, "from 0"),
        ((X, list("abcabc")), good | {"classes": ["a", "b"]}, "classes are a, b"),
        ((X, [0] * 6), good | {"subjects": ["u"]}, "subjects"),
        ((X[:, :0], [0] * 6), good | {"ch_names": []}, "at least one channel"),
        ((X[:, :, :0], [0] * 6), good, "one sample"),
        ((X, [0] * 6), good | {"ch_names": ["C3", "EEG c3-REF"]}, "ch_names: got .* the same channel as 'C3'"),
        ((X, [0] * 6), good | {"ch_names": ["T3", "T7"]}, "the same channel as 'T3'"),
        ((X, [0] * 6), good | {"ch_names": ["C3", " "]}, "ch_names.*needs a name"),
        ((X, [0] * 6), good | {"ch_names": ["C3", 4]}, "sequence of names"),
        ((X, [0] * 6), good | {"ch_names": "C3"}, "sequence of names"),
        ((X, [0] * 6), good | {"sfreq": np.inf}, "sfreq"),
        ((X, [0] * 6), good | {"sfreq": "200"}, "sfreq: got '200'"),
        ((X, [0] * 6), good | {"classes": ["a", "b", "b"]}, "classes.*named once"),
        ((X, [0, 1, np.nan, 0, 1, 0]), good, "y: got 'NaN or None for 1 of 6"),
        ((X, ["a", "b", np.nan, "a", "b", None]), good, "y: got 'NaN or None for 2 of 6"),
        ((X * np.nan, [0] * 6), good, "x: got 'NaN or infinity in 6 of 6"),
    ):
        with pytest.raises(OptionError, match=words):
            Windows.from_arrays(*arguments, **options)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="flat"):
        Windows.from_arrays(X, [0] * 6, ch_names=["C3", "C4"], sfreq=200).take([[0]])
    assert Windows.from_arrays(X, [0] * 6, ch_names=["A1", "M1"], sfreq=200).ch_names == ("A1", "M1")


@pytest.mark.parametrize("indices", [[10], [0.5], [-7], ["a"], [True]])
def test_windows_that_are_not_there_are_refused(arrays: Windows, indices: Any) -> None:
    for choose in (arrays.take, arrays.select):
        with pytest.raises(OptionError, match=r"indices: got .*from 0 to 5"):
            choose(indices)
    assert [label for _, label in arrays] == arrays.labels.tolist()  # type: ignore[attr-defined]


def test_windows_with_holes_are_counted() -> None:
    x = X.copy()
    x[[1, 4], 0, 3] = np.nan, np.inf
    with pytest.warns(UserWarning, match="NaN or infinity in 2 of 6 windows"):
        assert len(of(x)) == 6


def test_epochs_become_windows_in_microvolts() -> None:
    info = mne.create_info(["C3", "C4", "EOG"], 100.0, ["eeg", "eeg", "eog"])
    data = np.random.default_rng(1).normal(size=(4, 3, 50)) * 1e-5
    events = np.array([[0, 0, 7], [100, 0, 3], [200, 0, 7], [300, 0, 3]])
    epochs = mne.EpochsArray(data, info, events, event_id={"right": 7, "left": 3}, verbose="error")
    windows = Windows.from_epochs(epochs)
    assert windows.classes == ("left", "right")
    assert windows.labels.tolist() == [1, 0, 1, 0]
    assert windows.ch_names == ("C3", "C4")
    np.testing.assert_allclose(windows.take(slice(None)), data[:, :2] * 1e6, rtol=1e-6)
    assert epochs.ch_names == ["C3", "C4", "EOG"]  # the epochs are left as they were


def test_prepared_windows_are_mapped_and_travel_to_other_processes(tmp_path: Path) -> None:
    raw = tiny_corpora.eegmat(tmp_path / "raw")
    prepare("eegmat", raw, tmp_path / "out", model="biot")
    prepared = open_prepared(tmp_path / "out")
    assert (prepared.name, prepared.model, prepared.splits) == ("eegmat", "biot", ("train", "val", "test"))
    assert json.dumps(prepared.info)
    assert prepared.convention == convention("biot", "eegmat")
    with pytest.raises(OptionError, match="train, val, test"):
        prepared.split("eval")
    windows = prepared.split("train")
    assert windows.filters == windows.select([0]).filters == prepared.convention.filters
    everything = windows.take(slice(None))
    order = np.random.default_rng(0).permutation(len(windows))
    np.testing.assert_array_equal(windows.take(order), everything[order])  # across shards
    again = pickle.loads(pickle.dumps(windows))
    np.testing.assert_array_equal(again.take([3, 40]), everything[[3, 40]])
    assert len(pickle.dumps(windows)) < everything.nbytes / 20  # the windows themselves stay on disk


@pytest.mark.parametrize(
    ("band", "notch", "words"),
    [
        ((0.1, 75.0), 50.0, "from 0.1 Hz to 75 Hz, notch at 50 Hz"),
        ((None, 40.0), None, "to 40 Hz, no notch"),
        ((0.5, None), None, "from 0.5 Hz, no notch"),
        (None, None, "no band-pass, no notch"),
    ],
)
def test_filters_are_said_in_words(band: Any, notch: float | None, words: str) -> None:
    assert replace(convention("biot", "eegmat"), band=band, notch=notch).filters == words


def test_folders_that_are_not_prepared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zipbrain data prepare"):
        open_prepared(tmp_path)
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(DataError, match="not an index"):
        open_prepared(tmp_path)
    (tmp_path / "index.json").write_text('{"version": 99}')
    with pytest.raises(DataError, match="format 99"):
        open_prepared(tmp_path)


def test_scalings_are_those_of_the_models() -> None:
    x = X.astype(np.float32)
    np.testing.assert_allclose(scale(x, "hundred"), x / 100, rtol=1e-6)
    ordered = np.sort(np.abs(X.astype(np.float32).astype(np.float64)), axis=-1)  # position 0.95 * 9 = 8.55
    quantile = ordered[..., 8] + 0.55 * (ordered[..., 9] - ordered[..., 8])
    np.testing.assert_allclose(scale(x, "q95"), x / (quantile[..., None] + 1e-8), rtol=1e-6)
    z = scale(x, "zscore")
    np.testing.assert_allclose(z.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(scale(x, "zscore-average"), z - z.mean(1, keepdims=True), atol=1e-6)
    assert scale(x, "none") is x
    for name in SCALINGS:
        assert scale(x, name).dtype == np.float32
        assert scale(x[0], name).shape == (2, 10)
        flat = np.full((1, 2, 10), 0.1, dtype=np.float32)
        assert np.isfinite(scale(flat, name)).all()
    assert not scale(np.full((1, 2, 10), 0.1, dtype=np.float32), "zscore").any()
    with pytest.raises(OptionError, match="hundred"):
        scale(x, "thousand")
    with pytest.raises(ShapeError, match="floating"):
        scale(x.astype(int), "q95")  # type: ignore[arg-type]


def test_splits_are_by_subject_and_the_same_everywhere() -> None:
    people = [f"s{i:02d}" for i in range(10)]
    split = by_subject([*reversed(people), *people], {"train": 0.6, "val": 0.2, "test": 0.2}, 12345)
    assert split == by_subject(people, {"train": 0.6, "val": 0.2, "test": 0.2}, 12345)
    assert sorted(split) == people
    assert [list(split.values()).count(name) for name in ("train", "val", "test")] == [6, 2, 2]
    # Written down: a change here would move subjects between splits of users' data.
    assert sorted(name for name, part in split.items() if part == "test") == ["s02", "s05"]
    assert split != by_subject(people, {"train": 0.6, "val": 0.2, "test": 0.2}, 1)
    assert by_subject(["only"], {"train": 0.8, "val": 0.2}, 0) == {"only": "train"}
    assert [by_number(n, {"train": 80, "val": 90}) for n in (80, 81, 91)] == ["train", "val", None]


def test_channels_are_found_in_any_spelling() -> None:
    names = ["EEG FP1-REF", "F7", "T7..", "C3-M2", "A2", "F3"]
    found = derive(["Fp1", ("F7", "T3"), ("C3", "A2"), ("F3", "M2")], names)
    assert [found.picks[i] for i in found.plus if i is not None] == [0, 1, 3, 5]
    assert [None if i is None else found.picks[i] for i in found.minus] == [None, 2, None, 4]
    rows = np.arange(6.0)[:, None] ** 2
    assert found.apply(rows[list(found.picks)])[:, 0].tolist() == [0.0, 1.0 - 4.0, 9.0, 25.0 - 16.0]
    with pytest.raises(DataError, match="has no O1, P3-O1; its channels are EEG FP1-REF, F7"):
        derive(["O1", ("P3", "O1"), "F7"], names)
    with pytest.raises(DataError, match=r"F7 could be F7 or EEG F7-REF"):
        derive(["F7"], [*names, "EEG F7-REF"])
    assert derive(["F3"], [*names, "EEG F7-REF"]).picks == (5,)  # what is not needed may be ambiguous
    zeros = derive([("O1", "A2"), "F7"], names, zeros=["O1-A2"])
    assert zeros.apply(rows[list(zeros.picks)])[:, 0].tolist() == [0.0, 1.0]
    assert scalp_channels(["EEG Fp1-REF", "EKG", "PHOTIC-REF", "EEG 20-REF", "Cz..", "M1", "C3-A2", "EMG"]) == [
        "FP1",
        "CZ",
        "M1",
    ]


@pytest.mark.parametrize("resampling", ["polyphase", "fft"])
def test_windows_cut_in_passing_are_those_of_the_whole_signal(resampling: str) -> None:
    seconds = 1900  # several blocks of 2^17 samples at 160 Hz
    x = np.random.default_rng(0).normal(size=(3, seconds * 160)) * 20
    if resampling == "polyphase":  # with Fourier resampling every output depends on every input
        x[0, 160 * 900] = np.nan
    recording: Any = SimpleNamespace(
        path="a.edf", sfreq=160.0, n_times=x.shape[1], read=lambda a, b, picks: x[picks, a:b]
    )
    used = replace(
        convention("labram", "folder"), band=(1.0, 40.0), montage=("C3", ("C4", "O1")), resampling=resampling
    )
    starts = [1895.9, 0.0, 0.003, 700.0, 701.25, 819.0, 898.0, 905.2, 1500.0, 1896.1, -1.0]
    plan = Plan(starts=starts, labels=list(range(len(starts))))
    cutter = Cutter(recording, derive(used.montage, ["C3", "C4", "O1"]), used, plan)
    windows = np.concatenate(list(cutter.chunks()))
    whole = Processing.design(160, 200, used.band, used.notch, resampling).whole(np.stack((x[0], x[1] - x[2])))
    spared = [898.0] if resampling == "fft" else []
    assert cutter.starts == [0.0, 0.003, 700.0, 701.25, 819.0, *spared, 905.2, 1500.0, 1895.9]
    assert cutter.labels == [starts.index(start) for start in cutter.starts]
    assert plan.problems["windows left out: past the end of the recording"] == 2
    assert plan.problems["windows left out: NaN or infinite values"] == 1 - len(spared)
    for window, start in zip(windows, cutter.starts, strict=True):
        first = int(np.flatnonzero(np.arange(whole.shape[1]) / 200 >= start)[0])
        np.testing.assert_allclose(window, whole[:, first : first + 800], rtol=1e-5, atol=1e-5)


def test_the_package_opens_without_torch_and_mne() -> None:
    code = (
        "import sys, zipbrain.data as d\n"
        "d.Windows, d.convention('biot', 'tuab'), d.scale, d.corpus('tuab'), d.prepare, d.Report\n"
        "import zipbrain.data.downloads\n"
        "print([m for m in ('torch', 'mne', 'scipy', 'sklearn', 'joblib') if m in sys.modules], callable(d.download))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"
    import zipbrain.data as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 1, 2, 1, 2], r"got 'labels 1 to 2', but .* subtract 1, or give classes"),
        ([0, 2, 0, 2, 0, 2], r"got 'labels 0 to 2', but .* number them anew, or give classes"),
        ([7, 10**6] * 3, r"got 'labels 7 to 1000000'"),
    ],
)
def test_numbers_that_leave_a_class_empty_are_refused(labels: list[int], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Windows.from_arrays(X, labels, ch_names=["C3", "C4"], sfreq=200)


def test_an_empty_class_may_be_named_and_truth_values_are_two_classes() -> None:
    named = Windows.from_arrays(X, [1, 2] * 3, ch_names=["C3", "C4"], sfreq=200, classes=["a", "b", "c"])
    assert named.classes == ("a", "b", "c")
    assert Windows.from_arrays(X, [True] * 6, ch_names=["C3", "C4"], sfreq=200).classes == ("0", "1")
