"""The acquisition of samples: a thread of its own reads the source and fills a bounded queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from zipbrain.live.source import Chunk, Source, SourceEnded, SourceLost
from zipbrain.live.stamps import Run, StampAudit
from zipbrain.signal.recording import Array

_QUEUE_S: Final = 30.0  # seconds of samples in the queue at most; those beyond are dropped
_READ_S: Final = 0.25  # longest wait for samples, in seconds
_AGAIN_S: Final = 0.25  # seconds between two attempts to read a lost source again
_LEAST_DRIFT: Final = 100.0  # ppm from which a drifting clock is put on record

Notice = tuple[str, dict[str, Any]]  # kind and facts of a line for the journal


@dataclass(frozen=True, eq=False)
class Arrival:
    """Samples as they came.

    Parameters
    ----------
    samples : ndarray (C, n)
    first : int
        Number of the first one, missing samples counted.
    missing : int
        Samples that are missing before it.
    at : float
        When they came, in seconds of the monotonic clock.
    """

    samples: Array
    first: int
    missing: int
    at: float


class Acquisition:
    """Reads a source until it ends or is stopped. Errors in the source or a slow consumer never stop the thread.

    Attributes
    ----------
    state : {"waiting", "live", "lost", "ended", "failed"}
    words : str
        Why it is lost or has failed; empty otherwise.
    heard_at : float
        When samples last came, in seconds of the monotonic clock.
    position : int
        Samples that came, missing ones counted.
    overflow : int
        Samples that were dropped because nothing took them out of the queue.
    audit : StampAudit
    """

    def __init__(self, source: Source) -> None:
        self.source, self.audit = source, StampAudit(source.sfreq, is_paced=source.is_live)
        self.state, self.words = "waiting", ""
        self.heard_at = time.monotonic()
        self.position = self.received = self.overflow = 0
        self._queue, self._notices = deque[Arrival](), deque[Notice](maxlen=10_000)
        self._queued, self._owed = 0, 0
        self._most = max(1, round(_QUEUE_S * source.sfreq))
        self._change = threading.Condition()
        self._stop = threading.Event()
        self._was_lost, self._drift_said = False, 0.0
        self._thread = threading.Thread(target=self._run, name="acquisition", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading and close the source."""
        self._stop.set()
        with self._change:
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(5.0)
        try:
            self.source.close()
        except Exception as error:  # a custom source may raise anything
            self._note("source", state="failed", words=_words(error))

    @property
    def is_over(self) -> bool:
        """True if no more samples will come, and all were taken."""
        return self.state in ("ended", "failed") and not self._queue

    def take(self, timeout_s: float) -> list[Arrival]:
        """All arrivals in the queue; none after the time-out."""
        with self._change:
            if not self._queue and not self._is_done:
                self._change.wait(timeout_s)
            taken, self._queued = list(self._queue), 0
            self._queue.clear()
            self._change.notify_all()
        return taken

    def notices(self) -> list[Notice]:
        """Lines for the journal since the last call."""
        found = []
        while self._notices:
            found.append(self._notices.popleft())
        return found

    @property
    def _is_done(self) -> bool:
        return self.state in ("ended", "failed") or self._stop.is_set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                chunk = self.source.read(_READ_S)
            except SourceEnded as end:
                self._enqueue(self.audit.flush(), time.monotonic())
                self._set_state("ended", str(end))
                return
            except SourceLost as loss:
                self._enqueue(self.audit.flush(), time.monotonic())
                self._was_lost = True
                self._set_state("lost", str(loss))
                self._stop.wait(_AGAIN_S)
                continue
            except Exception as error:  # custom sources, cut-off files and drivers may raise anything
                self._enqueue(self.audit.flush(), time.monotonic())
                self._was_lost = True
                self._set_state("lost" if self.source.is_live else "failed", _words(error))
                if not self.source.is_live:
                    return
                self._stop.wait(_AGAIN_S)
                continue
            if chunk is not None:
                self._process_safely(chunk)

    def _process_safely(self, chunk: Chunk) -> None:
        """Process a chunk; a malformed one makes the source lost, and the thread goes on."""
        try:
            self._process(chunk, time.monotonic())
        except Exception as error:
            self._was_lost = True
            self._set_state("lost", f"what the source gave is no chunk of samples ({_words(error)})")
            self._stop.wait(_AGAIN_S)

    def _process(self, chunk: Chunk, now: float) -> None:
        wanted = len(self.source.ch_names)
        if chunk.samples.ndim != 2 or chunk.samples.shape[0] != wanted:
            self._set_state("lost", f"a chunk of shape {chunk.samples.shape} came, not of {wanted} channels")
            self._was_lost = True
            return
        if chunk.stamps is not None and np.shape(chunk.stamps) != chunk.samples.shape[1:]:
            words = f"stamps of shape {np.shape(chunk.stamps)} came with {chunk.samples.shape[1]} samples"
            self._set_state("lost", words)
            self._was_lost = True
            return
        if self._was_lost and chunk.stamps is None and chunk.missing is None:
            away = round((now - self.heard_at) * self.source.sfreq) - chunk.samples.shape[1]
            chunk = Chunk(chunk.samples, missing=max(away, 0))
        self._was_lost = False
        if chunk.samples.shape[1]:
            self.heard_at = now
            self._set_state("live", "")
        self._enqueue(self.audit.see(chunk, now), now)
        for found in self.audit.findings():
            kind = "gap" if found.kind == "dropped" else "clock"
            self._note(kind, finding=found.kind, samples=found.samples, seconds=round(found.seconds, 6))
        drift = self.audit.drift_ppm or 0.0
        if abs(drift) > max(_LEAST_DRIFT, 2 * self._drift_said):
            self._drift_said = abs(drift)
            self._note("clock", finding="drift", ppm=round(drift, 1))

    def _enqueue(self, runs: list[Run], now: float) -> None:
        for run in runs:
            n, owed = run.samples.shape[1], self._owed
            missing, self._owed = run.missing + owed, 0
            if not n and not missing:
                continue
            first = self.position + run.missing
            self.position = first + n
            self.received += n
            with self._change:
                while self._queued + n > max(self._most, n) and not self.source.is_live and not self._stop.is_set():
                    self._change.wait(_READ_S)
                if self._queued + n > max(self._most, n) and self.source.is_live:
                    self._owed, self.overflow = missing + n, self.overflow + n
                    if not owed:  # the first of them
                        self._note("gap", finding="overflow", samples=n, seconds=round(n / self.source.sfreq, 6))
                    continue
                samples = np.ascontiguousarray(run.samples, dtype=np.float64)
                self._queue.append(Arrival(samples, first, missing, now))
                self._queued += n
                self._change.notify_all()

    def _set_state(self, state: str, words: str) -> None:
        if (state, words) != (self.state, self.words):
            self.state, self.words = state, words
            self._note("source", state=state, words=words)
            with self._change:
                self._change.notify_all()

    def _note(self, kind: str, **facts: Any) -> None:
        self._notices.append((kind, {**facts, "time_s": round(self.position / self.source.sfreq, 6)}))


def _words(error: BaseException) -> str:
    """An error's message in one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
