"""A live session: a replay decides as predict does, a source may stop, break or lie, and the journal keeps it all."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zipbrain.edge import EdgeModel, open_edf, predict
from zipbrain.errors import DataError, OptionError
from zipbrain.live.board import BoardReader
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.commands import send_command
from zipbrain.live.decider import Decider
from zipbrain.live.session import Session
from zipbrain.live.source import Chunk, SourceLost
from zipbrain.live.sources.replay import Replay
from zipbrain.live.verify import verify

from ..conftest import SHARED
from ..edge import tiny_onnx
from .made_up_source import Scripted, noise, paced

NAMES = tiny_onnx.convention().ch_names
SFREQ = 200.0
FOUR_S = round(4 * SFREQ)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EdgeModel:
    return EdgeModel(tiny_onnx.save(tmp_path_factory.mktemp("model") / "tiny.onnx"), threads=1)


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The facts of the journal's lines of a kind."""
    return [line["facts"] for line in read_chain(folder / JOURNAL).lines if line["kind"] == kind]


def raised(folder: Path) -> list[str]:
    return [event["alarm"] for event in lines(folder, "event") if event["kind"] == "raised"]


def assert_equal(folder: Path, expected: Any) -> None:
    """The journal's decisions are those of predict, to the last bit."""
    found = lines(folder, "decision")
    assert [row["start_s"] for row in found] == list(expected.starts)
    assert [row["note"] for row in found] == list(expected.flags)
    assert [row["decision"] for row in found] == list(expected.decisions)
    values = np.array([[math.nan if p is None else p for p in row["probabilities"]] for row in found], dtype=np.float32)
    np.testing.assert_array_equal(values, expected.probabilities)


def sizes(seed: int, most: int = 3000) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield int(rng.integers(1, most))


def run(model: EdgeModel, source: Any, out: Path, duration_s: float | None = None, **options: Any) -> Any:
    return Session(model, source, out, **options).run(duration_s)


def test_a_source_that_waits_is_decided_to_its_end_and_nothing_is_skipped(model, tmp_path):
    x = noise(len(NAMES), round(30 * SFREQ))
    source = Scripted(NAMES, SFREQ, np.array_split(x, 17, axis=1), is_live=False)
    summary = run(model, source, tmp_path)
    assert (summary.decided, summary.undecided, summary.skipped) == (14, 0, 0)
    assert summary.source == "ended"
    assert source.is_closed
    report = verify(tmp_path)
    assert report.verdict == "whole"
    assert report.sessions == 1
    assert (tmp_path / JOURNAL).stat().st_mode & 0o077 == 0


def test_a_gap_is_never_decided_across(model, tmp_path):
    x = noise(len(NAMES), round(40 * SFREQ))
    script = [x[:, :4000], Chunk(x[:, 4300:], missing=300)]
    run(model, Scripted(NAMES, SFREQ, script, is_live=False), tmp_path)
    found = lines(tmp_path, "decision")
    assert {row["note"] for row in found} == {"", "gap"}
    for row in found:
        if row["start_s"] * SFREQ < 4300 and row["stop_s"] * SFREQ > 4000:
            assert row["note"] == "gap"
            assert row["decision"] == -1
    assert [row["samples"] for row in lines(tmp_path, "gap")] == [300]


def test_a_silent_source_is_an_alarm_within_three_seconds_and_resumes_by_itself(model, tmp_path):
    x = noise(len(NAMES), round(8 * SFREQ))
    source = Scripted(NAMES, SFREQ, [x[:, :1200], 3.5, x[:, 1200:], 0.5])
    session = Session(model, source, tmp_path)
    moments: list[tuple[float, str]] = []

    def watch(state: Any, news: Any) -> None:
        for event in news:
            if getattr(event, "alarm", "") == "source":
                moments.append((time.monotonic(), event.kind))

    session.run(watch=watch)
    assert [kind for _, kind in moments] == ["raised", "cleared"]
    assert session.acquisition.state == "ended"
    assert [row["note"] for row in lines(tmp_path, "decision")] == ["", "", ""]  # nothing was missing


def test_a_lost_source_comes_back_with_a_gap_and_an_alarm(model, tmp_path):
    x = noise(len(NAMES), round(10 * SFREQ))
    script = [x[:, :1000], SourceLost("unplugged"), SourceLost("unplugged"), x[:, 1000:1020], 0.3, x[:, 1020:], 0.5]
    summary = run(model, Scripted(NAMES, SFREQ, script), tmp_path)
    assert [row["state"] for row in lines(tmp_path, "source")] == ["live", "lost", "live", "ended"]
    assert "source" in raised(tmp_path)
    assert "gap" in raised(tmp_path)
    assert 0 < summary.samples["dropped"] < 2 * SFREQ  # about the half second that it was away, less what came
    assert "gap" in {row["note"] for row in lines(tmp_path, "decision")}


def test_a_source_that_raises_anything_is_lost_not_the_session(model, tmp_path):
    x = noise(len(NAMES), 2000)
    script = [x[:, :1000], ValueError("driver"), np.zeros((3, 10)), Chunk(x[:, 1000:], missing=0), 0.3]
    summary = run(model, Scripted(NAMES, SFREQ, script), tmp_path)
    assert summary.decided == 4
    assert next(row["words"] for row in lines(tmp_path, "source") if row["state"] == "lost") == "driver"


def test_whatever_a_source_gives_the_acquisition_goes_on_and_says_so(model, tmp_path):
    x = noise(len(NAMES), 2000)
    wrong = [Chunk([1.0, 2.0]), Chunk(x[:, :10], np.zeros(3))]  # type: ignore[arg-type]
    script = [x[:, :1000], 0.3, *wrong, Chunk(x[:, 1000:], missing=0), 0.3]
    summary = run(model, Scripted(NAMES, SFREQ, script), tmp_path)
    assert summary.decided == 4
    assert [row["state"] for row in lines(tmp_path, "source")] == ["live", "lost", "lost", "live", "ended"]


def test_the_windows_of_a_long_gap_take_no_memory(model, tmp_path, monkeypatch):
    decide, sizes = Decider.decide, []

    def spy(self: Decider, window: Any, *rest: Any) -> Any:
        sizes.append((window.flag, window.x.nbytes))
        return decide(self, window, *rest)

    monkeypatch.setattr(Decider, "decide", spy)
    x = noise(len(NAMES), 4000)
    script = [x[:, :2000], Chunk(x[:, 2000:], missing=round(600 * SFREQ))]
    run(model, Scripted(NAMES, SFREQ, script, is_live=False), tmp_path)
    assert [size for flag, size in sizes if flag == "gap" and size] == []
    assert sum(flag == "gap" for flag, _ in sizes) > 250
    assert sum(flag == "" for flag, _ in sizes) >= 8


def test_a_model_that_is_slower_than_the_stream_skips_windows_and_says_so(model, tmp_path, monkeypatch):
    look = EdgeModel.look_with_groups

    def slow(self: EdgeModel, *arguments: Any) -> Any:
        time.sleep(0.5)
        return look(self, *arguments)

    monkeypatch.setattr(EdgeModel, "look_with_groups", slow)
    x = noise(len(NAMES), round(8 * SFREQ))
    script = [x[:, :FOUR_S], *paced(x[:, FOUR_S:], SFREQ)]
    summary = run(model, Scripted(NAMES, SFREQ, script), tmp_path, hop_s=0.2)
    assert summary.skipped > 5
    assert summary.decided > 4
    assert len(lines(tmp_path, "skipped")) == summary.skipped
    assert "behind" in raised(tmp_path)
    delays = [row["delay_s"] for row in lines(tmp_path, "decision")]
    assert max(delays) < 1.5  # the newest window wins


def test_a_source_that_waits_is_not_read_ahead_of_the_model(model, tmp_path, monkeypatch):
    decide, waiting = Decider.decide, []

    def spy(self: Decider, window: Any, *rest: Any) -> Any:
        waiting.append(len(session.pipeline._pending))
        return decide(self, window, *rest)

    monkeypatch.setattr(Decider, "decide", spy)
    x = noise(len(NAMES), round(120 * SFREQ))
    source = Scripted(NAMES, SFREQ, np.array_split(x, 240, axis=1), is_live=False)
    session = Session(model, source, tmp_path, hop_s=0.5, has_board=False)
    assert session.run().decided == 233
    assert max(waiting) <= 62  # windows of thirty seconds, which the reader may hold


@pytest.mark.parametrize("is_live", [False, True])
def test_a_session_ends_at_its_duration_with_all_windows_before_it_decided(model, tmp_path, is_live):
    x = noise(len(NAMES), round(25 * SFREQ))
    source = Scripted(NAMES, SFREQ, [x[:, :3000], Chunk(x[:, 3300:], missing=300), None], is_live=is_live)
    summary = run(model, source, tmp_path, 20.5, hop_s=0.5)
    assert (summary.stream_s, summary.skipped) == (20.5, 0)
    assert [row["start_s"] for row in lines(tmp_path, "decision")] == [0.5 * number for number in range(34)]


def test_channels_that_disappear_and_samples_that_are_no_numbers_are_no_decision(model, tmp_path):
    x = noise(len(NAMES), round(24 * SFREQ))
    x[3, 2000:3000] = np.nan
    x[5, 3500:] = 7.0
    script = [part for part in np.array_split(x, 24, axis=1)]
    run(model, Scripted(NAMES, SFREQ, script, is_live=False), tmp_path)
    notes = {row["note"] for row in lines(tmp_path, "decision")}
    assert notes == {"", "NaN", f"flat: {NAMES[5]}"}


def test_a_viewer_can_acknowledge_pause_and_mark(model, tmp_path):
    x = noise(len(NAMES), round(12 * SFREQ))
    session = Session(model, Scripted(NAMES, SFREQ, paced(x, SFREQ)), tmp_path)
    asked: list[str] = []

    def watch(state: Any, news: Any) -> None:
        if state["decision"] is not None and not asked:
            asked.append("pause")
            send_command(tmp_path, {"command": "pause", "seconds": 60, "by": "R. N."})
            send_command(tmp_path, {"command": "mark", "time_s": 1.0, "stop_s": 2.0, "label": "event", "by": ""})

    session.run(8.0, watch)
    assert [row["label"] for row in lines(tmp_path, "mark")] == ["event"]
    assert [row["by"] for row in lines(tmp_path, "event") if row["kind"] == "paused"] == ["R. N."]
    state = BoardReader(tmp_path).state()
    assert state["counters"]["decided"] >= 1
    assert state["alarms"]["paused_until_s"] is not None
    assert set(state["electrodes"]) == set(NAMES)


def test_a_session_goes_on_in_the_same_journal_and_two_at_once_are_refused(model, tmp_path):
    x = noise(len(NAMES), 2000)
    run(model, Scripted(NAMES, SFREQ, [x], is_live=False), tmp_path)
    run(model, Scripted(NAMES, SFREQ, [x], is_live=False), tmp_path)
    report = verify(tmp_path)
    assert (report.verdict, report.sessions) == ("whole", 2)
    first = Session(model, Scripted(NAMES, SFREQ, [None]), tmp_path)
    refused: list[str] = []

    def watch(state: Any, news: Any) -> None:
        with pytest.raises(DataError, match="another session"):
            run(model, Scripted(NAMES, SFREQ, [x]), tmp_path)
        refused.append("yes")
        first.stop()

    first.run(watch=watch)
    assert refused


def test_what_does_not_fit_is_refused_in_one_line(model, tmp_path):
    with pytest.raises(DataError, match="--rename"):
        Session(model, Scripted(("A", "B"), SFREQ, []), tmp_path)
    with pytest.raises(OptionError):
        Session(model, Scripted(NAMES, SFREQ, []), tmp_path, hop_s=0)
    with pytest.raises(OptionError):
        Session(model, Scripted(NAMES, SFREQ, []), tmp_path, audit=0.1)  # no second look
    renamed = Session(model, Scripted(("x", *NAMES[1:]), SFREQ, []), tmp_path, channels={NAMES[0]: "x"})
    assert renamed.ch_names == NAMES


@pytest.mark.parametrize("speed", [math.inf, 60.0])
def test_a_replay_of_a_real_recording_gives_what_predict_gives(model, tmp_path, speed):
    path = next(iter(sorted((SHARED / "data" / "eegmat").glob("*_2.edf"))), None)
    if path is None:
        pytest.skip("no real recording here")
    expected = predict(path, model, hop_s=1.0)
    source = Replay(open_edf(path), speed=speed, sizes=sizes(1) if speed == math.inf else None)
    run(model, source, tmp_path, hop_s=1.0)
    assert_equal(tmp_path, expected)


def test_a_killed_session_loses_at_most_a_second_and_goes_on(model, tmp_path):
    code = (
        "import sys, numpy as np; sys.path.insert(0, 'tests')\n"
        "from live.made_up_source import Scripted, noise, paced\n"
        "from zipbrain.edge import EdgeModel; from zipbrain.live.session import Session\n"
        f"x = noise({len(NAMES)}, 8000); s = Scripted({NAMES!r}, {SFREQ}, [x[:, :800], *paced(x[:, 800:], {SFREQ})])\n"
        "def watch(state, news):\n"
        "    for item in news:\n"
        "        if hasattr(item, 'probabilities'): print(item.start_s, flush=True)\n"
        "Session(EdgeModel(sys.argv[1], threads=1), s, sys.argv[2], hop_s=0.2).run(watch=watch)\n"
    )
    command = [sys.executable, "-c", code, str(model.path), str(tmp_path)]
    for attempt in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        seen = [float(process.stdout.readline()) for _ in range(5)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        report = verify(tmp_path)
        assert report.is_intact
        assert report.sessions == attempt + 1
        kept = [row["start_s"] for row in lines(tmp_path, "decision")]
        assert kept[-1] >= seen  # every decision that was shown is in the journal
    run(model, Scripted(NAMES, SFREQ, [noise(len(NAMES), 2000)], is_live=False), tmp_path)
    assert verify(tmp_path).sessions == 3
