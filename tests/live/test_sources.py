"""Sources by name, replays of files, and streams of another process by the Lab Streaming Layer."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from zipbrain.data.synthetic_recording import SyntheticRecording
from zipbrain.edge import EdgeModel
from zipbrain.errors import DataError, OptionError
from zipbrain.live.session import Session
from zipbrain.live.source import Chunk, Source, SourceEnded, SourceLost
from zipbrain.live.sources import list_streams, open_source
from zipbrain.live.sources.replay import Replay
from zipbrain.live.stamps import StampAudit

from ..edge import tiny_onnx


def drain(source: Source) -> tuple[np.ndarray, list[int]]:
    """All samples, NaN where they are missing, and the sizes of the chunks."""
    parts, sizes = [], []
    while True:
        try:
            chunk = source.read(0.1)
        except SourceEnded:
            return np.concatenate(parts, axis=1), sizes
        if chunk is not None:
            parts += [np.full((len(source.ch_names), chunk.missing or 0), np.nan), chunk.samples]
            sizes.append(chunk.samples.shape[1])


@pytest.mark.parametrize("speed", [math.inf, 200.0])
def test_a_replay_gives_the_recording_with_its_gaps(speed):
    recording = SyntheticRecording(20, gaps=[(3.0, 4.5), (10.0, 10.005)])
    began = time.monotonic()
    found, _ = drain(Replay(recording, speed=speed))
    took = time.monotonic() - began
    np.testing.assert_array_equal(found, recording.read(0, recording.n_times))
    assert speed == math.inf or took >= 0.099


def test_a_replay_cuts_chunks_as_asked():
    recording = SyntheticRecording(3)
    _, sizes = drain(Replay(recording, speed=math.inf, sizes=[7, 100, 1, 400]))
    assert sizes[:4] == [7, 100, 1, 400]


def test_a_synthetic_recording_is_the_same_however_it_is_read():
    recording = SyntheticRecording(130, every_s=30)
    whole = recording.read(0, recording.n_times)
    parts = [recording.read(start, min(start + 777, recording.n_times)) for start in range(0, recording.n_times, 777)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    assert len(recording.happenings) > 1
    assert 5 < np.median(np.abs(whole)) < 50  # microvolts


@pytest.mark.parametrize(
    "given", ["", "lsl", "lsl:", "tcp:x", "replay:x.edf?speed=fast", "replay:x.edf?pace=1", "replay:x.edf?live=1"]
)
def test_a_source_that_is_written_wrong_is_refused(given):
    with pytest.raises(OptionError):
        open_source(given)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        open_source(f"replay:{tmp_path / 'x.edf'}")


@pytest.fixture
def stream() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts streams in processes of their own, and ends them."""
    pytest.importorskip("pylsl")
    started: list[subprocess.Popen[str]] = []

    def start(
        name: str, channels: str = "F3,C3,O1", rate: float = 256, unit: str = "microvolts", identity: str = "id"
    ) -> None:
        script = Path(__file__).with_name("lsl_stream.py")
        command = [sys.executable, str(script), name, channels, str(rate), "60", unit, identity]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def listen(source: Source, seconds: float) -> tuple[list[Chunk], list[float], int]:
    """Chunks, when they came, and how often the stream was lost."""
    chunks, times, lost, began = [], [], 0, time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            chunk = source.read(0.1)
        except SourceLost:
            lost += 1
            continue
        if chunk is not None:
            chunks.append(chunk)
            times.append(time.monotonic())
    return chunks, times, lost


def test_a_stream_is_read_in_microvolts_and_found_again_after_it_was_killed(stream):
    name = f"zipbrain-{os.getpid()}"
    process = stream(name, unit="volts")
    source = open_source(f"lsl:{name}")
    assert (source.ch_names, source.sfreq) == (("F3", "C3", "O1"), 256.0)
    assert name in [found["source"].removeprefix("lsl:") for found in list_streams()]
    chunks, _, _ = listen(source, 1.0)
    x = np.concatenate([chunk.samples for chunk in chunks], axis=1)
    assert x.shape[1] > 128
    assert 1e7 < x.std() < 3e7  # twenty volts by its own account
    process.kill()
    process.wait()
    stream(name, unit="volts")
    back = time.monotonic()
    more, times, lost = listen(source, 3.0)
    assert lost
    assert times[-1] > back
    assert min(one for one in times if one > back) - back < 3.0
    audit = StampAudit(256.0)
    for chunk, at in zip([*chunks, *more], [0.0] * len(chunks) + times, strict=True):
        audit.see(chunk, at)
    assert set(audit.counts) <= {"dropped", "jump"}
    source.close()


def test_a_stream_that_comes_back_otherwise_stays_lost(stream):
    name = f"zipbrain-other-{os.getpid()}"
    process = stream(name)
    source = open_source(f"lsl:{name}")
    process.kill()
    process.wait()
    stream(name, channels="F3,C3", rate=128)
    chunks, _, lost = listen(source, 2.5)
    assert lost > 1
    assert all(chunk.samples.shape[0] == 3 for chunk in chunks)
    assert (source.ch_names, source.sfreq) == (("F3", "C3", "O1"), 256.0)


def test_another_stream_of_the_name_never_takes_the_place_of_one_that_was_lost(stream):
    name = f"zipbrain-bed-{os.getpid()}"
    process = stream(name)
    source = open_source(f"lsl:{name}")
    listen(source, 0.5)
    stream(name, identity="of-another-bed")
    process.kill()
    process.wait()
    listen(source, 0.5)  # what liblsl holds still
    chunks, _, lost = listen(source, 1.5)
    assert lost
    assert not chunks
    source.close()


def test_two_streams_of_one_name_are_refused(stream):
    name = f"zipbrain-twin-{os.getpid()}"
    stream(name)
    stream(name, rate=128)
    with pytest.raises(DataError, match="2 streams"):
        open_source(f"lsl:{name}")


def test_a_session_decides_what_the_example_of_pylsl_sends(tmp_path):
    pytest.importorskip("pylsl")
    name, channels = f"zipbrain-example-{os.getpid()}", tiny_onnx.convention().ch_names
    example = [sys.executable, "-m", "pylsl.examples.SendData", "-s", "200", "-c", str(len(channels)), "-n", name]
    process = subprocess.Popen(example, stdout=subprocess.DEVNULL)
    try:
        source = open_source(f"lsl:{name}")
        model = EdgeModel(tiny_onnx.save(tmp_path / "tiny.onnx"), threads=1)
        named = {electrode: str(number) for number, electrode in enumerate(channels, 1)}
        summary = Session(model, source, tmp_path / "bed", hop_s=0.5, channels=named, check=False).run(6.0)
    finally:
        process.kill()
        process.wait()
    assert summary.decided + summary.skipped > 2
    assert summary.undecided == 0
    assert summary.samples["received"] >= 1200
