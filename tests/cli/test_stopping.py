"""Ctrl-C and SIGTERM: every long command says in one line what is kept and how to go on, and ends with 130."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from zipbrain.cli import main

# What is interrupted in each command, and its options.
COMMANDS = {
    "demo": ("zipbrain.evaluation.demo.demonstrate", "demo --out {out}"),
    "evaluate": ("zipbrain.pretrained.from_pretrained", "evaluate {out} --data synthetic-events"),
    "compare": ("zipbrain.pretrained.from_pretrained", "compare run --data synthetic-events --out {out}"),
    "ablate": ("zipbrain.pretrained.from_pretrained", "ablate run --data synthetic-events --out {out}"),
    "search": ("zipbrain.search.search", "search run --data synthetic-events --out {out}"),
    "export": ("zipbrain.pretrained.from_pretrained", "export run --data synthetic-events --out {out}.onnx"),
    "profile": ("zipbrain.profiling.profile.profile", "profile --model biot --corpus TUAB --out {out}"),
    "report": ("zipbrain.evaluation.report.write_report", "report results --out {out}"),
    "predict": ("zipbrain.edge.predict_batch.predict_many", "predict night.edf --model model.onnx --out {out}"),
    "finetune": (
        "zipbrain.training.window_sources.WindowSource.split",
        "finetune --model biot --data synthetic-events --limit 8 --out {out}",
    ),
    "prepare": ("zipbrain.data.prepare", "data prepare eegmat --root raw --out {out}"),
    "download": ("zipbrain.data.downloads.download", "data download eegmat --out {out}"),
}
NOTHING_WRITTEN = {"evaluate", "finetune"}  # they name no folder: nothing is in it


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_stopped_command_says_what_is_kept_in_one_line(
    command: str,
    blow: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, words = COMMANDS[command]
    monkeypatch.setattr(place, lambda *_, **__: os.kill(os.getpid(), blow))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.jsonl").touch()
    before = signal.getsignal(signal.SIGTERM)
    assert main(words.format(out="the-results").split()) == 130
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("stopped: ")
    assert ("the-results" in said[0]) != (command in NOTHING_WRITTEN), said
    assert "the same command" in said[0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_command_without_words_of_its_own_says_that_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zipbrain.data.open_prepared", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert main(["data", "show", "nowhere"]) == 130
    assert capsys.readouterr().err == "stopped: run the same command again\n"
