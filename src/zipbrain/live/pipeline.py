"""Samples as they arrive -> windows on one grid -> decisions; the newest window wins where time is short."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from zipbrain.live.acquisition import Acquisition, Arrival
from zipbrain.live.decider import Decider
from zipbrain.live.decision import Decision
from zipbrain.live.electrodes import Electrodes
from zipbrain.signal.recording import Array
from zipbrain.signal.window_stream import StreamWindow, WindowStream

_TAKE_S: Final = 0.2  # longest wait for samples, in seconds
_PIECE_S: Final = 10.0  # seconds of a gap that are passed on at once


class Listener(Protocol):
    """Receives the samples, decisions and notes of a pipeline."""

    def hear(self, first: int, rows: Array) -> None:
        """Take samples (C, n), the first of them with this number; NaN where they are missing."""

    def decide(self, decision: Decision) -> None:
        """Take a decision."""

    def note(self, kind: str, /, **facts: Any) -> None:
        """Take a line for the journal."""


@dataclass(frozen=True, eq=False)
class _Ready:
    window: StreamWindow
    waited_s: float  # of the stream, from the window's end to the sample that completed it
    at: float  # when that came, in seconds of the monotonic clock


class Pipeline:
    """Takes acquired samples, cuts windows and decides them, in one thread.

    Attributes
    ----------
    position : int
        Samples that were processed, missing ones counted.
    end : int or None
        Number of samples after which the session ends; None for the end of the source.
    skipped : int
        Windows that were left out because a newer one was due.
    skipped_at : float
        When one was last left out, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        acquisition: Acquisition,
        stream: WindowStream,
        decider: Decider,
        listener: Listener,
        electrodes: Electrodes,
    ) -> None:
        self.acquisition, self.stream, self.decider, self.listener = acquisition, stream, decider, listener
        self.electrodes = electrodes
        self.position = self.skipped = 0
        self.end: int | None = None
        self.skipped_at = -float("inf")
        self._called_at: float | None = None  # when the model's call that is under way began
        self._sfreq, self._hop_s, self._window_s = acquisition.source.sfreq, stream.hop_s, stream.window_s
        self._pending, self._is_live = deque[_Ready](), acquisition.source.is_live

    def turn(self) -> None:
        """Take what has come and decide one window; a source that waits is read again once all windows are decided."""
        if self._is_live or not self._pending:
            for arrival in self.acquisition.take(0.0 if self._pending else _TAKE_S):
                self._push(arrival)
        self._leave_out()
        if self._pending:
            ready = self._pending.popleft()
            window = ready.window
            at = ready.at if self._is_live else time.monotonic()  # a source that waits makes nothing late
            with self._time_call():
                decision = self.decider.decide(window, window.start_s + self._window_s, ready.waited_s, at)
            self.listener.decide(decision)
            with self._time_call():
                found = self.decider.check(window, decision, at)
            if found is not None:
                self.listener.note("audit", **found)

    @property
    def call_s(self) -> float:
        """Seconds that the model's call under way has lasted, 0 for none; for other threads."""
        began = self._called_at
        return 0.0 if began is None else time.monotonic() - began

    @property
    def is_idle(self) -> bool:
        """True if nothing is left to decide of what was read."""
        return not self._pending

    @property
    def is_at_end(self) -> bool:
        """True once `end` was reached, and all before it is decided."""
        return self.end is not None and self.position >= self.end and self.is_idle

    def finish(self) -> None:
        """Decide the last windows of a recording; the filter waits for no more samples."""
        self._add(self.stream.finish(), time.monotonic())
        while self._pending:
            self.turn()

    @contextmanager
    def _time_call(self) -> Iterator[None]:
        self._called_at = time.monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def _push(self, arrival: Arrival) -> None:
        rows, missing = arrival.samples, arrival.missing
        if self.end is not None:
            missing = min(missing, self.end - self.position)
            rows = rows[:, : self.end - self.position - missing]
        if missing:
            self._skip(missing, len(rows), arrival.at)
        if not rows.shape[1]:
            return
        self.listener.hear(self.position, rows)
        self.electrodes.see(rows)
        self.position += rows.shape[1]
        self._add(self.stream.push(rows), arrival.at)

    def _skip(self, missing: int, channels: int, at: float) -> None:
        """Process missing samples piece by piece: a long gap must not fill the memory."""
        piece = max(1, round(_PIECE_S * self._sfreq))
        for start in range(0, missing, piece):
            count = min(piece, missing - start)
            self.listener.hear(self.position, np.full((channels, count), np.nan))
            self.position += count
            self._add(self.stream.skip(count), at)

    def _add(self, windows: list[StreamWindow], at: float) -> None:
        for window in windows:
            if window.flag:  # nothing is computed from its samples: a long gap must not fill the memory
                window = replace(window, x=np.empty((0, 0), np.float32))
            waited_s = max(0.0, (self.position - window.stop) / self._sfreq)
            if not self._is_live:  # its chunks may be long; a paced stream would wait no longer than this
                waited_s = min(waited_s, self.stream.reach_s + self.stream.late_s)
            self._pending.append(_Ready(window, waited_s, at))

    def _leave_out(self) -> None:
        """Skip windows that waited longer than a hop while newer ones wait; flagged windows cost no time and stay."""
        if not self._is_live:
            return
        now, kept = time.monotonic(), deque[_Ready]()
        while self._pending:
            ready = self._pending.popleft()
            if self._pending and not ready.window.flag and now - ready.at > self._hop_s:
                self.skipped, self.skipped_at = self.skipped + 1, now
                stop_s = ready.window.start_s + self._window_s
                self.listener.note("skipped", start_s=ready.window.start_s, stop_s=stop_s)
            else:
                kept.append(ready)
        self._pending = kept
