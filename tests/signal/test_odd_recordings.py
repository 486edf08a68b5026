"""Recordings as they come from clinics: polygraphies, huge records, odd rates, bridged electrodes, odd names."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from data.edf_files import DMAX, DMIN, RATE, RESERVED, SECONDS, discontinuous, eeg, patch, write_edf
from edge import tiny_onnx
from zipbrain.cli import main
from zipbrain.data import open_recording
from zipbrain.edge import open_edf, windows
from zipbrain.edge.batch_results import write_table
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.predict_batch import predict_many
from zipbrain.edge.predict_one import predict
from zipbrain.errors import DataError, OptionError
from zipbrain.signal import edf
from zipbrain.signal.convention import Convention

edfio = pytest.importorskip("edfio")

PLAIN = Convention(
    "labram", "own", ("FP1", ("C3", "T7")), ("A", "B"), None, None, None, float(RATE), 2.0, 2.0, "none"
)  # fmt: skip
NAMES = tiny_onnx.convention().ch_names


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_onnx.save(tmp_path / "m.onnx")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Twenty seconds of what the model wants."""
    x = 30 * np.random.default_rng(5).normal(size=(len(NAMES), 20 * 200))
    signals = [
        edfio.EdfSignal(row, 200, label=f"EEG {name}", physical_dimension="uV", physical_range=(-500, 500))
        for name, row in zip(NAMES, x, strict=True)
    ]
    (tmp_path / "raw").mkdir()
    edfio.Edf(signals).write(tmp_path / "raw" / "a.edf")
    return tmp_path / "raw" / "a.edf"


def flags(path: Path, **changes: Any) -> list[str]:
    return [flag for batch in windows(open_edf(path), replace(PLAIN, **changes)) for flag in batch.flags]


def test_the_eeg_of_a_polygraphy_is_read_however_many_slow_channels_there_are(tmp_path: Path) -> None:
    x = eeg(2)
    slow = [row[::4] for row in eeg(5)]
    names = ["EEG C3-M2", "O1", "Flow", "Thorax", "Abdomen", "Snore", "Leg"]
    path = write_edf(tmp_path / "a.edf", [*x, *slow], names, rates=[RATE] * 2 + [RATE // 4] * 5)
    found = open_edf(path)
    assert (found.ch_names, found.sfreq) == (["EEG C3-M2", "O1"], RATE)
    assert found.left_out["Flow"] == "it is sampled at 25 Hz, EEG channels at 100 Hz"
    assert open_recording(path).ch_names == found.ch_names


def test_a_missing_electrode_that_the_file_has_is_said_with_the_reason(tmp_path: Path) -> None:
    path = write_edf(tmp_path / "a.edf", eeg())
    patch(patch(path, DMIN, "7", 1), DMAX, "7", 1)
    with pytest.raises(DataError, match=r"has no C3-T7.*left out were EEG C3-REF: its digital minimum and maximum"):
        windows(open_edf(path), PLAIN)


def test_only_what_is_needed_of_a_huge_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = eeg()
    signals = [
        edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension="uV", physical_range=(-200, 200))
        for i, row in enumerate(x)
    ]
    path = tmp_path / "a.edf"
    edfio.Edf(signals, data_record_duration=SECONDS).write(path)  # the whole recording is one record
    read: list[int] = []
    real = edf.opened

    class Counting:
        def __init__(self, file: IO[bytes]) -> None:
            self.file = file

        def seek(self, place: int) -> None:
            self.file.seek(place)

        def read(self, count: int) -> bytes:
            read.append(count)
            return self.file.read(count)

    @contextmanager
    def counting(given: Path) -> Iterator[Any]:
        with real(given) as file:
            yield Counting(file)

    whole = open_edf(path)
    assert whole.n_times == RATE * SECONDS
    monkeypatch.setattr(edf, "_CHUNK", 1000)
    monkeypatch.setattr(edf, "opened", counting)
    np.testing.assert_allclose(whole.read(700, 900, [2, 0]), x[[2, 0], 700:900], atol=400 / 65535)
    assert sum(read) == 2 * 2 * 200


def test_electrodes_that_tell_the_same_give_no_decision(tmp_path: Path) -> None:
    x = eeg()
    assert set(flags(write_edf(tmp_path / "good.edf", x))) == {""}
    x[2, 600:800] = x[1, 600:800]  # bridged from 6 s to 8 s
    assert [i for i, flag in enumerate(flags(write_edf(tmp_path / "a.edf", x))) if flag] == [3]
    assert flags(tmp_path / "a.edf")[3] == "flat: C3-T7"
    assert set(flags(tmp_path / "a.edf", montage=("FP1", "C3"))) == {""}  # the difference is not asked for


def test_gaps_in_a_file_that_is_marked_as_continuous_are_noted(tmp_path: Path) -> None:
    lies = patch(discontinuous(tmp_path / "a.edf", 7.5), RESERVED, "EDF+C")
    for found in (open_edf(lies), open_recording(lies)):
        assert any("marked as continuous, but its last record is stamped +7.5 s off" in note for note in found.notes)
    assert not any("stamped" in note for note in open_edf(write_edf(tmp_path / "b.edf", eeg())).notes)


def test_a_rate_that_can_not_be_resampled_names_the_recording(tmp_path: Path) -> None:
    path = patch(write_edf(tmp_path / "a.edf", eeg()), (244, 8), "1.000013")
    with pytest.raises(DataError, match=r"a\.edf: its 99\.9987\d* Hz can't become the model's windows .*; resample it"):
        windows(open_edf(path), replace(PLAIN, cut_sfreq=200.0, sfreq=200.0))


def test_windows_less_than_a_sample_apart_are_refused(model: Path, recording: Path, tmp_path: Path) -> None:
    assert len(predict(recording, model, hop_s=0.005).starts) == 3201
    for hop in (1e-9, 0.0049):
        with pytest.raises(OptionError, match=r"at least 0\.005"):
            predict(recording, model, hop_s=hop)
        with pytest.raises(OptionError, match=r"at least 0\.005"):
            predict_many([recording], model, tmp_path / "out", hop_s=hop)


def test_a_link_that_leads_nowhere_is_a_failure_and_not_left_out(model: Path, recording: Path, tmp_path: Path) -> None:
    (recording.parent / "b.edf").symlink_to(tmp_path / "not fetched.edf")
    found = predict_many([recording.parent], model, tmp_path / "out", formats=["csv"], backend="sequential")
    assert [outcome.status for outcome in found] == ["done", "failed"]
    assert "No such file" in found[1].error


def test_names_that_are_no_text_are_predicted_listed_and_shown(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    odd = os.fsencode(recording.parent / "M") + b"\xfcller.edf"
    try:
        os.rename(recording, odd)
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    bad = recording.parent / os.fsdecode(b"kaputt\xe4.edf")
    bad.write_bytes(b"no EDF")
    out = tmp_path / "out"
    assert main(["predict", str(recording.parent), "--model", str(model), "--out", str(out), "--workers", "1"]) == 1
    said = capsys.readouterr().out
    assert "M\\udcfcller.edf" in said
    assert "kaputt\\udce4.edf" in said
    rows = list(csv.DictReader((out / "zipbrain_recordings.csv").open(encoding="utf-8")))
    assert sorted(row["status"] for row in rows) == ["done", "failed"]
    summary = json.loads((out / os.fsdecode(b"M\xfcller_zipbrain.json")).read_text(encoding="utf-8"))
    assert (out / summary["files"]["csv"]).is_file()
    again = predict_many([recording.parent], model, out, backend="sequential")
    assert sorted(outcome.status for outcome in again) == ["failed", "skipped"]
    write_table(again, out)


def test_words_of_a_file_are_no_commands_to_the_terminal(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    about = tiny_onnx.description(corpus="[/no] [red]x", classes=("\x1b[2Jrest", "[bold]b"))
    model = tiny_onnx.save(tmp_path / "odd.onnx", about)
    assert main(["predict", str(recording), "--model", str(model), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "[/no] [red]x" in said
    assert "\x1b[2J" not in said
    assert "[bold]b" in said


def test_a_name_that_is_too_long_is_refused_before_anything_is_computed(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zipbrain.edge.model.EdgeModel.probabilities", lambda *_: pytest.fail("it computed"))
    long = recording.rename(recording.with_name("n" * 240 + ".edf"))
    with pytest.raises(DataError, match="File name too long"):
        predict(long, model, tmp_path / "out")


def test_a_file_that_was_kept_by_force_says_so_every_time(recording: Path, tmp_path: Path) -> None:
    faults = ["decisions agree on 71.0% of 290 windows, 98% are asked for"]
    about = tiny_onnx.description(precision="int8-dynamic", parity={"faults": faults})
    forced = predict(recording, tiny_onnx.save(tmp_path / "f.onnx", about))
    assert any("kept by force" in note and faults[0] in note for note in forced.notes)
    assert forced.notes == forced.summary()["notes"]
    for parity in ({"faults": []}, {"faults": "all"}, {}):
        plain = tiny_onnx.save(tmp_path / "p.onnx", tiny_onnx.description(parity=parity))
        assert not any("force" in note for note in predict(recording, plain).notes)


@pytest.mark.filterwarnings("ignore:.*tasks which were still being processed")  # joblib says that it was stopped
def test_a_stopped_run_leaves_no_thread_at_work(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        shutil.copy(recording, recording.with_name(f"{number}.edf"))
    working: list[float] = []
    answer = EdgeModel.probabilities

    def slow(self: EdgeModel, x: Any) -> Any:
        time.sleep(0.02)
        working.append(time.monotonic())
        return answer(self, x)

    def stop(name: str, done: float, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EdgeModel, "probabilities", slow)
    options: dict[str, Any] = {"hop_s": 0.005, "formats": ["csv"], "backend": "threading", "workers": 2}
    with pytest.raises(KeyboardInterrupt):
        predict_many([recording.parent], model, tmp_path / "out", progress=stop, **options)
    stopped = time.monotonic()
    time.sleep(0.3)
    assert working
    assert max(working) < stopped
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_the_command_says_that_it_was_stopped_and_goes_on(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(recording), "--model", str(model), "--out", str(tmp_path / "out"), "--format", "csv"]
    with monkeypatch.context() as patched:
        patched.setattr(EdgeModel, "probabilities", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(command) == 1
    error = capsys.readouterr().err
    assert "stopped" in error
    assert "goes on" in error
    assert len(error.strip().splitlines()) == 1
    assert not list((tmp_path / "out").iterdir())
    assert main(command) == 0


def test_what_was_repaired_is_told_for_many_recordings_too(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        shutil.copy(recording, recording.with_name(f"{number}.edf"))
    recording.write_bytes(recording.read_bytes()[:-20_000])
    out = tmp_path / "out"
    assert main(["predict", str(recording.parent), "--model", str(model), "--out", str(out), "--workers", "1"]) == 0
    assert "note (1 of 5): the header promises 20 records, the file holds 16" in capsys.readouterr().out
    rows = {Path(row["recording"]).name: row for row in csv.DictReader((out / "zipbrain_recordings.csv").open())}
    assert "the file holds 16" in rows["a.edf"]["notes"]
    assert not rows["1.edf"]["notes"]
