"""Audit of a stream's time stamps: what was dropped, duplicated, jumbled or late, and how the clock jumps and drifts.

Samples of a regular stream are one period apart. Where two are not, up to a quarter of a second is held back until it
is clear what happened: samples that are missing make a gap, samples that came twice or too late are left out, samples
in a wrong order are put in order, stamps that were late by themselves change nothing, and a clock that was set is
followed. It is judged by the stamps and by the time at which samples arrive on this machine's own clock, which never
jumps.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.live.source import Chunk
from zipbrain.signal.recording import Array

Which = NDArray[np.bool_]

_HOLD_S: Final = 0.25  # seconds of samples held back to judge a step
_WAIT_S: Final = 0.5  # seconds after which held samples are judged, however few
_KEPT_S: Final = 10.0  # seconds of samples kept to recognise those that come again
_SLACK_S: Final = 2.0  # seconds by which a gap may exceed the time between two arrivals; beyond, the clock was set
_LATE_S: Final = 1.0  # seconds between two arrivals from which samples that are not missing are late
_REGULAR: Final = 0.5  # periods by which a step may be off where stamps are exact
_NOISY: Final = 6.0  # times the usual deviation by which it may be off where they are not
_LEARN_S: Final = 1.0  # seconds of samples that first show how regular stamps are: bursts are no gaps
_ANCHOR_S: Final = 10.0  # seconds between two measurements of the clock's drift
_ANCHORS: Final = 60  # measurements whose straight line has the drift as its slope: ten minutes
_LEAST_ANCHORS: Final = 4  # measurements before a drift is given


@dataclass(frozen=True, eq=False)
class Run:
    """Samples (C, n) in their order, and how many are missing before them."""

    samples: Array
    missing: int = 0


@dataclass(frozen=True)
class Finding:
    """An irregularity of the stamps: "dropped", "duplicated", "jumbled", "late" or "jump"."""

    kind: str
    samples: int
    seconds: float


class StampAudit:
    """Turns chunks into runs of samples that follow each other, and counts irregularities.

    Parameters
    ----------
    sfreq : float
        Hz.
    is_paced : bool
        True if samples come in real time, so that a gap takes as long as it is.

    Attributes
    ----------
    counts : Counter of str
        Samples (for "jump": how often) by kind of finding; "late" counts late samples.
    drift_ppm : float or None
        By how much the source's stamps run faster than its samples; None in the first half minute.
    """

    def __init__(self, sfreq: float, *, is_paced: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.drift_ppm: float | None = None
        self._sfreq, self._is_paced = sfreq, is_paced
        self._hold = max(2, round(_HOLD_S * sfreq))
        self._kept = deque[tuple[Array, Array]]()  # stamps and samples behind the newest one
        self._held: tuple[Array, Array] | None = None
        self._held_since = 0.0
        self._last: float | None = None  # stamp of the newest sample
        self._arrived: float | None = None  # when samples last came
        self._waited = 0.0  # seconds since the arrival before
        self._away = 0.0  # the same, of the arrival whose samples are held back
        self._came = self._came_held = 0  # samples of the newest arrival, and of the one that is held back
        self._noise = 0.0  # usual deviation of a step, in periods
        self._count = 0  # samples and gaps so far
        self._anchors = deque[tuple[int, float]](maxlen=_ANCHORS)
        self._findings: list[Finding] = []

    def see(self, chunk: Chunk, now: float) -> list[Run]:
        """Runs that are settled now that a chunk arrived, at this monotonic time."""
        n = chunk.samples.shape[1]
        if chunk.missing is not None or chunk.stamps is None or not np.isfinite(chunk.stamps).all():
            runs = [*self.flush(), Run(chunk.samples, chunk.missing or 0)]
            self._last, self._count = None, self._count + n + (chunk.missing or 0)
            self._anchors.clear()
            if chunk.missing:
                self._find("dropped", chunk.missing)
            return runs
        if not n:
            return []
        self._waited = 0.0 if self._arrived is None else now - self._arrived
        self._arrived, self._came = now, n
        stamps, samples = np.asarray(chunk.stamps, dtype=np.float64), chunk.samples
        if self._held is not None:
            stamps = np.concatenate((self._held[0], stamps))
            samples = np.concatenate((self._held[1], samples), axis=1)
            self._held = None
        else:
            self._held_since, self._away, self._came_held = now, self._waited, self._came
        return self._judge(stamps, samples, now)

    def flush(self) -> list[Run]:
        """Runs of the samples that are held back, after a loss or at the end."""
        if self._held is None:
            return []
        (stamps, samples), self._held = self._held, None
        return self._judge(stamps, samples, self._held_since + 2 * _WAIT_S)

    def findings(self) -> list[Finding]:
        """Irregularities since the last call."""
        found, self._findings = self._findings, []
        return found

    def _judge(self, stamps: Array, samples: Array, now: float) -> list[Run]:
        """Runs of regular samples; odd steps are held back until there are enough samples to settle them."""
        runs: list[Run] = []
        while stamps.size:
            off = self._deviations(stamps)
            odd = np.flatnonzero(np.abs(off) > self._tolerance)
            first = int(odd[0]) if odd.size else stamps.size
            if first:
                if first == stamps.size and self._waited > _LATE_S and not runs:
                    self._find("late", first)
                    self._waited = 0.0
                runs.append(self._accept(stamps[:first], samples[:, :first], off[:first]))
                stamps, samples = stamps[first:], samples[:, first:]
                if stamps.size:
                    self._held_since, self._away, self._came_held = now, self._waited, self._came
                continue
            if stamps.size < self._hold and now - self._held_since < _WAIT_S:
                self._held = stamps, samples
                break
            settled, left, left_samples = self._settle(stamps[: self._hold], samples[:, : self._hold])
            runs += settled
            stamps = np.concatenate((left, stamps[self._hold :]))
            samples = np.concatenate((left_samples, samples[:, self._hold :]), axis=1)
        return runs

    @property
    def _tolerance(self) -> float:
        return float(self._hold) if self._is_learning else max(_REGULAR, _NOISY * self._noise)

    @property
    def _is_learning(self) -> bool:
        return self._count < _LEARN_S * self._sfreq

    def _deviations(self, stamps: Array) -> Array:
        """By how many periods each step is off."""
        before = stamps[0] - 1 / self._sfreq if self._last is None else self._last
        return np.diff(stamps, prepend=before) * self._sfreq - 1

    def _accept(self, stamps: Array, samples: Array, off: Array, missing: int = 0) -> Run:
        seconds = self._count + stamps.size if self._is_learning else 2 * self._sfreq
        weight = min(1.0, stamps.size / seconds)  # a mean at first, then it forgets within seconds
        self._noise += weight * (float(np.minimum(np.abs(off), 2 * self._tolerance).mean()) - self._noise)
        self._count += missing + stamps.size
        self._last = float(stamps[-1])
        self._kept.append((stamps, samples))
        while self._kept and self._kept[0][0][-1] < self._last - _KEPT_S:
            self._kept.popleft()
        self._measure_drift()
        return Run(samples, missing)

    def _settle(self, stamps: Array, samples: Array) -> tuple[list[Run], Array, Array]:
        """Runs of samples whose first step is odd, and the stamps and samples from the next odd step on."""
        nothing = stamps[:0], samples[:, :0]
        last = self._last if self._last is not None else float(stamps[0]) - 1 / self._sfreq
        order = np.argsort(stamps, kind="stable")
        steps = np.diff(stamps[order], prepend=last) * self._sfreq
        moved = int((order != np.arange(order.size)).sum())
        if moved and ((np.abs(steps - 1) <= self._tolerance) | (steps == 0)).all():
            stamps, samples = stamps[order], samples[:, order]
        else:
            moved = 0
        again, late = self._behind(stamps, samples, last)
        is_regular = (np.abs(self._deviations(stamps)[1:]) <= self._tolerance).all()
        if late[0] and is_regular and not again.any():  # they follow each other, at a time that was before
            return [self._follow(stamps, samples)], *nothing
        for kind, which in (("duplicated", again), ("late", late & ~again)):
            if which.any():
                self._find(kind, int(which.sum()))
        keep = ~(again | late)
        if moved and keep.any():
            self._find("jumbled", moved)
        stamps, samples = stamps[keep], samples[:, keep]
        if not stamps.size:
            return [], *nothing
        step = (float(stamps[0]) - last) * self._sfreq - 1
        ahead = (stamps - last) * self._sfreq - np.arange(1, stamps.size + 1)
        shift = float(ahead.min())  # what is left of it once a burst has caught up
        if step > self._tolerance and shift < step / 2:  # a late stamp, not a gap
            return [self._accept(stamps, samples, self._deviations(stamps))], *nothing
        if self._is_paced and step / self._sfreq > self._away + _SLACK_S:
            return [self._follow(stamps, samples)], *nothing
        missing = max(0, round(step))
        if missing:
            self._find("dropped", missing)
        self._last = last + missing / self._sfreq if missing else last
        off = self._deviations(stamps)
        inner = np.flatnonzero(off[1:] > self._tolerance) + 1  # further gaps: one at a time
        stop = int(inner[0]) if inner.size else stamps.size
        run = self._accept(stamps[:stop], samples[:, :stop], off[:stop], missing)
        return [run], stamps[stop:], samples[:, stop:]

    def _behind(self, stamps: Array, samples: Array, last: float) -> tuple[Which, Which]:
        """Which samples came before with the same stamp and values, and which are not after the newest one."""
        late: Which = stamps <= last + 0.25 / self._sfreq
        again: Which = np.zeros(stamps.size, dtype=bool)
        again[1:] = (np.diff(stamps) == 0) & _alike(samples[:, 1:], samples[:, :-1])
        if late.any() and self._kept:
            old = np.concatenate([one for one, _ in self._kept])
            places = np.clip(np.searchsorted(old, stamps), 0, old.size - 1)
            values = np.concatenate([rows for _, rows in self._kept], axis=1)[:, places]
            again |= (old[places] == stamps) & _alike(values, samples)
        return again, late & ~again

    def _follow(self, stamps: Array, samples: Array) -> Run:
        """Follow a clock that was set: samples are missing only if the silence was longer than what came after it."""
        self._find("jump", 1, float(stamps[0]) - (self._last or 0.0))
        silent, self._away = self._away, 0.0
        missing = max(0, round(silent * self._sfreq) - self._came_held) if self._is_paced and silent > _LATE_S else 0
        if missing:
            self._find("dropped", missing)
        self._last = None
        self._kept.clear()
        self._anchors.clear()
        return self._accept(stamps, samples, self._deviations(stamps), missing)

    def _find(self, kind: str, count: int, seconds: float | None = None) -> None:
        self.counts[kind] += count
        self._findings.append(Finding(kind, count, count / self._sfreq if seconds is None else seconds))

    def _measure_drift(self) -> None:
        if self._last is None or (self._anchors and self._count - self._anchors[-1][0] < _ANCHOR_S * self._sfreq):
            return
        self._anchors.append((self._count, self._last))
        if len(self._anchors) >= _LEAST_ANCHORS:
            counts, stamps = np.array(self._anchors).T
            slope = np.polyfit((counts - counts[0]) / self._sfreq, stamps - stamps[0], 1)[0]
            self.drift_ppm = float(1e6 * (slope - 1))


def _alike(one: Array, other: Array) -> Which:
    """Which columns of two arrays (C, n) hold the same values, NaN for NaN."""
    return np.asarray(((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=0))
