"""`zipbrain finetune` and `zipbrain evaluate`: real runs of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zipbrain
from data import tiny_corpora
from zipbrain.cli import main
from zipbrain.training import loop
from zipbrain.training.window_sources import WindowSource

TINY = [
    "--data", "synthetic-events", "--limit", "24", "--device", "cpu", "--set",
    'options={"dim": 16, "heads": 2, "depth": 2}', "--batch-size", "8",
]  # fmt: skip


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.data.synthetic import Synthetic

    def small(task: str, **options: Any) -> Synthetic:
        return Synthetic(task, n_subjects=4, windows_per_subject=12, seconds=2, **options)

    monkeypatch.setattr("zipbrain.training.window_sources.Synthetic", small)


def test_finetune_then_evaluate_with_and_without_compression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["finetune", "--model", "biot", *TINY, "--epochs", "2", "--lr", "1e-3", "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert (record["settings"], record["epochs_run"], record["train"]["name"]) == ("scratch", 2, "synthetic-events")
    assert record["recipe"]["lr"] == 1e-3
    assert record["recipe"]["batch_size"] == 8
    assert len(record["history"]) == 2
    model: Any = zipbrain.from_pretrained(record["model"])
    assert model.config["n_outputs"] == 6
    assert model.config["n_chans"] == 16  # BIOT reads the bipolar montage

    assert main([*arguments, "--resume"]) == 0  # finished: only the summary
    said = capsys.readouterr()
    assert "ours, for random weights" in said.out
    assert f"zipbrain evaluate {out / 'model'}" in said.out.replace("\n", "")

    evaluate = ["evaluate", str(out), "--data", "synthetic-events", "--device", "cpu"]
    assert main([*evaluate, "--ratio", "0.5", "--method", "tome", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["split"], found["windows"]) == ("biot", "test", 12)
    plain, pooled = found["scores"]
    assert plain["compression"] == "none"
    assert pooled["compression"] == "tome, 48 to 24 tokens"
    assert (plain["removed"], pooled["removed"]) == (0.0, 0.5)
    assert any(note.startswith("Few windows: 12") for note in found["notes"])
    assert {"accuracy", "balanced_accuracy", "kappa", "weighted_f1"} <= plain.keys()
    assert main([*evaluate, "--split", "val"]) == 0
    assert "BAcc" in capsys.readouterr().out


def test_evaluate_and_profile_note_windows_of_another_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.data.synthetic import Synthetic

    out = tmp_path / "run"
    assert main(["finetune", "--model", "biot", *TINY, "--epochs", "1", "--out", str(out), "--json"]) == 0
    capsys.readouterr()
    evaluate = ["evaluate", str(out), "--data", "synthetic-events", "--device", "cpu", "--json"]
    words = "windows of 3 s, but the model was trained on windows of 2 s"
    for seconds, is_noted in ((2, False), (3, True)):
        longer = Synthetic("events", n_subjects=4, windows_per_subject=12, seconds=seconds, montage="bipolar")
        monkeypatch.setattr("zipbrain.training.window_sources.Synthetic", lambda *_, made=longer, **__: made)
        assert main(evaluate) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(words in note for note in notes) == is_noted
        given = [str(out), "--data", "synthetic-events", "--out"]
        quick = [
            "--runtimes",
            "torch",
            "--no-memory",
            "--no-onnx-tool",
            "--no-timeline",
            "--rounds",
            "1",
            "--batch",
            "1",
        ]
        assert main(["profile", *given, str(tmp_path / "profile"), *quick, "--json"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(words in note for note in notes) == is_noted


def test_evaluate_and_export_note_windows_that_were_filtered_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, run = tiny_corpora.eegmat(tmp_path / "raw"), str(tmp_path / "run")
    for folder, band in (("wide", "0.5-45"), ("narrow", "1-30")):
        prepared = ["--band", band, "--model", "biot", "--out", str(tmp_path / folder)]
        assert main(["data", "prepare", "eegmat", "--root", str(raw), *prepared]) == 0
    wide = ["--data", str(tmp_path / "wide"), *TINY[2:], "--epochs", "1"]
    assert main(["finetune", "--model", "biot", *wide, "--out", run]) == 0
    words = "filtered from 1 Hz to 30 Hz, no notch, but the model was trained on windows filtered from 0.5 Hz to 45 Hz"
    for folder, is_noted in (("wide", False), ("narrow", True)):
        data = ["--data", str(tmp_path / folder)]
        capsys.readouterr()
        assert main(["evaluate", run, *data, "--device", "cpu", "--json"]) == 0
        assert any(words in note for note in json.loads(capsys.readouterr().out)["notes"]) == is_noted
    assert main(["export", run, *data, "--out", str(tmp_path / "model.onnx"), "--limit", "8"]) == 0
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--epochs", "--seed"])
def test_numbers_beyond_all_bounds_are_refused_before_anything_is_written(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["finetune", "--model", "biot", *TINY, option, "9" * 20, "--out", str(out)]) == 2
    assert f"{option[2:]}: got {'9' * 20}" in capsys.readouterr().err
    assert not out.exists()


def test_steps_are_captured_where_they_can_be_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for options, asked, said in (
        ([], "training on cpu", False),
        (["--capture"], "training on cpu", True),
        (["--no-capture"], "not asked for", False),
    ):
        out = tmp_path / "".join(["run", *options])
        arguments = ["finetune", "--model", "biot", *TINY, "--epochs", "1", "--out", str(out), *options]
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["capture"].startswith(f"no: {asked}")
        assert ("steps are not captured: training on cpu" in caplog.text) == said
        caplog.clear()


def test_a_stopped_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["finetune", "--model", "biot", *TINY, "--epochs", "3", "--out", str(tmp_path / "run")]
    steps = loop.TrainingRun._step
    left = [4]

    def stop(self: Any, *given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return steps(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "_step", stop)
        assert main(arguments) == 130
    said = capsys.readouterr().err
    assert "--resume goes on" in said
    assert "epoch   1/3" in said
    evaluate = ["evaluate", str(tmp_path / "run"), *TINY[:2], "--device", "cpu", "--json"]
    assert main(evaluate) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("is unfinished (epoch 1 of 3)" in note for note in notes)
    short = ["finetune", "--model", "biot", *TINY[:6], "--out", str(tmp_path / "run"), "--resume"]
    assert main(short) == 0  # the settings are those of the run
    assert "epoch   2/3" in capsys.readouterr().err
    assert main(evaluate) == 0
    assert "unfinished" not in capsys.readouterr().out


def test_a_run_stopped_before_it_began_does_not_ask_to_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zipbrain.training.model_setup.create", stop)
    assert main(["finetune", "--model", "biot", *TINY, "--out", str(tmp_path / "run")]) == 130
    assert "the training had not begun, nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_mistakes_are_one_line_and_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = zipbrain.save_pretrained(zipbrain.models.BIOT(2, 4, 400, dim=16, heads=2, depth=1), tmp_path / "m")
    run = ["finetune", "--model", "biot", "--out", str(tmp_path / "out")]
    for arguments, words in (
        ([*run, "--data", str(tmp_path / "nothing")], "there is no such folder"),
        (["finetune", "--model", "bendr", "--data", "synthetic-events"], "it must be one of LaBraM"),
        ([*run, *TINY, "--set", "momentum=0.9"], "known settings are"),
        ([*run, *TINY, "--settings", "best"], "'paper' or 'scratch'"),
        ([*run, *TINY, "--device", "tpu"], "device: got 'tpu'"),
        ([*run, *TINY, "--init", str(tmp_path / "none.pth")], "there is no such file"),
        ([*run, *TINY, "--cache", "cloud"], "auto, device, memory, disk"),
        ([*run, *TINY, "--set", "options=5"], "names and values"),
        ([*run, *TINY, "--resume"], "it holds no run to resume"),
        (["evaluate", str(model), "--data", "synthetic-events"], "6 classes"),
        (["evaluate", str(model), "--data", "synthetic-events", "--ratio", "much"], "--ratio: got 'much'"),
        (["evaluate", str(tmp_path / "no"), "--data", "synthetic-events"], "no such folder"),
        (["evaluate", str(model), "--data", "synthetic-events", "--split", "all"], "train, val, test"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert words in error, arguments
        assert len(error.strip().splitlines()) == 1, error
    assert not (tmp_path / "out").exists()


def test_a_source_spreads_its_limit_over_the_split() -> None:
    whole, part = WindowSource("synthetic-sleep", "labram").split("train"), WindowSource("synthetic-sleep", "labram", 5)
    assert len(part.split("train")) == 5
    assert set(part.split("train").subjects) == set(whole.subjects)
    assert part.validation() is not None


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("finetune", "evaluate"):
        assert main([command, "--help"]) == 0
        said = capsys.readouterr().out
        assert f"zipbrain {command} " in said
        assert ("--no-capture" in said) == (command == "finetune")
