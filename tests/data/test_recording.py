"""Recordings of any format: FIF, EEGLAB and BrainVision through MNE, gaps refused, everything odd noted."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import tiny_corpora
from data.edf_files import LABEL, RATE, SECONDS, discontinuous, eeg, patch, write_edf
from zipbrain.data import Recording
from zipbrain.data.recording import open_recording
from zipbrain.edge import EDFRecording
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.signal.montage import derive
from zipbrain.signal.processing import Processing

mne = pytest.importorskip("mne")


def save_fif(path: Path, x: np.ndarray) -> Path:
    raw = mne.io.RawArray(x * 1e-6, mne.create_info(["FP1", "C3", "O1"], RATE, "eeg"), verbose="ERROR")
    raw.save(path, fmt="double", verbose="ERROR")
    return path


def test_edf_is_read_without_mne_and_every_recording_has_one_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_mne = open_recording(save_fif(tmp_path / "a_raw.fif", eeg()))
    monkeypatch.setitem(__import__("sys").modules, "mne", None)
    recording = open_recording(write_edf(tmp_path / "a.edf", eeg()))
    assert isinstance(recording, EDFRecording)
    assert isinstance(recording, Recording)
    assert isinstance(through_mne, Recording)


def test_nothing_is_loaded_until_it_is_read(tmp_path: Path) -> None:
    path = save_fif(tmp_path / "a_raw.fif", eeg())
    recording = open_recording(path)
    assert not recording._raw.preload
    path.unlink()
    with pytest.raises(DataError, match=r"a_raw\.fif: MNE can't read it"):
        recording.read(0, 100)


@pytest.mark.parametrize("name", ["a_raw.fif", "a.set", "a_raw.fif.gz"])
def test_fif_and_eeglab_files_give_the_same_microvolts(tmp_path: Path, name: str) -> None:
    x = eeg()
    info = mne.create_info(["Fp1", "C3", "O2", "STI"], RATE, ["eeg", "eeg", "eeg", "stim"])
    raw = mne.io.RawArray(np.vstack((x * 1e-6, np.zeros((1, x.shape[1])))), info, first_samp=300, verbose="ERROR")
    raw.set_annotations(mne.Annotations([1.5], [2.0], ["arousal"]))
    if name.endswith("set"):
        pytest.importorskip("eeglabio")
        raw = raw.copy().pick("eeg")
        raw.export(tmp_path / name, verbose="ERROR")
    else:
        raw.save(tmp_path / name, verbose="ERROR")
    recording = open_recording(tmp_path / name)
    assert recording.ch_names == ["Fp1", "C3", "O2"]
    np.testing.assert_allclose(recording.read(100, 900), x[:, 100:900], rtol=1e-5, atol=1e-4)
    onset, duration, description = recording.annotations[0]
    assert (onset, description) == (pytest.approx(1.5, abs=0.011), "arousal")
    assert duration == pytest.approx(2.0, abs=0.011)
    if name.endswith("fif"):
        assert recording.left_out == {"STI": "it is no voltage (stim)"}
        assert "channel STI left out: it is no voltage (stim)" in recording.notes


def test_brainvision_files_give_the_same_microvolts(tmp_path: Path) -> None:
    x = eeg()
    path = tiny_corpora.write_brainvision(tmp_path / "a.vhdr", x, RATE, ["Fp1", "C3", "O2"])
    recording = open_recording(path)
    assert (recording.ch_names, recording.sfreq, recording.n_times) == (["Fp1", "C3", "O2"], RATE, RATE * SECONDS)
    np.testing.assert_allclose(recording.read(100, 900), x[:, 100:900], rtol=1e-6)
    assert (2.5, "Stimulus/S  1") in [(onset, what) for onset, _, what in recording.annotations]
    wrong = tiny_corpora.write_brainvision(tmp_path / "b.vhdr", x, RATE, ["Fp1", "C3", "O2"], unit="mV")
    with pytest.raises(DataError, match="its unit seems wrong"):
        open_recording(tiny_corpora.write_brainvision(tmp_path / "c.vhdr", x, RATE, ["Fp1", "C3", "O2"], unit="V"))
    np.testing.assert_allclose(open_recording(wrong, units="uV").read(0, 500), x[:, :500], rtol=1e-6)
    np.testing.assert_allclose(open_recording(wrong, check=False).read(0, 500), 1e3 * x[:, :500], rtol=1e-6)
    (tmp_path / "b.eeg").unlink()
    with pytest.raises(DataError, match="MNE can't read it"):
        open_recording(wrong)
    with pytest.raises(DataError, match=r"format of '\.eeg' files is unknown; name the \.vhdr file beside it"):
        open_recording(tmp_path / "a.eeg")


def test_samples_that_are_not_numbers_are_noted_and_stay_nan(tmp_path: Path) -> None:
    x = eeg(3, RATE * SECONDS)
    x[0, 100:400] = np.nan
    x[2] = np.nan
    raw = mne.io.RawArray(x * 1e-6, mne.create_info(3, RATE, "eeg"), verbose="ERROR")
    raw.save(tmp_path / "a_raw.fif", verbose="ERROR")
    recording = open_recording(tmp_path / "a_raw.fif")
    np.testing.assert_array_equal(np.isnan(recording.read(0, 1000)), np.isnan(x[:, :1000]))
    holes = [note for note in recording.notes if "not a number" in note]
    assert len(holes) == 2
    assert "in 100% of the samples" in holes[1]
    assert not any("flat" in note for note in recording.notes)


def test_gaps_are_refused_and_their_absence_noted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"discontinuous \(EDF\+D\) with 1 gaps, the first of 3.5 s after 20 s; split"):
        open_recording(discontinuous(tmp_path / "a.edf", 3.5))
    recording = open_recording(discontinuous(tmp_path / "b.edf", 0))
    assert "marked as discontinuous, but without gaps" in recording.notes
    with pytest.raises(DataError, match="no time stamps"):
        open_recording(patch(discontinuous(tmp_path / "c.edf", 0), LABEL, "EEG X", 3))


def test_warnings_of_mne_become_notes(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = save_fif(tmp_path / "odd_name.fif", eeg())
    recwarn.clear()
    assert any("does not conform to MNE naming conventions" in note for note in open_recording(path).notes)
    assert len(recwarn) == 0


def test_foreign_and_unknown_files_are_refused(tmp_path: Path) -> None:
    def refused(path: Path, pattern: str, **options: Any) -> None:
        with pytest.raises(DataError, match=pattern) as caught:
            open_recording(path, **options)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    good = write_edf(tmp_path / "good.edf", eeg()).read_bytes()
    refused(tmp_path / "none.fif", "no such file")
    refused(tmp_path, "is a folder")
    refused(file("empty.set", b""), r"is empty \(0 bytes\)")
    refused(file("text.edf", b"time,value\n0,1\n" * 99), "is no EDF or BDF file .*time,val")
    refused(file("what.xyz", good), "format of '.xyz' files is unknown")
    refused(file("packed.edf.gz", good), "format of '.gz' files is unknown; unpack it")
    refused(file("text.fif", b"no"), "MNE can't read it")
    refused(file("text.set", b"no"), "MNE can't read it")
    assert open_recording(tmp_path / "what.xyz", format="edf").n_times == RATE * SECONDS
    with pytest.raises(OptionError, match="format"):
        open_recording(tmp_path / "good.edf", format="csv")
    with pytest.raises(OptionError, match="units"):
        open_recording(tmp_path / "good.edf", units="tesla")


def test_missing_mne_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_fif(tmp_path / "a_raw.fif", eeg())
    monkeypatch.setitem(__import__("sys").modules, "mne", None)
    with pytest.raises(MissingExtra, match=r"zipbrain\[train\]") as missing:
        open_recording(path)
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)  # from a worker process


def test_a_gap_stays_in_the_rows_it_belongs_to(tmp_path: Path) -> None:
    x = eeg()
    x[0, 1000:1010] = np.nan
    recording = open_recording(save_fif(tmp_path / "a_raw.fif", x))
    bipolar = derive((("FP1", "C3"), ("C3", "O1")), recording.ch_names)
    processing = Processing.design(RATE, 64, (1, 30))
    blocks = processing.blocks(lambda start, stop: bipolar.apply(recording.read(start, stop)), recording.n_times)
    holes = np.isnan(np.concatenate(list(blocks), axis=1)).sum(axis=1)
    assert 0 < holes[0] < 400
    assert holes[1] == 0
