"""The messages of a bed: bounded whoever lags behind, and true to the time of the samples."""

from __future__ import annotations

import numpy as np

from zipbrain.live.board import Board
from zipbrain.live.page.bed_messages import MOST_WAITING, BedMessages

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
