"""EDF and BDF files read with numpy alone: MNE's values, the same refusals and notes, gaps in their place."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SHARED
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
    RESERVED,
    SECONDS,
    UNIT,
    discontinuous,
    eeg,
    patch,
    write_edf,
)
from zipbrain.data import open_recording
from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
from zipbrain.signal import edf as recording_module

edfio = pytest.importorskip("edfio")
mne = pytest.importorskip("mne")

_MNES = "Number of records from the header|Channel names are not unique|Invalid measurement date"


def assert_same(path: Path, **options: Any) -> None:
    """Compare with what is read through MNE; only notes in MNE's own words may differ."""
    ours, mnes = open_edf(path, **options), open_recording(path, **options)
    assert (ours.ch_names, ours.left_out, ours.sfreq) == (mnes.ch_names, mnes.left_out, mnes.sfreq)
    assert (ours.n_times, ours.duration, ours.annotations) == (mnes.n_times, mnes.duration, mnes.annotations)
    assert set(mnes.notes) - set(ours.notes) == {
        note for note in mnes.notes if any(w in note for w in _MNES.split("|"))
    }
    assert set(ours.notes) - set(mnes.notes) <= {"its header has no valid date and time"}
    wanted = mnes.read(0, mnes.n_times)
    np.testing.assert_allclose(ours.read(0, ours.n_times), wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_edf(tmp_path / "a.edf", eeg())


def test_real_recordings_have_mnes_values() -> None:
    folder = SHARED / "data" / "eegmat"
    if not folder.is_dir():
        pytest.skip(f"recordings not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    for path in sorted(folder.glob("*.edf")):
        assert_same(path)
        raw = mne.io.read_raw_edf(path, verbose="ERROR")
        np.testing.assert_allclose(open_edf(path).read(7, 999), raw.get_data(start=7, stop=999) * 1e6, rtol=1e-12)
        assert open_edf(path).start == raw.info["meas_date"].replace(tzinfo=None)


def test_microvolts_names_rate_and_annotations(plain: Path) -> None:
    recording = open_edf(plain)
    assert recording.ch_names == ["EEG FP1-REF", "EEG C3-REF", "EEG T7-REF"]
    assert (recording.sfreq, recording.n_times, recording.duration) == (RATE, RATE * SECONDS, SECONDS)
    assert recording.annotations == [(2.5, 1.0, "blink")]
    assert (recording.notes, recording.left_out, recording.gaps) == ([], {}, [])
    assert recording.find(["t3", "FP1"]) == [2, 0]
    assert "EDFRecording" in repr(recording)
    assert "3 channels, 100 Hz, 30 s" in repr(recording)
    np.testing.assert_allclose(recording.limits, [[-200, 200]] * 3)
    assert_same(plain)


@pytest.mark.parametrize("chunk", [1, 2000, 1 << 22])
def test_any_span_of_any_channels_is_part_of_the_whole(
    plain: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_module, "_CHUNK", chunk)  # bytes; one record at a time at least
    recording = open_edf(plain)
    whole = recording.read(0, recording.n_times)
    np.testing.assert_allclose(whole, eeg(), atol=400 / 65535)
    for start, stop in ((0, 1), (99, 101), (100, 200), (150, 1234), (2999, 3000), (0, 3000)):
        np.testing.assert_array_equal(recording.read(start, stop), whole[:, start:stop])
        np.testing.assert_array_equal(recording.read(start, stop, [2, 0]), whole[[2, 0], start:stop])
    assert recording.read(7, 7).shape == (3, 0)
    assert recording.read(0, 9, []).shape == (0, 9)
    for picks in ([3], [-1]):
        with pytest.raises(OptionError, match="picks"):
            recording.read(0, 9, picks)
    for start, stop in ((-1, 5), (5, 3), (0, recording.n_times + 1)):
        with pytest.raises(OptionError, match="samples"):
            recording.read(start, stop)


def test_bdf_files_have_24_bits(tmp_path: Path) -> None:
    x = eeg()
    x[0, :2] = -200, 200
    signals = [
        edfio.BdfSignal(row, RATE, label=f"A{i}", physical_dimension="uV", physical_range=(-200, 200))
        for i, row in enumerate(x)
    ]
    status = edfio.BdfSignal(np.arange(x.shape[1]) % 7, RATE, label="Status", physical_dimension="Boolean")
    marks = [edfio.EdfAnnotation(1.25, None, "on"), edfio.EdfAnnotation(3.0, 0.5, "off")]
    path = tmp_path / "a.bdf"
    edfio.Bdf([*signals, status], annotations=marks, data_record_duration=1).write(path)
    assert_same(path)
    recording = open_edf(path)
    assert list(recording.left_out) == ["Status"]
    assert recording.annotations == [(1.25, 0.0, "on"), (3.0, 0.5, "off")]
    np.testing.assert_allclose(recording.read(0, 500), x[:, :500], atol=400 / 2**24)
    assert_same(path.rename(tmp_path / "a.edf"))
    assert_same(patch(tmp_path / "a.edf", UNIT, "uV", 3))  # MNE knows triggers by their names
    assert open_edf(tmp_path / "a.edf").left_out == {"Status": "it is no voltage (stim)"}


def test_what_can_be_repaired_or_left_out_is_the_same_as_through_mne(tmp_path: Path) -> None:
    def made(**options: Any) -> Path:
        return write_edf(tmp_path / "a.edf", eeg(), **options)

    assert_same(patch(made(), RECORDS, "-1"))
    assert_same(patch(made(), RECORDS, "31"))
    path = made()
    path.write_bytes(path.read_bytes()[:-5000])
    assert_same(path)
    assert_same(patch(patch(made(), DMIN, "7", 1), DMAX, "7", 1))
    assert_same(patch(patch(made(), PMIN, "7", 1), PMAX, "7", 1))
    assert_same(patch(patch(made(), DMIN, "32767", 1), DMAX, "-32768", 1))
    assert_same(patch(made(), UNIT, "%", 1))
    assert_same(made(labels=["C3", "C3", "O1"]))
    assert_same(made(labels=["C3-0", "C3", "C4"]))
    assert_same(patch(made(), (168, 8), "99.99.99"))
    assert_same(write_edf(tmp_path / "1.rec", eeg()))
    for unit in ("UV", "mV", "nV", "V", ""):
        path = made()
        for row in range(3):
            patch(path, UNIT, unit, row)
        assert_same(path, check=False)
        assert_same(path, units="uV")
    x = eeg(5)
    rows = [x[0], np.repeat(x[1], 4), x[2], x[3][::4], x[4]]
    path = write_edf(
        tmp_path / "b.edf", rows, ["C3", "ECG", "C4", "Flow", "SpO2"], ["uV"] * 4 + ["%"], [100, 400, 100, 25, 100]
    )
    assert_same(path)
    assert_same(path, units="uV")
    x[1] = 0
    assert_same(write_edf(tmp_path / "c.edf", x))


def test_what_is_refused_is_refused_in_the_same_words(tmp_path: Path) -> None:
    def refused(path: Path, **options: Any) -> None:
        with pytest.raises(DataError) as ours:
            open_edf(path, **options)
        with pytest.raises(DataError) as theirs:
            open_recording(path, **options)
        assert str(ours.value) == str(theirs.value)
        assert str(path) in str(ours.value)
        assert "\n" not in str(ours.value)

    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    good = write_edf(tmp_path / "good.edf", eeg()).read_bytes()
    refused(tmp_path / "none.edf")
    refused(tmp_path)
    refused(file("empty.edf", b""))
    refused(file("text.edf", b"time,value\n0,1\n" * 99))
    refused(file("zero.edf", b"0       " + b"not numbers, just text " * 30))
    refused(file("stub.edf", good[:200]))
    refused(file("half.edf", good[:700]))
    refused(file("bare.edf", good[: int(good[184:192])]))
    refused(patch(file("size.edf", good), HEADER_BYTES, "512"))
    refused(patch(file("count.edf", good), COUNT, "-1"))
    refused(patch(file("range.edf", good), PMIN, "low", 0))
    refused(patch(file("length.edf", good), RECORD_SECONDS, "0"))
    only = patch(file("units.edf", good), UNIT, "%", 0)
    refused(patch(patch(only, UNIT, "bpm", 1), UNIT, "degC", 2))
    volts = file("volts.edf", good)
    for row in range(3):
        patch(volts, UNIT, "V", row)
    refused(volts)
    with pytest.raises(OptionError, match="units"):
        open_edf(tmp_path / "good.edf", units="tesla")


def test_records_of_a_discontinuous_file_are_placed_in_time(tmp_path: Path) -> None:
    path = discontinuous(tmp_path / "a.edf", 3.5)
    recording = open_edf(path)
    assert recording.gaps == [(2000, 2350)]
    assert recording.n_times == RATE * SECONDS + 350
    assert "is discontinuous: 1 gaps, 3.5 s in all, are not a number" in recording.notes
    assert recording.annotations == [(2.5, 1.0, "blink")]
    whole = recording.read(0, recording.n_times)
    assert np.isnan(whole[:, 2000:2350]).all()
    mnes = mne.io.read_raw_edf(path, verbose="ERROR").get_data() * 1e6  # MNE puts them one after the other
    np.testing.assert_allclose(np.delete(whole, np.s_[2000:2350], axis=1), mnes, rtol=1e-12)
    for start, stop in ((1990, 2000), (1990, 2010), (2100, 2200), (2340, 2360), (1999, 2351), (2350, 2400)):
        np.testing.assert_array_equal(recording.read(start, stop), whole[:, start:stop])


def test_a_gap_of_a_part_of_a_sample_moves_no_sample_onto_another(tmp_path: Path) -> None:
    recording = open_edf(discontinuous(tmp_path / "a.edf", 0.004))
    assert (recording.gaps, recording.n_times) == ([], RATE * SECONDS)
    np.testing.assert_allclose(recording.read(0, 3000), eeg(), atol=400 / 65535)
    assert open_edf(discontinuous(tmp_path / "b.edf", 0.006)).gaps == [(2000, 2001)]


def test_unusable_time_stamps_are_refused_and_whole_files_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "marked as discontinuous, but without gaps" in open_edf(discontinuous(tmp_path / "a.edf", 0)).notes
    assert_same(tmp_path / "a.edf")
    with pytest.raises(DataError, match=r"record 20 begins 2.5 s before the one before it ends"):
        open_edf(discontinuous(tmp_path / "b.edf", -2.5))
    with pytest.raises(DataError, match="no time stamps"):
        open_edf(patch(discontinuous(tmp_path / "c.edf", 0), LABEL, "EEG X", 3))
    path = discontinuous(tmp_path / "d.edf", 0)
    path.write_bytes(path.read_bytes().replace(b"+12\x14", b"?12\x14"))
    with pytest.raises(DataError, match="record 12 of a discontinuous file has no time stamp"):
        open_edf(path)
    monkeypatch.setattr(recording_module, "_LONGEST", 2)  # days
    with pytest.raises(DataError, match="its time stamps span 3 days; repair them"):
        open_edf(discontinuous(tmp_path / "e.edf", 259_000))


def test_annotations_are_mnes(tmp_path: Path) -> None:
    signals = [edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension="uV") for i, row in enumerate(eeg())]
    marks = [
        edfio.EdfAnnotation(4.75, 1.5, "späte Spindel \u03b1"),
        edfio.EdfAnnotation(0.5, None, "early"),
        edfio.EdfAnnotation(0.5, None, "early"),
        edfio.EdfAnnotation(9.0, 0.0, "both@@C0"),
        edfio.EdfAnnotation(9.0, 0.0, "both@@C1"),
        edfio.EdfAnnotation(9.5, 0.0, "mail@@home"),
    ]
    path = tmp_path / "a.edf"
    edfio.Edf(signals, annotations=marks, data_record_duration=1, starttime=time(12, 30, 15, 250_000)).write(path)
    assert_same(path)
    assert [text for _, _, text in open_edf(path).annotations] == [
        "early", "early", "späte Spindel \u03b1", "both", "mail@@home",
    ]  # fmt: skip
    assert open_edf(path).annotations[0][:2] == (0.5, 0.0)


def test_annotations_in_latin_1_are_read_with_a_note(plain: Path) -> None:
    plain.write_bytes(plain.read_bytes().replace(b"blink", "bl\u00fcnk".encode("latin-1")))
    recording = open_edf(plain)
    assert recording.annotations == [(2.5, 1.0, "bl\u00fcnk")]
    assert "annotations are not UTF-8: read as Latin-1" in recording.notes


def test_the_start_has_its_century_and_its_fraction(tmp_path: Path, plain: Path) -> None:
    signal = edfio.EdfSignal(eeg(1)[0], RATE, label="C3", physical_dimension="uV")
    info = edfio.Recording(startdate=date(2034, 3, 2))
    path = tmp_path / "b.edf"
    edfio.Edf(
        [signal], recording=info, starttime=time(23, 59, 59, 500_000), data_record_duration=1,
        annotations=[edfio.EdfAnnotation(1, None, "x")],
    ).write(path)  # fmt: skip
    patch(path, (168, 8), "02.03.94")  # the long form is believed
    assert open_edf(path).start == datetime(2034, 3, 2, 23, 59, 59, 500_000)
    for text, wanted in (("02.03.94", 1994), ("02.03.15", 2015)):
        patch(patch(plain, (88, 80), "X X X"), (168, 8), text)
        assert open_edf(plain).start == datetime(wanted, 3, 2)
    recording = open_edf(patch(plain, (168, 8), "xx.yy.zz"))
    assert recording.start is None
    assert "its header has no valid date and time" in recording.notes


def test_a_file_that_changes_under_the_reader_is_refused(plain: Path) -> None:
    recording = open_edf(plain)
    plain.write_bytes(plain.read_bytes()[:-9000])
    assert recording.read(0, 100).shape == (3, 100)
    with pytest.raises(DataError, match=r"a\.edf: became shorter while it was read"):
        recording.read(2000, 3000)
    plain.unlink()
    with pytest.raises(DataError, match=r"a\.edf: can't be read \(No such file"):
        recording.read(0, 100)


def test_a_plain_edf_file_has_no_annotations(tmp_path: Path) -> None:
    signal = edfio.EdfSignal(eeg(1)[0], RATE, label="C3", physical_dimension="uV")
    edfio.Edf([signal], data_record_duration=1).write(tmp_path / "a.edf")
    patch(tmp_path / "a.edf", RESERVED, "")
    assert_same(tmp_path / "a.edf")
    assert open_edf(tmp_path / "a.edf").annotations == []


def test_neither_mne_nor_scipy_nor_torch_is_imported(plain: Path) -> None:
    code = (
        "import sys, zipbrain.edge as e; from zipbrain.signal.convention import Convention\n"
        "c = Convention('labram', 'x', ('FP1', ('C3', 'T7')), ('A', 'B'), (1.0, 30.0), 25.0, 80.0, 64.0, 4, 4, 'q95')\n"
        "print(sum(len(b.x) for b in e.windows(e.open_edf(sys.argv[1]), c)))\n"
        "print([m for m in ('torch', 'mne', 'scipy', 'sklearn', 'matplotlib', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(plain)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["7", "[]"]
