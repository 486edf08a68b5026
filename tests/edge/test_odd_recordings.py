"""Predicting what is odd: names that are no text, words that are commands, links that lead nowhere, stopped runs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import tiny_onnx
from zipbrain.cli import main
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.predict_batch import predict_many, write_table
from zipbrain.edge.predict_one import predict
from zipbrain.errors import DataError, OptionError

edfio = pytest.importorskip("edfio")

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
    answer = EdgeModel.look

    def slow(self: EdgeModel, x: Any, **options: Any) -> Any:
        time.sleep(0.02)
        working.append(time.monotonic())
        return answer(self, x, **options)

    def stop(name: str, done: float, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EdgeModel, "look", slow)
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
        patched.setattr(EdgeModel, "look", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(command) == 130
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
