"""The board: fixed size, no torn reads, a writer that died is noticed, commands are bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from zipbrain.errors import DataError, OptionError
from zipbrain.live import commands
from zipbrain.live.board import BOARD, LARGEST_STATE, Board, BoardReader

NAMES = ("FP1", "C3", "O2")


def numbered(first: int, count: int) -> np.ndarray:
    """Samples (3, n) that say their own index and channel."""
    return np.arange(first, first + count, dtype=float) + np.array([[0.0], [0.25], [0.5]])


def test_samples_come_back_as_written_with_nan_for_what_was_skipped(tmp_path):
    with Board(tmp_path, NAMES, 100, seconds=2) as board:
        reader = BoardReader(tmp_path)
        board.samples(0, numbered(0, 30))
        board.samples(50, numbered(50, 10))
        board.samples(55, numbered(55, 15))  # five of them are known already
        first, rows = reader.samples(0, 1000)
        assert (first, reader.written, reader.ch_names, reader.sfreq) == (0, 70, NAMES, 100.0)
        assert np.isnan(rows[30:50]).all()
        np.testing.assert_array_equal(np.delete(rows, np.s_[30:50], 0).T, np.delete(numbered(0, 70), np.s_[30:50], 1))


@pytest.mark.parametrize("size", [1, 7, 64, 200, 450])
def test_the_ring_keeps_the_newest_samples_whatever_the_chunks(tmp_path, size):
    with Board(tmp_path, NAMES, 100, seconds=2) as board:
        for first in range(0, 900, size):
            board.samples(first, numbered(first, min(size, 900 - first)))
        first, rows = BoardReader(tmp_path).samples(0, 900)
        assert first == 700
        np.testing.assert_array_equal(rows.T, numbered(700, 200))


def test_a_long_gap_leaves_nan_and_no_old_sample(tmp_path):
    with Board(tmp_path, NAMES, 100, seconds=2) as board:
        board.samples(0, numbered(0, 200))
        board.samples(1_000_000, numbered(1_000_000, 5))
        first, rows = BoardReader(tmp_path).samples(0, 2_000_000)
        assert first == 1_000_005 - 200
        assert np.isnan(rows[:-5]).all()
        np.testing.assert_array_equal(rows[-5:].T, numbered(1_000_000, 5))


def test_the_file_is_private_and_never_grows(tmp_path):
    with Board(tmp_path / "run", NAMES, 100, seconds=5) as board:
        path = tmp_path / "run" / BOARD
        size, blocks = path.stat().st_size, path.stat().st_blocks
        assert blocks * 512 >= size  # taken from the disk at once
        board.samples(0, numbered(0, 5000))
        board.publish({"words": "x" * (LARGEST_STATE - 100), "value": float("nan")})
        assert path.stat().st_size == size
        assert BoardReader(path.parent).state()["value"] is None
        with pytest.raises(OptionError, match="bytes as JSON"):
            board.publish({"words": "x" * LARGEST_STATE})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (path.parent / commands.FOLDER).stat().st_mode & 0o777 == 0o700


def test_no_read_is_torn_while_another_process_writes_as_fast_as_it_can(tmp_path):
    code = (
        "import sys, numpy as np; from pathlib import Path; from zipbrain.live.board import Board\n"
        "board = Board(Path(sys.argv[1]), ['A', 'B', 'C'], 100, seconds=1)\n"
        "print('ready', flush=True)\n"
        "first = count = 0\n"
        "while True:\n"
        "    rows = np.tile(np.arange(first, first + 37) % 2**20, (3, 1))\n"
        "    board.samples(first, rows); first += 37; count += 1\n"
        "    board.publish({'count': count, 'words': str(count % 10) * (count % 2000)})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        reader, end, states, taken = BoardReader(tmp_path), time.monotonic() + 1.5, 0, 0
        while time.monotonic() < end:
            state = reader.state()
            if state:
                assert state["words"] == str(state["count"] % 10) * (state["count"] % 2000)
                states += 1
            first, rows = reader.samples(reader.oldest, reader.written)
            assert (rows == (np.arange(first, first + len(rows)) % 2**20)[:, None]).all()
            taken += len(rows)
        writer.kill()
    assert states > 50
    assert taken > 50


def test_a_killed_writer_is_noticed_and_its_successor_found(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from zipbrain.live.board import Board\n"
        "board = Board(Path(sys.argv[1]), ['A'], 100, seconds=1); board.publish({'a': 1}); print(1, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        reader = BoardReader(tmp_path)
        time.sleep(0.4)  # longer ago than "just now"
        assert reader.has_writer()
        writer.send_signal(signal.SIGKILL)
    assert not reader.has_writer()
    assert reader.state() == {"a": 1}  # what it knew stays
    before = reader.session
    with Board(tmp_path, NAMES, 256, seconds=1):
        assert reader.refresh()
        assert (reader.session != before, reader.sfreq, reader.has_writer()) == (True, 256.0, True)
        assert not reader.refresh()


def test_a_folder_without_a_board_and_a_damaged_one_are_told_apart(tmp_path):
    reader = BoardReader(tmp_path)
    assert (reader.session, reader.has_writer(), reader.state(), reader.written) == ("", False, None, 0)
    (tmp_path / BOARD).write_bytes(b"something else" * 1000)
    assert reader.refresh()
    assert "no board of this zipbrain" in reader.failure
    assert (reader.session, reader.has_writer(), reader.state(), reader.written) == ("", False, None, 0)
    with Board(tmp_path, NAMES, 100, seconds=1):
        assert reader.refresh()
        assert (reader.failure, reader.has_writer()) == ("", True)


def test_a_board_that_does_not_fit_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="can't be made"):
        Board(tmp_path / "file", NAMES, 100)


def test_commands_travel_in_order_once_and_privately(tmp_path):
    with Board(tmp_path, NAMES, 100, seconds=1) as board:
        commands.send_command(tmp_path, {"command": "acknowledge", "alarm": "seizure", "by": "page"})
        commands.send_command(tmp_path, {"command": "pause", "seconds": 120})
        commands.send_command(tmp_path, {"command": "mark", "time_s": 3, "stop_s": 5.5, "label": "false alarm"})
        files = list((tmp_path / commands.FOLDER).iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert [entry["command"] for entry in board.commands()] == ["acknowledge", "pause", "mark"]
        assert board.commands() == []


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"command": "shutdown"},
        {"command": ["pause"]},
        {"command": "pause", "seconds": 0},
        {"command": "pause", "seconds": 3601},
        {"command": "pause", "seconds": True},
        {"command": "pause", "seconds": float("nan")},
        {"command": "resume", "path": "/etc"},
        {"command": "acknowledge", "alarm": "x" * 81},
        {"command": "acknowledge", "alarm": "two\nlines"},
        {"command": "mark", "time_s": -1, "label": "event"},
        {"command": "mark", "time_s": 5, "stop_s": 4, "label": "event"},
        {"command": "mark", "time_s": 5, "label": "seizure"},
    ],
)
def test_wrong_commands_are_refused_on_both_sides(tmp_path, wrong):
    with Board(tmp_path, NAMES, 100, seconds=1) as board:
        with pytest.raises(OptionError):
            commands.send_command(tmp_path, wrong)
        place = tmp_path / commands.FOLDER / f"{1:020d}-00000000.json"
        place.write_text(json.dumps(wrong))
        assert (board.commands(), board.refused, place.exists()) == ([], 1, False)


def test_commands_for_a_session_that_is_over_reach_no_other_and_a_full_folder_refuses(tmp_path):
    Board(tmp_path, NAMES, 100, seconds=1).close()
    for _ in range(commands.MOST_WAITING):
        commands.send_command(tmp_path, {"command": "resume"})
    with pytest.raises(DataError, match="wait already"):
        commands.send_command(tmp_path, {"command": "resume"})
    with Board(tmp_path, NAMES, 100, seconds=1) as board:
        assert board.commands() == []


def test_writing_costs_microseconds_while_readers_read(tmp_path):
    with Board(tmp_path, [f"E{number}" for number in range(23)], 256, seconds=60) as board:
        stop = threading.Event()

        def read() -> None:
            reader = BoardReader(tmp_path)
            while not stop.wait(0.01):
                reader.samples(reader.written - 256, reader.written)
                reader.state()

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        rows, spent = np.zeros((23, 26)), []
        for number in range(200):
            begun = time.perf_counter()
            board.samples(26 * number, rows)
            board.publish({"number": number})
            spent.append(time.perf_counter() - begun)
        stop.set()
        for thread in threads:
            thread.join()
    assert np.median(spent) < 0.005


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system can't take a file's size at once")
def test_a_full_disk_is_said_before_anything_is_recorded(tmp_path, monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DataError, match="No space left"):
        Board(tmp_path, NAMES, 100)
    assert not (tmp_path / BOARD).exists()
