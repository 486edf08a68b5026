"""The messages of a bed: bounded whoever lags behind, true to the samples' times, and honest about what they lack."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from zipbrain.live.board import Board
from zipbrain.live.journal import Journal
from zipbrain.live.page import bed_messages
from zipbrain.live.page.bed_messages import MOST_WAITING, BedMessages
from zipbrain.live.page.journal_tail import FIRST_BYTES, STEP_BYTES

from .page_message import read_message


def test_a_viewer_that_lags_behind_skips_to_the_newest_message(tmp_path):
    with Board(tmp_path, ["C3"], 100, seconds=10) as board:
        bed = BedMessages(tmp_path, "bed")
        for first in range(0, 1000, 10):
            board.samples(first, np.zeros((1, 10)))
            bed.advance({})
        assert len(bed.messages) == MOST_WAITING  # memory is bounded, whoever listens
        assert read_message(bed.messages[-1])[0]["first"] == 990


def test_fast_signals_are_averaged_for_the_browser_without_shifting_them(tmp_path):
    with Board(tmp_path, ["C3"], 2048, seconds=10) as board:
        bed = BedMessages(tmp_path, "bed")
        board.samples(0, np.arange(4096.0)[None])
        assert bed.rate == 2048 / 7
        first, rows = bed.samples(10, 20)
        np.testing.assert_allclose(rows[:, 0], 7 * np.arange(first, first + 10) + 3)


def news(bed: BedMessages) -> list[dict[str, Any]]:
    """The headers of as many messages as the longest part of a journal takes."""
    return [read_message(bed.advance({}))[0] for _ in range(FIRST_BYTES // STEP_BYTES + 2)]


def raise_alarm(journal: Journal, time_s: float) -> None:
    journal.write("event", time_s=time_s, kind="raised", alarm="seizure", category="physiological", words="", by="")


def test_what_happened_is_whole_if_the_sessions_first_line_was_read(tmp_path):
    facts = {"model": "sha256:made up", "recipe": {}, "thresholds": {}}
    with Board(tmp_path, ["C3"], 100, seconds=10), Journal(tmp_path, facts) as journal:
        early = BedMessages(tmp_path, "bed")
        raise_alarm(journal, 1.0)
        journal.write("decision", start_s=0.0, stop_s=10.0, probabilities=[0.1, 0.9], decision=1, note="")
        assert news(early)[-1]["is_whole"]
        for _ in range(FIRST_BYTES // 50_000 + 1):  # as long as hours of decisions
            journal.write("filler", words="x" * 50_000)
        raise_alarm(journal, 7200.0)
        assert news(early)[-1]["is_whole"]  # it was there from the beginning
        late = BedMessages(tmp_path, "bed")
        assert not any(header["is_whole"] for header in news(late))
        assert [len(bed.happenings) for bed in (early, late)] == [2, 1]
        assert json.loads(late.hello())["is_whole"] is False
    # the next session in the same folder
    with Board(tmp_path, ["C3"], 100, seconds=10), Journal(tmp_path, facts) as journal:
        raise_alarm(journal, 1.0)
        assert news(late)[-1]["is_whole"]
        assert not news(BedMessages(tmp_path, "bed"))[0]["is_whole"]  # on its way to the end


def test_what_happened_is_not_whole_where_the_oldest_had_to_go(tmp_path, monkeypatch):
    monkeypatch.setattr(bed_messages, "_MOST_HAPPENINGS", 3)
    facts = {"model": "sha256:made up", "recipe": {}, "thresholds": {}}
    with Board(tmp_path, ["C3"], 100, seconds=10), Journal(tmp_path, facts) as journal:
        bed = BedMessages(tmp_path, "bed")
        raise_alarm(journal, 1.0)
        assert news(bed)[-1]["is_whole"]
        for second in (2.0, 3.0, 4.0):
            raise_alarm(journal, second)
        assert not news(bed)[-1]["is_whole"]
