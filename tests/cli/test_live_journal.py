"""`zipbrain live verify` and `evaluate` as a user meets them, and the example of alarm rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer

from zipbrain.cli.live_journal import evaluate, verify
from zipbrain.live.alarm_rules import AlarmRules
from zipbrain.live.alarms import AlarmEngine
from zipbrain.live.decision import Decision
from zipbrain.live.journal import Journal

CLASSES = ("rest", "seizure")


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session with one alarm, and a table of two events."""
    rules = AlarmRules.default(CLASSES)
    engine = AlarmEngine(rules)
    with Journal(tmp_path, {"model": "sha256:1", "recipe": {}, "thresholds": rules.to_dict()}) as journal:
        for second in range(300):
            value = 0.9 if 100 <= second < 130 else 0.1
            one = Decision(float(second), second + 4.0, np.float32([1 - value, value]), int(value > 0.5))
            journal.write("decision", **one.to_dict())
            for event in engine.decide(one):
                journal.write("event", **vars(event))
    (tmp_path / "truth.csv").write_text("onset,duration,label\n100,30,seizure\n280,10,seizure\n")
    return tmp_path


def test_verify_says_that_a_journal_is_whole_and_names_the_line_that_was_changed(session, capsys):
    verify(session)
    assert "whole" in capsys.readouterr().out
    path = session / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"0.1", b"0.9", 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(typer.Exit) as leaving:
        verify(session)
    assert leaving.value.exit_code == 1
    out = capsys.readouterr().out
    assert "changed" in out
    assert "line 7" in out
    with pytest.raises(typer.Exit):
        verify(session, as_json=True)
    assert json.loads(capsys.readouterr().out)["fault_line"] == 7


def test_evaluate_shows_a_table_and_json(session, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    evaluate(session, session / "truth.csv")
    out = capsys.readouterr().out
    assert "50.0%" in out
    assert "extrapolated" in out
    evaluate(session, session / "truth.csv", as_json=True)
    (score,) = json.loads(capsys.readouterr().out)["scores"]
    assert (score["events"], score["detected"], score["delay_median_s"]) == (2, 1, 14.0)
