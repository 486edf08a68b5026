"""Recordings: read in microvolts, lazily, and every broken file refused or repaired with a note."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SHARED
from data import tiny_corpora
from data.edf_files import (
    COUNT,
    DMAX,
    DMIN,
    HEADER_BYTES,
    LABEL,
    PMAX,
    PMIN,
    RATE,
    RECORD_SECONDS,
    RECORDS,
    SECONDS,
    UNIT,
    discontinuous,
    eeg,
    patch,
    write_edf,
)
from zipbrain.data.recording import open_recording
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.signal.processing import Processing

edfio = pytest.importorskip("edfio")
mne = pytest.importorskip("mne")


def test_microvolts_names_rate_and_annotations(tmp_path: Path) -> None:
    x = eeg()
    recording = open_recording(write_edf(tmp_path / "a.edf", x))
    assert recording.ch_names == ["EEG FP1-REF", "EEG C3-REF", "EEG T7-REF"]
    assert (recording.sfreq, recording.n_times, recording.duration) == (RATE, RATE * SECONDS, SECONDS)
    assert recording.annotations == [(2.5, 1.0, "blink")]
    assert recording.notes == []
    assert recording.left_out == {}
    got = recording.read(150, 1234)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, x[:, 150:1234], atol=400 / 65535)
    np.testing.assert_array_equal(recording.read(150, 1234, [2, 0]), got[[2, 0]])
    assert recording.read(7, 7).shape == (3, 0)
    assert recording.read(0, 9, []).shape == (0, 9)
    assert "3 channels, 100 Hz, 30 s" in repr(recording)
    for picks in ([3], [-1]):
        with pytest.raises(OptionError, match="picks"):
            recording.read(0, 9, picks)
    for start, stop in ((-1, 5), (5, 3), (0, recording.n_times + 1)):
        with pytest.raises(OptionError, match="samples"):
            recording.read(start, stop)


def test_nothing_is_loaded_until_it_is_read(tmp_path: Path) -> None:
    path = write_edf(tmp_path / "a.edf", eeg())
    recording = open_recording(path)
    assert not recording._raw.preload
    path.unlink()
    with pytest.raises(DataError, match=r"a\.edf: MNE can't read it"):
        recording.read(0, 100)


def test_a_rec_file_is_edf_and_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x).rename(tmp_path / "1.rec")
    for forbidden in (False, True):
        if forbidden:  # a system without the right to make symbolic links
            monkeypatch.setattr(Path, "symlink_to", lambda *_: (_ for _ in ()).throw(OSError("not allowed")))
        recording = open_recording(path)
        np.testing.assert_allclose(recording.read(0, 500), x[:, :500], atol=400 / 65535)
        assert recording._raw.filenames == (path.resolve(),)
        assert recording.notes == []
    assert [p.name for p in tmp_path.iterdir()] == ["1.rec"]


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


def test_bdf_is_known_by_its_content(tmp_path: Path) -> None:
    x = eeg()
    signals = [edfio.BdfSignal(row, RATE, label=f"A{i}", physical_dimension="uV") for i, row in enumerate(x)]
    edfio.Bdf(signals, data_record_duration=1).write(tmp_path / "a.bdf")
    recording = open_recording(tmp_path / "a.bdf")
    first = recording.read(0, 500)
    np.testing.assert_allclose(first, x[:, :500], atol=1e-4)
    assert recording.notes == []
    renamed = open_recording((tmp_path / "a.bdf").rename(tmp_path / "a.edf"))
    np.testing.assert_array_equal(renamed.read(0, 500), first)
    assert "named .edf, but is BDF" in renamed.notes


@pytest.mark.parametrize(("unit", "factor"), [("uV", 1), ("UV", 1), ("mV", 1e3), ("nV", 1e-3), ("V", 1e6), ("", 1e6)])
def test_every_unit_becomes_microvolts(tmp_path: Path, unit: str, factor: float) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x, units=[unit or "uV"] * 3)
    for row in range(3):
        patch(path, UNIT, unit, row)
    recording = open_recording(path, check=False)
    np.testing.assert_allclose(recording.read(0, 500) / factor, x[:, :500], atol=400 / 65535)
    assert ("channel EEG FP1-REF has no unit: taken as volts" in recording.notes) == (unit == "")


@pytest.mark.parametrize(("said", "real"), [("V", "uV"), ("uV", "V"), ("mV", "uV"), ("uV", "mV")])
def test_a_wrong_unit_is_noticed_and_can_be_corrected(tmp_path: Path, said: str, real: str) -> None:
    x, factor = eeg(), {"uV": 1, "mV": 1e-3, "V": 1e-6}[real]
    path = tmp_path / "a.edf"
    signals = [
        edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension=said, physical_range=(-200 * factor, 200 * factor))
        for i, row in enumerate(x * factor)
    ]
    edfio.Edf(signals, data_record_duration=1).write(path)
    with pytest.raises(DataError, match=r"a\.edf: a typical deviation of .* its unit seems wrong; pass units="):
        open_recording(path)
    assert open_recording(path, check=False).n_times == RATE * SECONDS
    corrected = open_recording(path, units=real)
    np.testing.assert_allclose(corrected.read(0, 1000), x[:, :1000], atol=400 / 65535)
    with pytest.raises(OptionError, match="units"):
        open_recording(path, units="tesla")


def test_few_odd_channels_do_not_make_a_file_implausible(tmp_path: Path) -> None:
    x = eeg(5)
    x[3] = 150  # an offset
    x[4] *= 1e-4
    recording = open_recording(write_edf(tmp_path / "a.edf", x))
    assert len(recording.ch_names) == 5


def test_a_file_cut_off_in_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x)
    path.write_bytes(path.read_bytes()[:-5000])
    recording = open_recording(path)
    assert recording.n_times % RATE == 0
    held = recording.n_times // RATE
    assert 0 < held < SECONDS
    assert f"the header promises {SECONDS} records, the file holds {held}: {held} are used" in recording.notes
    assert any("bytes after the last whole record" in note for note in recording.notes)
    assert any(
        "Number of records from the header does not match" in note for note in recording.notes
    )  # MNE's own words
    np.testing.assert_allclose(recording.read(0, recording.n_times), x[:, : recording.n_times], atol=400 / 65535)


def test_an_unknown_record_count_is_found_out(tmp_path: Path) -> None:
    recording = open_recording(patch(write_edf(tmp_path / "a.edf", eeg()), RECORDS, "-1"))
    assert recording.n_times == RATE * SECONDS
    assert any("promises an unknown number of records, the file holds 30" in note for note in recording.notes)


def test_a_zero_record_length_is_refused(tmp_path: Path) -> None:
    path = patch(write_edf(tmp_path / "a.edf", eeg()), RECORD_SECONDS, "0")
    with pytest.raises(DataError, match=r"a\.edf: a record lasts 0 s"):
        open_recording(path)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(DMIN, DMAX, "digital"), (PMIN, PMAX, "physical")], ids=["digital", "physical"]
)
def test_a_channel_without_scale_is_left_out(tmp_path: Path, low: Any, high: Any, word: str) -> None:
    x = eeg()
    path = patch(patch(write_edf(tmp_path / "a.edf", x), low, "7", 1), high, "7", 1)
    recording = open_recording(path)
    assert recording.ch_names == ["EEG FP1-REF", "EEG T7-REF"]
    np.testing.assert_allclose(recording.read(0, 500), x[[0, 2], :500], atol=400 / 65535)
    assert recording.left_out == {"EEG C3-REF": f"its {word} minimum and maximum are both 7: no scale"}
    with pytest.raises(
        DataError, match=rf"channels C3 \(its {word} minimum .* can't be read: it has EEG FP1-REF, EEG T7"
    ):
        recording.find(["FP1", "C3"])


def test_a_turned_digital_range_is_noted(tmp_path: Path) -> None:
    x = eeg()
    path = patch(patch(write_edf(tmp_path / "a.edf", x), DMIN, "32767", 1), DMAX, "-32768", 1)
    recording = open_recording(path)
    assert any("C3-REF: digital minimum 32767 above maximum -32768" in note for note in recording.notes)
    np.testing.assert_allclose(recording.read(0, 500, [1])[0], -x[1, :500], atol=800 / 65535)


def test_channels_at_another_rate_or_in_another_unit_are_left_out(tmp_path: Path) -> None:
    x = eeg(5)
    rows = [x[0], np.repeat(x[1], 4), x[2], x[3][::4], x[4]]
    path = write_edf(
        tmp_path / "a.edf", rows, ["C3", "ECG", "C4", "Flow", "SpO2"], ["uV"] * 4 + ["%"], [100, 400, 100, 25, 100]
    )
    recording = open_recording(path)
    assert recording.sfreq == RATE
    assert recording.ch_names == ["C3", "C4"]
    assert recording.annotations == [(2.5, 1.0, "blink")]
    assert recording.left_out["ECG"] == "it is sampled at 400 Hz, most channels at 100 Hz"
    assert recording.left_out["Flow"] == "it is sampled at 25 Hz, most channels at 100 Hz"
    assert recording.left_out["SpO2"].startswith("its unit '%' is no voltage")
    np.testing.assert_allclose(recording.read(0, 700), x[[0, 2], :700], atol=400 / 65535)
    assert open_recording(path, units="uV").ch_names == ["C3", "C4", "SpO2"]


def test_repeated_names_are_numbered(tmp_path: Path) -> None:
    recording = open_recording(write_edf(tmp_path / "a.edf", eeg(), ["C3", "C3", "O1"]))
    assert recording.ch_names == ["C3-0", "C3-1", "O1"]
    assert "several channels are called C3: numbered from C3-0" in recording.notes
    with pytest.raises(DataError, match=r"channels C3 can't be read: it has C3-0, C3-1, O1"):
        recording.find(["C3"])


def test_electrodes_are_found_in_any_spelling(tmp_path: Path) -> None:
    recording = open_recording(write_edf(tmp_path / "a.edf", eeg(5)))
    assert recording.find(["O1", "Fp1", "T3", "EEG T8-REF"]) == [4, 0, 2, 3]
    with pytest.raises(DataError, match=r"channels PZ, CZ can't be read: it has EEG FP1-REF, .*; choose"):
        recording.find(["PZ", "FP1", "CZ"])
    twice = open_recording(write_edf(tmp_path / "b.edf", eeg(2), ["EEG C3-REF", "EEG C3-LE"]))
    with pytest.raises(DataError, match="C3 could be any of EEG C3-REF, EEG C3-LE"):
        twice.find(["C3"])


def test_flat_channels_are_noted(tmp_path: Path) -> None:
    x = eeg()
    x[1] = 0
    recording = open_recording(write_edf(tmp_path / "a.edf", x))
    assert [note for note in recording.notes if "flat" in note] == [
        "channel EEG C3-REF is flat where it was looked at (5 x 10 s)"
    ]
    silent = open_recording(write_edf(tmp_path / "b.edf", x * 0))
    assert sum("flat" in note for note in silent.notes) == 3


def test_flat_stretches_do_not_make_a_file_implausible(tmp_path: Path) -> None:
    x = eeg(3, 100 * RATE)
    x[:, 20 * RATE :] = x[:, 20 * RATE - 1 : 20 * RATE]
    assert open_recording(write_edf(tmp_path / "a.edf", x)).duration == 100
    x[:, : 20 * RATE] *= 1e-3  # what is left is still looked at
    with pytest.raises(DataError, match="its unit seems wrong"):
        open_recording(write_edf(tmp_path / "b.edf", x))
    one = eeg(3, 100 * RATE) * 1e-3
    one[:2, 20 * RATE :] = 0
    with pytest.raises(DataError, match="its unit seems wrong"):
        open_recording(write_edf(tmp_path / "c.edf", one))


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
    path = discontinuous(tmp_path / "d.edf", 0)
    path.write_bytes(path.read_bytes().replace(b"+12\x14", b"?12\x14"))
    with pytest.raises(DataError, match="record 12 of a discontinuous file has no time stamp"):
        open_recording(path)


def test_annotations_in_latin_1_are_read_with_a_note(tmp_path: Path) -> None:
    path = write_edf(tmp_path / "a.edf", eeg())
    path.write_bytes(path.read_bytes().replace(b"blink", "bl\u00fcnk".encode("latin-1")))
    recording = open_recording(path)
    assert recording.annotations == [(2.5, 1.0, "bl\u00fcnk")]
    assert "annotations are not UTF-8: read as Latin-1" in recording.notes


def test_warnings_of_mne_become_notes(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    recording = open_recording(patch(write_edf(tmp_path / "a.edf", eeg()), (168, 8), "99.99.99"))
    path = patch(write_edf(tmp_path / "b.edf", eeg()), (168, 8), "xx.yy.zz")
    notes = open_recording(patch(path, (88, 80), "unknown")).notes + recording.notes
    assert any("Invalid measurement date" in note for note in notes)
    assert len(recwarn) == 0


def test_foreign_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    def refused(path: Path, pattern: str, **options: Any) -> None:
        with pytest.raises(DataError, match=pattern) as caught:
            open_recording(path, **options)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    good = write_edf(tmp_path / "good.edf", eeg()).read_bytes()
    refused(tmp_path / "none.edf", "no such file")
    refused(tmp_path, "is a folder")
    refused(file("empty.edf", b""), r"is empty \(0 bytes\)")
    refused(file("text.edf", b"time,value\n0,1\n" * 99), "is no EDF or BDF file .*time,val")
    refused(file("label.rec", b"0,36.8868,37.8868,6\n" * 99), "is no EDF or BDF file")
    refused(file("zero.edf", b"0       " + b"not numbers, just text " * 30), "header is broken or cut off")
    refused(file("stub.edf", good[:200]), "header is broken or cut off")
    refused(file("half.edf", good[:700]), "header is broken or cut off .*700 found")
    refused(file("bare.edf", good[: int(good[184:192])]), "not one whole record")
    refused(patch(file("size.edf", good), HEADER_BYTES, "512"), "header is broken or cut off")
    refused(patch(file("count.edf", good), COUNT, "-1"), "header is broken or cut off")
    refused(patch(file("range.edf", good), PMIN, "low", 0), "header is broken or cut off")
    refused(file("what.xyz", good), "format of '.xyz' files is unknown")
    refused(file("text.fif", b"no"), "MNE can't read it")
    refused(file("text.set", b"no"), "MNE can't read it")
    assert open_recording(tmp_path / "what.xyz", format="edf").n_times == RATE * SECONDS
    with pytest.raises(OptionError, match="format"):
        open_recording(tmp_path / "good.edf", format="csv")
    only = patch(file("units.edf", good), UNIT, "%", 0)
    refused(patch(patch(only, UNIT, "bpm", 1), UNIT, "degC", 2), "holds no signal in volts .*'bpm' is no voltage")


def test_missing_mne_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_edf(tmp_path / "a.edf", eeg())
    monkeypatch.setitem(__import__("sys").modules, "mne", None)
    with pytest.raises(MissingExtra, match=r"zipbrain\[data\]") as missing:
        open_recording(path)
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)  # from a worker process


def test_processing_a_recording_equals_processing_its_samples(tmp_path: Path) -> None:
    recording = open_recording(write_edf(tmp_path / "a.edf", eeg()))
    processing = Processing.design(RATE, 64, (1, 30), 25)
    bipolar = np.array([[1.0, -1, 0], [0, 1, -1]])
    got = np.concatenate(list(recording.process(processing, [0, 1, 2], bipolar, block=100)), axis=1)
    x = recording.read(0, recording.n_times)
    np.testing.assert_allclose(got, processing.whole(bipolar @ x), atol=1e-9)
    picked = np.concatenate(list(recording.process(processing, [2])), axis=1)
    np.testing.assert_allclose(picked, processing.whole(x[[2]]), atol=1e-9)
    with pytest.raises(OptionError, match="100 Hz"):
        recording.process(Processing.design(200, 100))
    with pytest.raises(OptionError, match="montage"):
        recording.process(processing, [0, 1], bipolar)


def test_a_gap_stays_in_the_rows_it_belongs_to(tmp_path: Path) -> None:
    x = eeg()
    x[0, 1000:1010] = np.nan
    mne.io.RawArray(x * 1e-6, mne.create_info(3, RATE, "eeg"), verbose="ERROR").save(
        tmp_path / "a_raw.fif", fmt="double", verbose="ERROR"
    )
    recording = open_recording(tmp_path / "a_raw.fif")
    blocks = recording.process(Processing.design(RATE, 64, (1, 30)), montage=np.array([[1.0, -1, 0], [0, 1, -1]]))
    holes = np.isnan(np.concatenate(list(blocks), axis=1)).sum(axis=1)
    assert 0 < holes[0] < 400
    assert holes[1] == 0


def test_real_recordings_open_without_surprise() -> None:
    folder = SHARED / "data" / "eegmat"
    if not folder.is_dir():
        pytest.skip(f"recordings not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    path = sorted(folder.glob("*_2.edf"))[0]
    recording = open_recording(path)
    assert (recording.sfreq, recording.duration) == (500, 62)
    assert recording.find(["FP1", "O2", "T7"]) == [0, 15, 6]
    raw = mne.io.read_raw_edf(path, preload=True, verbose="ERROR")
    np.testing.assert_allclose(recording.read(0, recording.n_times), raw.get_data() * 1e6, rtol=0, atol=1e-9)
    assert recording.left_out == {}
    assert [note for note in recording.notes if "flat" not in note] == []
