"""Windows of a stream: those of the finished recording to the last bit, however its samples come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SHARED
from data.memory_recording import MemoryRecording
from zipbrain.errors import DataError, OptionError, ShapeError
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import windows
from zipbrain.signal.edf import open_edf
from zipbrain.signal.plausibility import Amplitudes
from zipbrain.signal.processing import Processing
from zipbrain.signal.window_stream import StreamWindow, WindowStream

NAMES = ("EEG FP1-REF", "EEG C3-REF", "EEG O1-REF", "EKG")
LONG = {"band": (0.1, 75.0), "notch": 50.0}
SHORT = {"band": (2.0, 20.0), "cut_sfreq": 50.0, "sfreq": 50.0}


def convention(**changes: Any) -> Convention:
    """Three channels, one of them a difference, without filter."""
    montage = ("FP1", ("C3", "O1"), "O1")
    plain = Convention("labram", "own", montage, ("A", "B", "C"), None, None, None, 64.0, 2.0, 0.7, "none")
    return replace(plain, **changes)


def eeg(n: int, seed: int = 0) -> np.ndarray:
    """Four channels of made-up microvolts with drifts and an offset."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((4, n)).cumsum(axis=1)
    return 100 + 20 * x / max(x.std(), 1) + 10 * generator.standard_normal((4, n))


def portions(seed: int, most: int) -> Callable[[], int]:
    """Sizes of portions, drawn at random."""
    generator = np.random.default_rng(seed)
    return lambda: int(generator.integers(0, most))


def stream_of(
    stream: WindowStream, x: np.ndarray, size: Callable[[], int], gaps: Sequence[tuple[int, int]] = ()
) -> list[StreamWindow]:
    """Push all samples, and skip those of the gaps."""
    found, edges = [], [*(place for gap in gaps for place in gap), x.shape[1]]
    begin = 0
    for number, end in enumerate(edges):
        if number % 2:
            found += stream.skip(end - begin)
        else:
            for start in _cut(begin, end, size):
                found += stream.push(x[:, start[0] : start[1]])
        begin = end
    return found + stream.finish()


def _cut(begin: int, end: int, size: Callable[[], int]) -> list[tuple[int, int]]:
    found = []
    while begin < end:
        stop = min(begin + size(), end)
        found.append((begin, stop))
        begin = stop
    return found


def assert_same(got: Sequence[StreamWindow], recording: Any, used: Convention, hop_s: float | None = None) -> None:
    batches = list(windows(recording, used, hop_s=hop_s, batch=7))
    assert [window.start_s for window in got] == [start for batch in batches for start in batch.starts]
    assert [window.flag for window in got] == [flag for batch in batches for flag in batch.flags]
    x = np.stack([window.x for window in got])
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, np.concatenate([batch.x for batch in batches]))


@pytest.mark.skipif(not (SHARED / "data" / "eegmat").is_dir(), reason="needs the real recordings in ../shared/data")
@pytest.mark.parametrize("changes", [{}, LONG], ids=["EEGMAT's", "0.1 to 75 Hz and notch"])
def test_a_real_recording_as_a_stream_gives_the_windows_of_its_file(changes: dict[str, Any]) -> None:
    from zipbrain.data import convention as known

    used = replace(known("labram", "eegmat"), **changes)
    for seed, path in enumerate(sorted((SHARED / "data" / "eegmat").glob("*.edf"))):
        recording = open_edf(path)
        before = len(recording.notes)
        stream = WindowStream(recording.ch_names, recording.sfreq, used, hop_s=2.5, limits=recording.limits)
        got = stream_of(stream, recording.read(0, recording.n_times), portions(seed, 400))
        assert_same(got, recording, used, hop_s=2.5)
        assert stream.notes == recording.notes[before:]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hop_s": 5.3},
        {"cut_sfreq": 50.0, "sfreq": 50.0},
        {"cut_sfreq": 100.0, "sfreq": 64.0},
        {"cut_sfreq": 63.9, "sfreq": 63.9, "window_s": 1.003},
        {"band": (1.0, None), "cut_sfreq": 50.0, "sfreq": 64.0, "window_resampling": "nearest"},
        {"band": (0.1, 20.0), "notch": 25.0},
        {"band": (None, 75.0)},
        {"band": (2.0, 20.0), "filter_windows": True, "sfreq": 50.0},
        {"resampling": "fft", "band": (2.0, None)},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
@pytest.mark.parametrize("n", [128, 700, 64 * 60 + 13])
def test_every_way_of_cutting_gives_the_windows_of_the_recording(changes: dict[str, Any], n: int) -> None:
    x, used = eeg(n), convention(**changes)
    for most in (2, 50, 10_000):
        got = stream_of(WindowStream(NAMES, 64.0, used), x, portions(n, most))
        assert_same(got, MemoryRecording(x, NAMES, 64.0), used)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(150, 1500),
    most=st.integers(2, 400),
    seed=st.integers(0, 9),
    gap=st.tuples(st.integers(1, 1400), st.integers(1, 400)),
    hole=st.tuples(st.integers(0, 3), st.integers(0, 1400), st.integers(1, 30)),
    still=st.tuples(st.integers(0, 3), st.integers(0, 1400), st.integers(1, 400)),
    changes=st.sampled_from([{}, SHORT, {"filter_windows": True, **SHORT, "cut_sfreq": None}, {"band": (0.3, None)}]),
)
def test_gaps_holes_dead_and_saturated_electrodes_are_flagged_as_in_the_recording(
    n: int, most: int, seed: int, gap: Any, hole: Any, still: Any, changes: dict[str, Any]
) -> None:
    x, used = eeg(n, seed), convention(**changes)
    row, start, length = still
    x[row, start : start + length] = 400.0 if seed % 2 else 3.0
    row, start, length = hole
    x[row, start : start + length] = np.nan if seed % 3 else np.inf
    gaps = [(gap[0], min(sum(gap), n - 1))] if gap[0] < n - 1 else []
    for start, stop in gaps:
        x[:, start:stop] = np.nan
    limits = np.tile([-400.0, 400.0], (4, 1))
    got = stream_of(WindowStream(NAMES, 64.0, used, limits=limits), x, portions(seed, most), gaps)
    assert_same(got, MemoryRecording(x, NAMES, 64.0, gaps, limits), used)


@given(
    n=st.integers(1, 3000),
    most=st.integers(2, 1500),
    rates=st.sampled_from([(64, 64), (64, 50), (50, 64), (64, 63), (60, 20), (20, 60), (2, 200), (100, 99.99)]),
    band=st.sampled_from([None, (1.0, 8.0), (None, 8.0), (0.05, None)]),
)
@settings(deadline=None)
def test_a_processed_stream_has_the_same_bits_in_any_portions(n: int, most: int, rates: Any, band: Any) -> None:
    if band is not None and band[1] is not None and rates[0] <= 16:
        band = None
    x, processing = eeg(n), Processing.design(*rates, None if rates[0] == 2 else band)
    once, stream = processing.stream(), processing.stream()
    wanted = np.concatenate((once.push(x), once.finish()), axis=1)
    parts = [stream.push(x[:, start:stop]) for start, stop in _cut(0, n, portions(n, most))]
    np.testing.assert_array_equal(np.concatenate((*parts, stream.finish()), axis=1), wanted)
    blocks = list(processing.blocks(lambda start, stop: x[:, start:stop], n, block=most))
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), wanted)
    np.testing.assert_allclose(wanted, processing.whole(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rate", [250.0, 256.0, 500.0])
@pytest.mark.parametrize("changes", [{}, LONG, {"band": (0.5, 75.0)}], ids=["no filter", "0.1 Hz", "0.5 Hz"])
def test_a_window_comes_when_the_filter_has_seen_enough(rate: float, changes: dict[str, Any]) -> None:
    """The delay that is stated holds for every window; single samples are pushed around each."""
    used = convention(cut_sfreq=200.0, sfreq=200.0, hop_s=1.3, **changes)
    stream = WindowStream(NAMES, rate, used)
    x = eeg(int(50 * rate))
    late = []
    for start in range(0, x.shape[1], 5):
        for window in stream.push(x[:, start : start + 5]):
            late.append((start + 5 - window.stop) / rate - stream.reach_s)
    assert len(late) > 15
    assert min(late) >= -1e-9
    assert max(late) <= stream.late_s + 6 / rate
    assert stream.late_s < 0.7


def test_memory_does_not_grow_with_the_stream() -> None:
    used = convention(cut_sfreq=50.0, sfreq=50.0, band=(1.0, None), hop_s=1.0)
    stream, x = WindowStream(NAMES, 64.0, used), eeg(64)
    peaks = []
    tracemalloc.start()
    for minutes in (1, 4):
        tracemalloc.reset_peak()
        for _ in range(60 * minutes):
            stream.push(x)
            stream.skip(2)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_a_splice_silences_what_depends_on_both_sides_of_it() -> None:
    used, x = convention(**SHORT), eeg(1600)
    stream = WindowStream(NAMES, 64.0, used)
    stream.skip(0)  # before the first sample and behind the last one nothing was cut out
    got = stream.push(x[:, :800])
    stream.skip(0)
    got += stream.push(x[:, 800:])
    stream.skip(0)
    recording = MemoryRecording(x, NAMES, 64.0, annotations=[(800 / 64, 0.0, "boundary")])
    assert_same(got + stream.finish(), recording, used)
    assert {window.flag for window in got} == {"", "gap"}


def test_what_a_source_does_to_its_array_afterwards_changes_nothing() -> None:
    used, x = convention(**SHORT), eeg(1000)
    stream, buffer, got = WindowStream(NAMES, 64.0, used), np.empty((4, 10)), []
    for start in range(0, 1000, 10):
        buffer[:] = x[:, start : start + 10]
        got += stream.push(buffer)
    assert_same(got + stream.finish(), MemoryRecording(x, NAMES, 64.0), used)


def watched(x: np.ndarray) -> MemoryRecording:
    """A recording whose amplitudes were looked at when it was opened."""
    recording = MemoryRecording(x, NAMES, 64.0)
    recording.amplitudes = Amplitudes(np.zeros(4), np.zeros(4, dtype=bool))
    return recording


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1e3, 1e6])
def test_a_wrong_unit_is_refused_after_ten_seconds_by_stream_and_recording_in_one_sentence(factor: float) -> None:
    x = np.concatenate((np.zeros((4, 700)), eeg(3000) * factor), axis=1)  # what is flat does not count
    stream = WindowStream(NAMES, 64.0, convention())
    stream.push(x[:, :700])
    with pytest.raises(DataError, match=r"is no EEG.*so its unit seems wrong") as refused:
        stream_of(stream, x[:, 700:], portions(0, 50))
    assert stream.seen < 1400
    with pytest.raises(DataError) as same:
        list(windows(watched(x), convention()))
    assert str(same.value).partition(": ")[2] == str(refused.value).partition(": ")[2]
    free = stream_of(WindowStream(NAMES, 64.0, convention(), check=False), x, portions(0, 500))
    assert_same(free, MemoryRecording(x, NAMES, 64.0), convention())


@pytest.mark.parametrize("rows", [(0, 1, 2), (1,)])
def test_amplitudes_that_become_no_eeg_are_noted_by_stream_and_recording_and_end(rows: tuple[int, ...]) -> None:
    x = eeg(64 * 200)
    x[rows, 64 * 60 : 64 * 120] *= 1e4
    stream, said = WindowStream(NAMES, 64.0, convention()), []
    for start in range(0, x.shape[1], 64):
        stream.push(x[:, start : start + 64])
        said.append(stream.implausible)
    stream.finish()
    assert not any(said[:69])
    assert "no EEG" in said[115] if len(rows) > 1 else "channel EEG C3-REF: a typical deviation" in said[115]
    assert not any(said[180:])
    recording = watched(x)
    list(windows(recording, convention()))
    assert len(stream.notes) == 1
    assert recording.notes == stream.notes


def test_a_loose_or_a_dead_electrode_is_no_wrong_unit() -> None:
    x = eeg(64 * 100)
    x[0, : 64 * 30] *= 300
    x[1] = 3.0
    stream = WindowStream(NAMES, 64.0, convention())
    for start in range(0, x.shape[1], 64):
        stream.push(x[:, start : start + 64])
        assert not stream.implausible
    assert not stream.notes


def test_a_causal_filter_waits_for_nothing_and_a_gap_silences_only_what_comes_after_it() -> None:
    used = convention(band=(1.0, 20.0), hop_s=0.5)
    x, gap = eeg(64 * 30), (64 * 15, 64 * 16)
    stream, plain = WindowStream(NAMES, 64.0, used, is_causal=True), WindowStream(NAMES, 64.0, used)
    assert stream.reach_s == 0
    assert plain.reach_s > 1.5
    assert 0 < stream.delay_s < 0.1
    assert plain.delay_s == 0
    assert any("minimum phase" in note for note in stream.notes)
    got = stream_of(stream, x, portions(0, 20), [gap])
    kernel = Processing.design(64, 64, (1.0, 20.0), is_causal=True).filter
    assert kernel is not None
    flagged = [window.flag for window in got]
    touched = [w.stop > gap[0] and w.start < gap[1] + kernel.before for w in got]
    assert flagged == ["gap" if is_touched else "" for is_touched in touched]
    other = stream_of(WindowStream(NAMES, 64.0, used, is_causal=True), x, portions(1, 300), [gap])
    np.testing.assert_array_equal(np.stack([w.x for w in other]), np.stack([w.x for w in got]))


@pytest.mark.parametrize("changes", [{}, {"band": (1.0, 20.0), "filter_windows": True}], ids=["no filter", "alone"])
def test_a_causal_filter_is_refused_where_nothing_waits(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="nothing to wait for"):
        WindowStream(NAMES, 64.0, convention(**changes), is_causal=True)


def test_samples_in_other_units_are_converted() -> None:
    x = eeg(400)
    got = stream_of(WindowStream(NAMES, 64.0, convention(), units="mV"), x * 1e-3, portions(0, 50))
    np.testing.assert_allclose(got[0].x[0], x[0, :128].astype(np.float32), rtol=1e-6)


def test_a_recording_shorter_than_a_window_gives_none() -> None:
    assert WindowStream(NAMES, 64.0, convention()).finish() == []
    assert stream_of(WindowStream(NAMES, 64.0, convention(**SHORT)), eeg(127), portions(0, 9)) == []


def test_what_no_stream_can_do_is_refused() -> None:
    with pytest.raises(OptionError, match=r"by its whole spectrum.*: predict the finished recording"):
        WindowStream(NAMES, 64.0, convention(resampling="fft", cut_sfreq=50.0))
    with pytest.raises(DataError, match="stream: has no P3; its channels are EEG FP1-REF"):
        WindowStream(NAMES, 64.0, convention(montage=("P3",)))
    with pytest.raises(DataError, match="stream: its 20 Hz hold frequencies up to 10 Hz"):
        WindowStream(NAMES, 20.0, convention())
    with pytest.raises(DataError, match=r"stream: its 64.0\d+ Hz can't become"):
        WindowStream(NAMES, 64.000777, convention(cut_sfreq=200.0, sfreq=200.0, band=(0.1, 50.0)))
    with pytest.raises(OptionError, match="montage is empty"):
        WindowStream(NAMES, 64.0, convention(montage=()))
    with pytest.raises(OptionError, match="hop_s"):
        WindowStream(NAMES, 64.0, convention(), hop_s=0)
    with pytest.raises(OptionError, match="units"):
        WindowStream(NAMES, 64.0, convention(), units="tesla")
    stream = WindowStream(NAMES, 64.0, convention())
    with pytest.raises(ShapeError, match=r"the stream has 4 channels"):
        stream.push(np.zeros((3, 10)))
    with pytest.raises(OptionError, match="missing"):
        stream.skip(-1)
    stream.finish()
    with pytest.raises(OptionError, match="takes no more samples"):
        stream.push(np.zeros((4, 10)))
