"""Times in EDF files: annotations as MNE reads them, gaps between records, the start of a recording."""

from __future__ import annotations

from datetime import date, datetime, time
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from data.edf_files import (
    LABEL,
    RATE,
    RESERVED,
    SECONDS,
    assert_as_mne_reads,
    discontinuous,
    eeg,
    patch,
    read_with_edfio,
)
from zipbrain.edge import open_edf
from zipbrain.errors import DataError
from zipbrain.signal import edf as reader

edfio = pytest.importorskip("edfio")
mne = pytest.importorskip("mne")


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
    assert recording.read(150, 1234).dtype == np.float64
    assert_as_mne_reads(plain)
    assert read_with_edfio(plain) is not None


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
    assert_as_mne_reads(tmp_path / "a.edf")
    with pytest.raises(DataError, match=r"record 20 begins 2.5 s before the one before it ends"):
        open_edf(discontinuous(tmp_path / "b.edf", -2.5))
    with pytest.raises(DataError, match="no time stamps"):
        open_edf(patch(discontinuous(tmp_path / "c.edf", 0), LABEL, "EEG X", 3))
    path = discontinuous(tmp_path / "d.edf", 0)
    path.write_bytes(path.read_bytes().replace(b"+12\x14", b"?12\x14"))
    with pytest.raises(DataError, match="record 12 of a discontinuous file has no time stamp"):
        open_edf(path)
    monkeypatch.setattr(reader, "_LONGEST", 2)  # days
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
    assert_as_mne_reads(path)
    assert [text for _, _, text in open_edf(path).annotations] == [
        "early", "early", "späte Spindel \u03b1", "both", "mail@@home",
    ]  # fmt: skip
    assert open_edf(path).annotations[0][:2] == (0.5, 0.0)


def test_annotations_in_latin_1_are_read_with_a_note(plain: Path) -> None:
    plain.write_bytes(plain.read_bytes().replace(b"blink", "bl\u00fcnk".encode("latin-1")))
    recording = open_edf(plain)
    assert recording.annotations == [(2.5, 1.0, "bl\u00fcnk")]
    assert "annotations are not UTF-8: read as Latin-1" in recording.notes
    assert_as_mne_reads(plain, encoding="latin1")


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


def test_an_invalid_date_is_noted_without_a_warning(plain: Path, recwarn: pytest.WarningsRecorder) -> None:
    notes = open_edf(patch(patch(plain, (168, 8), "99.99.99"), (88, 80), "unknown")).notes
    assert "its header has no valid date and time" in notes
    assert len(recwarn) == 0


def test_a_plain_edf_file_has_no_annotations(tmp_path: Path) -> None:
    signal = edfio.EdfSignal(eeg(1)[0], RATE, label="C3", physical_dimension="uV")
    edfio.Edf([signal], data_record_duration=1).write(tmp_path / "a.edf")
    patch(tmp_path / "a.edf", RESERVED, "")
    assert_as_mne_reads(tmp_path / "a.edf")
    assert open_edf(tmp_path / "a.edf").annotations == []


def test_a_channel_of_marks_without_an_end_is_read_in_linear_time(tmp_path: Path) -> None:
    x = eeg(1)[0]
    signals = [edfio.EdfSignal(x, RATE, label="C3", physical_dimension="uV", physical_range=(-200, 200))]
    signals += [edfio.EdfSignal(np.tile(x, 100), 100 * RATE, label="X", physical_dimension="uV")]
    path = tmp_path / "a.edf"
    edfio.Edf(signals, data_record_duration=SECONDS).write(path)
    patch(path, LABEL, "EDF Annotations", 1)
    content = bytearray(path.read_bytes())
    marks = 2 * 100 * RATE * SECONDS
    content[-marks:] = (b"+1\x14" * marks)[: marks - 1] + b"x"
    path.write_bytes(content)
    began = perf_counter()
    assert open_edf(path).annotations == []
    assert perf_counter() - began < 5


def test_time_stamps_count_from_that_of_the_first_record(tmp_path: Path) -> None:
    path = discontinuous(tmp_path / "a.edf", 3.5)
    early = open_edf(path)
    data = bytearray(path.read_bytes())
    width, at = 12, 256
    for second in range(SECONDS):
        now = f"+{second + (3.5 if second >= SECONDS - 10 else 0):g}\x14\x14".encode()
        at = data.index(now, at)
        room = data[at + len(now) : at + width]
        later = f"+{float(now[1:-2]) + 40:g}\x14\x14".encode()
        if not any(room):
            data[at : at + width] = later.ljust(width, b"\0")
        else:  # the annotation follows: it moves to make room
            rest = data[at + len(now) : at + 24].rstrip(b"\0")
            data[at : at + 24] = (later + rest).ljust(24, b"\0")[:24]
    path.write_bytes(data)
    late = open_edf(path)
    assert (late.gaps, late.n_times) == (early.gaps, early.n_times) == ([(2000, 2350)], RATE * SECONDS + 350)
    np.testing.assert_array_equal(late.read(0, late.n_times), early.read(0, early.n_times))
