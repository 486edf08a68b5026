"""EDF and BDF files: the values of MNE and edfio, every broken file refused or repaired with a note, gaps in place."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
    SECONDS,
    UNIT,
    assert_as_mne_reads,
    eeg,
    patch,
    read_with_edfio,
    write_edf,
)
from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
from zipbrain.signal import edf as reader

edfio = pytest.importorskip("edfio")
mne = pytest.importorskip("mne")


def test_real_recordings_have_the_values_of_mne_and_edfio(tmp_path: Path) -> None:
    folder = SHARED / "data" / "eegmat"
    if not folder.is_dir():
        pytest.skip(f"recordings not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    for path in sorted(folder.glob("*.edf")):
        recording = assert_as_mne_reads(Path(shutil.copy(path, tmp_path)))
        assert read_with_edfio(path) is not None
        assert recording.find(["FP1", "O2", "T7"]) == [0, 15, 6]
        assert (recording.sfreq, recording.left_out) == (500, {})
        assert [note for note in recording.notes if "flat" not in note] == []


@pytest.mark.parametrize("chunk", [1, 2000, 1 << 22])
def test_any_span_of_any_channels_is_part_of_the_whole(
    plain: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK", chunk)  # bytes; one record at a time at least
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


def test_a_rec_file_is_edf_and_stays_where_it_is(tmp_path: Path) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x).rename(tmp_path / "1.rec")
    recording = open_edf(path)
    np.testing.assert_allclose(recording.read(0, 500), x[:, :500], atol=400 / 65535)
    assert recording.notes == []
    assert [p.name for p in tmp_path.iterdir()] == ["1.rec"]


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
    recording = assert_as_mne_reads(path)
    assert read_with_edfio(path) is not None
    assert not any("named" in note for note in recording.notes)
    assert list(recording.left_out) == ["Status"]
    assert recording.annotations == [(1.25, 0.0, "on"), (3.0, 0.5, "off")]
    np.testing.assert_allclose(recording.read(0, 500), x[:, :500], atol=400 / 2**24)
    renamed = assert_as_mne_reads(path.rename(tmp_path / "a.edf"))
    assert "named .edf, but is BDF" in renamed.notes
    assert_as_mne_reads(patch(tmp_path / "a.edf", UNIT, "uV", 3))  # MNE knows triggers by their names
    assert open_edf(tmp_path / "a.edf").left_out == {"Status": "it is no voltage (stim)"}


def test_what_is_repaired_or_left_out_leaves_mnes_values(tmp_path: Path) -> None:
    def made(**options: Any) -> Path:
        return write_edf(tmp_path / "a.edf", eeg(), **options)

    assert_as_mne_reads(patch(made(), RECORDS, "-1"))
    assert_as_mne_reads(patch(made(), RECORDS, "31"))
    path = made()
    path.write_bytes(path.read_bytes()[:-5000])
    assert_as_mne_reads(path)
    assert_as_mne_reads(patch(patch(made(), DMIN, "7", 1), DMAX, "7", 1))
    assert_as_mne_reads(patch(patch(made(), PMIN, "7", 1), PMAX, "7", 1))
    assert_as_mne_reads(patch(patch(made(), DMIN, "32767", 1), DMAX, "-32768", 1))
    assert_as_mne_reads(patch(made(), UNIT, "%", 1))
    assert_as_mne_reads(made(labels=["C3", "C3", "O1"]))
    assert_as_mne_reads(made(labels=["C3-0", "C3", "C4"]))
    assert_as_mne_reads(patch(made(), (168, 8), "99.99.99"))
    assert_as_mne_reads(write_edf(tmp_path / "1.rec", eeg()))
    for unit in ("UV", "mV", "nV", "V", ""):
        path = made()
        for row in range(3):
            patch(path, UNIT, unit, row)
        assert_as_mne_reads(path, check=False)
        assert_as_mne_reads(path, units="uV")
    x = eeg(5)
    rows = [x[0], np.repeat(x[1], 4), x[2], x[3][::4], x[4]]
    path = write_edf(
        tmp_path / "b.edf", rows, ["C3", "ECG", "C4", "Flow", "SpO2"], ["uV"] * 4 + ["%"], [100, 400, 100, 25, 100]
    )
    assert_as_mne_reads(path)
    assert_as_mne_reads(path, units="uV")
    x[1] = 0
    assert_as_mne_reads(write_edf(tmp_path / "c.edf", x))


@pytest.mark.parametrize(("unit", "factor"), [("uV", 1), ("UV", 1), ("mV", 1e3), ("nV", 1e-3), ("V", 1e6), ("", 1e6)])
def test_every_unit_becomes_microvolts(tmp_path: Path, unit: str, factor: float) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x, units=[unit or "uV"] * 3)
    for row in range(3):
        patch(path, UNIT, unit, row)
    recording = open_edf(path, check=False)
    np.testing.assert_allclose(recording.read(0, 500) / factor, x[:, :500], atol=400 / 65535)
    assert ("channel EEG FP1-REF has no unit: taken as volts" in recording.notes) == (unit == "")


def test_a_file_cut_off_in_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    x = eeg()
    path = write_edf(tmp_path / "a.edf", x)
    path.write_bytes(path.read_bytes()[:-5000])
    recording = open_edf(path)
    assert recording.n_times % RATE == 0
    held = recording.n_times // RATE
    assert 0 < held < SECONDS
    assert f"the header promises {SECONDS} records, the file holds {held}: {held} are used" in recording.notes
    assert any("bytes after the last whole record" in note for note in recording.notes)
    np.testing.assert_allclose(recording.read(0, recording.n_times), x[:, : recording.n_times], atol=400 / 65535)


def test_an_unknown_record_count_is_found_out(tmp_path: Path) -> None:
    recording = open_edf(patch(write_edf(tmp_path / "a.edf", eeg()), RECORDS, "-1"))
    assert recording.n_times == RATE * SECONDS
    assert any("promises an unknown number of records, the file holds 30" in note for note in recording.notes)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(DMIN, DMAX, "digital"), (PMIN, PMAX, "physical")], ids=["digital", "physical"]
)
def test_a_channel_without_scale_is_left_out(tmp_path: Path, low: Any, high: Any, word: str) -> None:
    x = eeg()
    path = patch(patch(write_edf(tmp_path / "a.edf", x), low, "7", 1), high, "7", 1)
    recording = open_edf(path)
    assert recording.ch_names == ["EEG FP1-REF", "EEG T7-REF"]
    np.testing.assert_allclose(recording.read(0, 500), x[[0, 2], :500], atol=400 / 65535)
    assert recording.left_out == {"EEG C3-REF": f"its {word} minimum and maximum are both 7: no scale"}
    with pytest.raises(
        DataError, match=rf"has no C3; its channels are EEG FP1-REF, EEG T7-REF; left out were .*C3-REF: its {word} min"
    ):
        recording.find(["FP1", "C3"])


def test_a_turned_digital_range_is_noted(tmp_path: Path) -> None:
    x = eeg()
    path = patch(patch(write_edf(tmp_path / "a.edf", x), DMIN, "32767", 1), DMAX, "-32768", 1)
    recording = open_edf(path)
    assert any("C3-REF: digital minimum 32767 above maximum -32768" in note for note in recording.notes)
    np.testing.assert_allclose(recording.read(0, 500, [1])[0], -x[1, :500], atol=800 / 65535)


def test_channels_at_another_rate_or_in_another_unit_are_left_out(tmp_path: Path) -> None:
    x = eeg(5)
    rows = [x[0], np.repeat(x[1], 4), x[2], x[3][::4], x[4]]
    path = write_edf(
        tmp_path / "a.edf", rows, ["C3", "ECG", "C4", "Flow", "SpO2"], ["uV"] * 4 + ["%"], [100, 400, 100, 25, 100]
    )
    recording = open_edf(path)
    assert recording.sfreq == RATE
    assert recording.ch_names == ["C3", "C4"]
    assert recording.annotations == [(2.5, 1.0, "blink")]
    assert recording.left_out["ECG"] == "it is sampled at 400 Hz, most channels at 100 Hz"
    assert recording.left_out["Flow"] == "it is sampled at 25 Hz, most channels at 100 Hz"
    assert recording.left_out["SpO2"].startswith("its unit '%' is no voltage")
    np.testing.assert_allclose(recording.read(0, 700), x[[0, 2], :700], atol=400 / 65535)
    assert open_edf(path, units="uV").ch_names == ["C3", "C4", "SpO2"]


def test_repeated_names_are_numbered(tmp_path: Path) -> None:
    recording = open_edf(write_edf(tmp_path / "a.edf", eeg(), ["C3", "C3", "O1"]))
    assert recording.ch_names == ["C3-0", "C3-1", "O1"]
    assert "several channels are called C3: numbered from C3-0" in recording.notes
    with pytest.raises(DataError, match=r"has no C3; its channels are C3-0, C3-1, O1"):
        recording.find(["C3"])


def test_foreign_broken_and_missing_files_are_refused_in_one_line(tmp_path: Path) -> None:
    def refused(path: Path, pattern: str) -> None:
        with pytest.raises(DataError, match=pattern) as caught:
            open_edf(path)
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
    refused(patch(file("length.edf", good), RECORD_SECONDS, "0"), r"length\.edf: a record lasts 0 s")
    only = patch(file("units.edf", good), UNIT, "%", 0)
    refused(patch(patch(only, UNIT, "bpm", 1), UNIT, "degC", 2), "holds no signal in volts .*'bpm' is no voltage")
    with pytest.raises(OptionError, match="units"):
        open_edf(tmp_path / "good.edf", units="tesla")


def test_a_file_that_changes_under_the_reader_is_refused(plain: Path) -> None:
    recording = open_edf(plain)
    plain.write_bytes(plain.read_bytes()[:-9000])
    assert recording.read(0, 100).shape == (3, 100)
    with pytest.raises(DataError, match=r"a\.edf: became shorter while it was read"):
        recording.read(2000, 3000)
    plain.unlink()
    with pytest.raises(DataError, match=r"a\.edf: can't be read \(No such file"):
        recording.read(0, 100)


def test_neither_mne_nor_scipy_nor_torch_is_imported(plain: Path) -> None:
    code = (
        "import sys, zipbrain.edge as e; from zipbrain.signal.convention import Convention\n"
        "c = Convention('labram', 'x', ('FP1', ('C3', 'T7')), ('A', 'B'), (1.0, 30.0), 25.0, 80.0, 64.0, 4, 4, 'q95')\n"
        "print(sum(len(b.x) for b in e.windows(e.open_edf(sys.argv[1]), c)))\n"
        "print([m for m in ('torch', 'mne', 'scipy', 'sklearn', 'matplotlib', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(plain)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["7", "[]"]


def test_notes_name_no_channel_that_is_left_out(tmp_path: Path) -> None:
    x = eeg(5)
    names, units = ["C3", "C4", "Flow", "Flow", "Belt"], ["uV", "uV", "%", "%", "%"]
    path = write_edf(tmp_path / "a.edf", x, names, units)
    patch(patch(path, DMIN, "32767", 4), DMAX, "-32768", 4)
    notes = open_edf(path).notes
    assert not [note for note in notes if "several channels" in note or "sign is turned" in note]
    assert [note.split(" left out")[0] for note in notes] == ["channel Flow", "channel Belt"]


def test_annotations_in_two_signals_are_all_read_and_no_repeated_name(tmp_path: Path) -> None:
    signals = [edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension="uV") for i, row in enumerate(eeg(2))]
    path = tmp_path / "a.edf"
    edfio.Edf(signals, annotations=[edfio.EdfAnnotation(2.5, 1.0, "blink")], data_record_duration=1).write(path)
    patch(path, LABEL, "EDF Annotations", 1)
    content = bytearray(path.read_bytes())
    header, record = int(content[184:192]), (len(content) - int(content[184:192])) // SECONDS
    for second in range(SECONDS):
        start = header + second * record + 2 * RATE
        mark = f"+{second}.5\x14second\x14".encode() if second in (1, 3) else b""
        content[start : start + 2 * RATE] = mark.ljust(2 * RATE, b"\0")
    path.write_bytes(content)
    recording = open_edf(path)
    assert recording.ch_names == ["C0"]
    assert recording.annotations == [(1.5, 0.0, "second"), (2.5, 1.0, "blink"), (3.5, 0.0, "second")]
    assert not [note for note in recording.notes if "several channels" in note]
