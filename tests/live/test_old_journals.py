"""A journal whose events have the key `priority`, as zipbrain wrote it once: verified, scored, shown and continued."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from zipbrain.live.alarms import latched_alarms
from zipbrain.live.board import Board
from zipbrain.live.chain import read_chain
from zipbrain.live.evaluate import evaluate
from zipbrain.live.journal import Journal
from zipbrain.live.page.bed_messages import BedMessages
from zipbrain.live.verify import verify

OLD = Path(__file__).with_name("old_journal") / "journal.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(OLD, tmp_path)
    return tmp_path


def test_its_chain_verifies(folder):
    assert b'"priority":"physiological"' in OLD.read_bytes()
    assert verify(folder).verdict == "whole"


def test_its_alarms_are_scored(folder):
    (folder / "truth.csv").write_text("onset,duration\n9,2\n")
    (score,) = evaluate(folder, folder / "truth.csv").scores
    assert (score.alarm, score.alarms, score.detected, score.false_alarms) == ("seizure", 1, 1, 0)


def test_its_latched_alarm_is_known_to_the_session_that_continues_it(folder):
    with Journal(folder, {"model": "", "recipe": {}, "thresholds": {}}) as journal:
        assert latched_alarms(journal.earlier_events) == ["seizure"]
        journal.write("event", time_s=0.0, kind="kept", alarm="seizure", category="physiological", words="", by="")
    assert verify(folder).verdict == "whole"
    events = [line["facts"] for line in read_chain(folder / "journal.jsonl").lines if line["kind"] == "event"]
    assert ["category" in event for event in events] == [False] * (len(events) - 1) + [True]


def test_the_page_shows_its_alarms_and_those_of_a_board_of_its_time(folder):
    old: dict[str, Any] = {"name": "seizure", "priority": "physiological", "state": "latched"}
    with Board(folder, ["C3"], 100, seconds=10) as board:
        board.publish({"alarms": {"alarms": [old], "paused_until_s": None}})
        bed = BedMessages(folder, "bed")
        bed.advance({})
        assert bed.raised is not None
        assert (bed.raised["alarm"], bed.raised["category"]) == ("seizure", "physiological")
        assert [line["kind"] for line in bed.happenings] == ["raised", "ended"]
        assert bed.state["alarms"]["alarms"] == [{"name": "seizure", "category": "physiological", "state": "latched"}]
