"""`zipbrain predict`: real runs of the command line, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import edfio
import mne
import numpy as np
import pytest

from edge import tiny_onnx
from zipbrain.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_onnx.save(tmp_path / "m.onnx")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    x = 30 * np.random.default_rng(5).normal(size=(16, 20 * 200))
    names = tiny_onnx.convention().ch_names
    signals = [
        edfio.EdfSignal(row, 200, label=f"EEG {name}", physical_dimension="uV", physical_range=(-500, 500))
        for name, row in zip(names, x, strict=True)
    ]
    edfio.Edf(signals).write(tmp_path / "a.edf")
    return tmp_path / "a.edf"


def test_a_recording_becomes_a_table_and_files(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["predict", str(recording), "--model", str(model), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for words in ("a.edf", "arithmetic", "written", "a_zipbrain.csv"):
        assert words in said
    kinds = {path.name for path in out.iterdir()}
    assert kinds == {
        "a_zipbrain.csv", "a_zipbrain.edf", "a_desc-zipbrain_events.tsv", "a_desc-zipbrain_events.json",
        "a_zipbrain.png", "a_zipbrain.svg", "a_zipbrain.json",
    }  # fmt: skip
    assert main(["predict", str(recording), "--model", str(model), "--out", str(out)]) == 0
    assert "1 of 1 were finished before" in capsys.readouterr().out


def test_json_is_all_that_is_printed_and_a_failure_is_code_one(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.edf"
    bad.write_bytes(b"0       ")
    options = ["--model", str(model), "--out", str(tmp_path / "out"), "--format", "csv", "--hop", "4", "--json"]
    assert main(["predict", str(recording), str(bad), *options]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in found["recordings"]] == ["done", "failed"]
    assert found["recordings"][0]["summary"]["windows"] == 5
    assert "bad.edf" in found["recordings"][1]["error"]
    assert (tmp_path / "out" / "zipbrain_recordings.csv").is_file()


def test_formats_that_mne_reads_work_where_it_is_installed(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = mne.io.read_raw_edf(recording, preload=True, verbose="ERROR")
    raw.save(tmp_path / "b_raw.fif", fmt="double", verbose="ERROR")
    options = ["--model", str(model), "--format", "csv", "--json"]
    rows = []
    for path in (recording, tmp_path / "b_raw.fif"):
        assert main(["predict", str(path), *options, "--out", str(tmp_path / "out")]) == 0
        (row,) = json.loads(capsys.readouterr().out)["recordings"]
        rows.append(np.loadtxt(row["files"]["csv"], delimiter=",", skiprows=1, usecols=(0, 1, 2, 3)))
    np.testing.assert_allclose(rows[0], rows[1], atol=2e-6)


def test_mistakes_are_one_line_and_code_two_or_one(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    (tmp_path / "file").write_text("")
    (tmp_path / "no.onnx").write_bytes(b"x")
    for arguments, code, words in (
        ([str(recording), "--model", str(model), "--format", "pdf", *out], 2, "known are csv"),
        ([str(recording), "--model", str(model), "--format", "yasa", *out], 2, "no sleep stages"),
        ([str(recording), "--model", str(model), "--rename", "C3", *out], 2, "'C3=EEG 1,C4=EEG 2'"),
        ([str(recording), "--model", str(model), "--rename", "C3=a,C3=b", *out], 2, "each electrode once"),
        ([str(recording), "--model", str(model), "--units", "kg", *out], 2, "nV, uV, mV, V"),
        ([str(recording), "--model", str(model), "--hop", "0", *out], 2, "hop_s"),
        ([str(recording), "--model", str(model), "--threads", "5000", *out], 2, "1024"),
        ([str(recording), "--model", str(model), "--runtime", "x", *out], 2, "onnxruntime, openvino"),
        ([str(recording), "--model", str(model), "--backend", "x", *out], 2, "loky"),
        ([str(recording), "--model", str(tmp_path / "no.onnx"), *out], 1, "is no ONNX file"),
        ([str(recording), "--model", str(tmp_path / "none.onnx"), *out], 1, "No such file"),
        ([str(recording), "--model", str(model), "--out", str(tmp_path / "file")], 1, "can't be written to"),
        (["--model", str(model), *out], 2, "ecordings"),
    ):
        assert main(["predict", *arguments]) == code, arguments
        error = capsys.readouterr().err
        assert words in error
        assert len(error.strip().splitlines()) == 1


def test_it_runs_without_torch_mne_scipy_onnx_and_joblib(model: Path, recording: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'mne', 'scipy', 'onnx', 'sklearn', 'matplotlib'): sys.modules[name] = None\n"
        "import zipbrain.cli\n"
        "code = zipbrain.cli.main(sys.argv[1:])\n"
        "assert 'joblib' not in sys.modules\n"
        "sys.exit(code)"
    )
    arguments = [
        "predict",
        str(recording),
        "--model",
        str(model),
        "--out",
        str(tmp_path / "o"),
        "--format",
        "csv,edf,bids",
    ]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "a_zipbrain.csv").is_file()


def test_a_table_in_a_narrow_terminal_loses_nothing(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = recording.rename(tmp_path / "sub-01_ses-02_task-rest_run-1_eeg.edf")
    assert main(["predict", str(name), "--model", str(model), "--out", str(tmp_path / "o"), "--format", "csv"]) == 0
    said = capsys.readouterr().out.split("written")[0]
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    for words in ("minutes", "undecided", "× real", "rest", "arithmetic"):
        assert words in said
    found = json.loads((tmp_path / "o" / "sub-01_ses-02_task-rest_run-1_eeg_zipbrain.json").read_text())
    assert f" {found['times_real_time']:.0f} " in said
