"""The audit of time stamps: what was dropped, duplicated, jumbled, late or set is found, and nothing is glued."""

from __future__ import annotations

import numpy as np
import pytest

from zipbrain.live.source import Chunk
from zipbrain.live.stamps import StampAudit

SFREQ = 256.0
SIZE = 32  # samples of a chunk


class Stream:
    """A made-up stream: sample i has the value i in every channel."""

    def __init__(self, seconds: float = 20.0, jitter: float = 0.0, drift_ppm: float = 0.0) -> None:
        n = round(seconds * SFREQ)
        self.values = np.arange(n, dtype=np.float64)
        rng = np.random.default_rng(0)
        self.stamps = 1000.0 + self.values / SFREQ * (1 + 1e-6 * drift_ppm)
        self.stamps += rng.uniform(0, jitter, n)
        self.arrivals = self.values / SFREQ  # of each sample, by the monotonic clock

    def audit(self) -> tuple[StampAudit, np.ndarray]:
        """The audit, and the values in their places: NaN where samples are missing."""
        audit, runs, rest = StampAudit(SFREQ), [], len(self.values) - len(self.values) % SIZE
        for start in range(0, rest, SIZE):
            these = slice(start, start + SIZE)
            chunk = Chunk(np.tile(self.values[these], (2, 1)), self.stamps[these])
            runs += audit.see(chunk, float(self.arrivals[these][-1]))
        runs += audit.flush()
        parts = [np.concatenate((np.full(run.missing, np.nan), run.samples[0])) for run in runs]
        return audit, np.concatenate(parts)

    def keep(self, which: np.ndarray) -> Stream:
        self.values, self.stamps, self.arrivals = self.values[which], self.stamps[which], self.arrivals[which]
        return self


def in_place(found: np.ndarray) -> bool:
    """True if every sample lies at its own place."""
    places = np.flatnonzero(np.isfinite(found))
    return bool((found[places] == places).all())


@pytest.mark.parametrize("jitter", [0.0, 0.5e-3, 1e-3])
def test_a_regular_stream_goes_through_unchanged(jitter):
    audit, found = Stream(jitter=jitter).audit()
    assert not audit.counts
    assert in_place(found)
    assert len(found) == 20 * 256


@pytest.mark.parametrize("count", [1, 7, 40, 600])
@pytest.mark.parametrize("where", [1000, 1024, 1031])
def test_dropped_samples_become_a_gap_of_their_length(count, where):
    stream = Stream()
    kept = np.ones(len(stream.values), dtype=bool)
    kept[where : where + count] = False
    audit, found = stream.keep(kept).audit()
    assert audit.counts == {"dropped": count}
    assert in_place(found)


def test_a_gap_among_jittering_stamps_is_found_to_the_sample():
    stream = Stream(jitter=1e-3)
    kept = np.ones(len(stream.values), dtype=bool)
    kept[2000:2100] = False
    audit, found = stream.keep(kept).audit()
    assert list(audit.counts) == ["dropped"]
    assert abs(audit.counts["dropped"] - 100) <= 1
    assert abs(len(found) - 20 * 256) <= SIZE + 1


@pytest.mark.parametrize("count", [1, 20, 200])
def test_samples_that_come_twice_are_left_out(count):
    stream = Stream()
    places = np.arange(len(stream.values))
    audit, found = stream.keep(np.concatenate((places[:1500], places[1500 - count : 1500], places[1500:]))).audit()
    assert audit.counts == {"duplicated": count}
    assert in_place(found)
    assert np.isfinite(found).all()


def test_jumbled_samples_are_put_in_order():
    stream = Stream()
    places = np.arange(len(stream.values))
    places[1500:1510] = np.random.default_rng(1).permutation(places[1500:1510])
    places[2000], places[2001] = 2001, 2000
    audit, found = stream.keep(places).audit()
    assert set(audit.counts) == {"jumbled"}
    assert in_place(found)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, -0.7, 5.0])
def test_a_clock_that_is_set_is_followed_without_a_gap(seconds):
    stream = Stream()
    stream.stamps[2345:] += seconds
    audit, found = stream.audit()
    assert audit.counts == {"jump": 1}
    assert in_place(found)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, -40.0])
def test_a_clock_that_was_set_while_the_stream_was_away_hides_no_gap(seconds):
    stream, kept = Stream(60.0), np.ones(60 * 256, dtype=bool)
    kept[2560:10240] = False
    stream.stamps[10240:] += seconds
    audit, found = stream.keep(kept).audit()
    assert audit.counts["jump"] == 1
    assert audit.counts["dropped"] == pytest.approx(7680, abs=2 * SIZE)
    assert np.isnan(found[2560 : 2560 + 7600]).all()


def test_one_late_stamp_is_no_gap():
    stream = Stream()
    stream.stamps[2345] += 0.02
    audit, found = stream.audit()
    assert not audit.counts["dropped"]
    assert in_place(found)


@pytest.mark.parametrize("ppm", [200.0, -200.0])
def test_a_drifting_clock_is_measured_and_makes_no_gap(ppm):
    audit, found = Stream(120.0, jitter=1e-4, drift_ppm=ppm).audit()
    assert not audit.counts
    assert in_place(found)
    assert audit.drift_ppm == pytest.approx(ppm, abs=20)


def test_samples_that_arrive_late_in_a_burst_are_counted_and_no_gap():
    stream = Stream()
    stream.arrivals[2560:3072] = stream.arrivals[3071]
    audit, found = stream.audit()
    assert set(audit.counts) == {"late"}
    assert in_place(found)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_stamps_no_sample_is_invented_or_repeated(seed):
    rng = np.random.default_rng(seed)
    stream = Stream()
    for _ in range(6):
        start, count = int(rng.integers(0, 5000)), int(rng.integers(1, 50))
        kind = rng.choice(["shift", "noise", "reverse", "same"])
        part = stream.stamps[start : start + count]
        if kind == "shift":
            stream.stamps[start:] += rng.normal(0, 10)
        elif kind == "noise":
            part += rng.normal(0, 0.1, part.size)
        elif kind == "reverse":
            part[:] = part[::-1].copy()
        else:
            part[:] = part[:1]
    _, found = stream.audit()
    values = found[np.isfinite(found)]
    assert len(np.unique(values)) == len(values)


def test_stamps_that_are_no_numbers_are_ignored():
    audit, stamps = StampAudit(SFREQ), np.full(10, np.nan)
    runs = audit.see(Chunk(np.zeros((1, 10)), stamps), 0.0)
    assert [run.samples.shape[1] for run in runs] == [10]


@pytest.mark.parametrize("burst", [2, 5, 13])
@pytest.mark.parametrize("pause", [0, 20])
def test_samples_that_are_sent_in_bursts_with_the_time_of_sending_are_no_gaps(burst, pause):
    stream = Stream(30.0)
    places = np.arange(len(stream.values))
    sent = (places // burst + 1) * burst  # when the burst is complete
    late = (sent >= 4000) & (sent < 4000 + pause)
    stream.stamps = 1000.0 + np.where(late, 4000 + pause, sent) / SFREQ + 1e-5 * (places % burst)
    stream.stamps = np.maximum.accumulate(stream.stamps) + 1e-6 * places
    stream.arrivals = stream.stamps - 1000.0
    audit, found = stream.audit()
    assert not audit.counts
    assert in_place(found)
    assert len(found) == 30 * 256


def test_a_gap_among_bursts_is_found():
    stream = Stream(30.0)
    places = np.arange(len(stream.values))
    stream.stamps = 1000.0 + (places // 5 + 1) * 5 / SFREQ + 1e-5 * (places % 5)
    stream.arrivals = stream.stamps - 1000.0
    kept = (places < 4000) | (places >= 4300)
    audit, found = stream.keep(kept).audit()
    assert list(audit.counts) == ["dropped"]
    assert abs(audit.counts["dropped"] - 300) <= 5
    assert abs(len(found) - 30 * 256) <= SIZE + 5
