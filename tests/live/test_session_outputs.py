"""A whole session with its alarms and outputs: what it leaves in its folder belongs together."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from zipbrain.edge import EdgeModel, open_edf
from zipbrain.errors import DataError
from zipbrain.live.alarm_rules import AlarmRules, Rule
from zipbrain.live.alarms import Event
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.evaluate import evaluate
from zipbrain.live.outputs import choose_outputs
from zipbrain.live.outputs.edf import EDFSignals
from zipbrain.live.session import Session

from ..edge import tiny_onnx
from .made_up_source import Scripted, noise

NAMES = tiny_onnx.convention().ch_names
SFREQ = 200.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EdgeModel:
    return EdgeModel(tiny_onnx.save(tmp_path_factory.mktemp("model") / "tiny.onnx"), threads=1)


def run(model: EdgeModel, folder: Path, x, name: str = "any class", watch=None) -> Session:
    """A session whose one alarm is always raised."""
    classes = model.description.classes
    rules = AlarmRules(classes, (Rule(name, classes, on=0.9, off=0.9, min_duration_s=0),))
    blocks = [x[:, start : start + 150] for start in range(0, x.shape[1], 150)]
    source = Scripted(NAMES, SFREQ, blocks, is_live=False)
    session = Session(model, source, folder, rules=rules, outputs=choose_outputs(["csv", "jsonl", "edf"]))
    session.run(watch=watch)
    return session


def test_files_hold_what_the_journal_says_and_a_latched_alarm_is_kept(model, tmp_path):
    x = noise(len(NAMES), round(20.5 * SFREQ))
    run(model, tmp_path, x)
    rows = [line["facts"] for line in read_chain(tmp_path / JOURNAL).lines if line["kind"] == "decision"]
    (table,) = tmp_path.glob("decisions_*.csv")
    with table.open() as file:
        assert [float(row["stop_s"]) for row in csv.DictReader(file)] == [row["stop_s"] for row in rows]
    (stream,) = tmp_path.glob("events_*.jsonl")
    told = [json.loads(line) for line in stream.read_text().splitlines()]
    assert [one["decision"]["start_s"] for one in told if "decision" in one] == [row["start_s"] for row in rows]
    assert [one["event"]["kind"] for one in told if "event" in one and one["event"]["alarm"] == "any class"] == [
        "raised"
    ]
    (signals,) = tmp_path.glob("signals_*.edf")
    recording = open_edf(signals)
    np.testing.assert_allclose(recording.read(0, x.shape[1]), x, atol=0.0500001)
    onsets = [onset for onset, _, text in recording.annotations if "any class: raised" in text]
    assert onsets == [rows[0]["stop_s"]]
    (tmp_path / "truth.csv").write_text("onset,duration\n2,5\n")
    (score,) = evaluate(tmp_path, tmp_path / "truth.csv").scores
    assert (score.events, score.detected, score.false_alarms) == (1, 1, 0)
    run(model, tmp_path, x)
    events = [line["facts"] for line in read_chain(tmp_path / JOURNAL).lines if line["kind"] == "event"]
    assert [event["kind"] for event in events if event["alarm"] == "any class"] == ["raised", "kept", "raised"]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*_*")} == {0}


def test_a_latched_alarm_whose_rule_was_renamed_is_not_lost_without_a_word(model, tmp_path):
    x, shown = noise(len(NAMES), round(9 * SFREQ)), []
    run(model, tmp_path / "bed", x)
    for stream in (tmp_path / "bed").glob("events_*.jsonl"):
        stream.unlink()
    run(model, tmp_path / "bed", x, "renamed", lambda state, news: shown.extend(news))
    lines = [line["facts"] for line in read_chain(tmp_path / "bed" / JOURNAL).lines if line["kind"] == "event"]
    (stream,) = (tmp_path / "bed").glob("events_*.jsonl")
    told = [content["event"] for content in map(json.loads, stream.read_text().splitlines()) if "event" in content]
    for events in (lines, told, [vars(item) for item in shown if isinstance(item, Event)]):
        (lapsed,) = [event for event in events if event["kind"] == "lapsed"]
        assert lapsed["alarm"] == "any class"
        assert "no latching rule" in lapsed["words"]


def test_a_disk_without_room_for_signals_is_an_alarm_while_decisions_go_on(model, tmp_path):
    x = noise(len(NAMES), round(12 * SFREQ))
    source = Scripted(NAMES, SFREQ, [x], is_live=False)
    Session(model, source, tmp_path, outputs=[EDFSignals(reserve=2**62), *choose_outputs(["csv"])]).run()
    lines = read_chain(tmp_path / JOURNAL).lines
    (alarm,) = [line["facts"] for line in lines if line["kind"] == "event" and line["facts"]["kind"] == "raised"]
    assert (alarm["alarm"], alarm["category"]) == ("disk", "technical")
    assert "which decisions need" in alarm["words"]
    (table,) = tmp_path.glob("decisions_*.csv")
    assert len(table.read_text().splitlines()) == 1 + sum(line["kind"] == "decision" for line in lines) > 2
    assert not list(tmp_path.glob("signals_*"))


def test_a_session_that_begins_on_a_full_disk_decides_without_a_page_and_says_so(model, tmp_path, monkeypatch):
    def refuse(folder: Path, *_: object) -> None:
        raise DataError(f"{folder}: the board can't be made (No space left on device)")

    monkeypatch.setattr("zipbrain.live.session.Board", refuse)
    summary = Session(model, Scripted(NAMES, SFREQ, [noise(len(NAMES), 2400)], is_live=False), tmp_path).run()
    assert summary.decided == 5
    (alarm,) = [
        line["facts"]
        for line in read_chain(tmp_path / JOURNAL).lines
        if line["kind"] == "event" and line["facts"]["kind"] == "raised"
    ]
    assert alarm["alarm"] == "disk"
    assert "page" in alarm["words"]


def test_outputs_get_the_alarm_of_a_source_that_fails_at_the_end(model, tmp_path, monkeypatch):
    monkeypatch.setattr("zipbrain.live.session._TICK_S", 1.0)  # the failure is seen after the worker has ended
    script = [noise(len(NAMES), round(9 * SFREQ)), ValueError("the file was cut off")]
    source = Scripted(NAMES, SFREQ, script, is_live=False)
    Session(model, source, tmp_path, outputs=choose_outputs(["jsonl", "edf"])).run()
    events = [line["facts"] for line in read_chain(tmp_path / JOURNAL).lines if line["kind"] == "event"]
    assert ("raised", "source") in [(event["kind"], event["alarm"]) for event in events]
    (stream,) = tmp_path.glob("events_*.jsonl")
    told = [json.loads(line) for line in stream.read_text().splitlines()]
    assert [one["event"] for one in told if "event" in one] == events
    (signals,) = tmp_path.glob("signals_*.edf")
    assert any("alarm source: raised" in text for _, _, text in open_edf(signals).annotations)
