"""Dispatch: every output of a session gets samples, decisions and alarms in their order, from one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.outputs.base import Output, SessionFacts
from zipbrain.signal.recording import Array

MOST_WAITING: Final = 10_000  # decisions and events that wait for an output; beyond, the oldest go

_CLOSE_S: Final = 5.0  # longest wait at the end for an output that is in a call


class Dispatcher:
    """The outputs of one session.

    Decisions and events are queued by `add`, which never waits, and reach the outputs by `deliver` in the thread that
    also brings samples. Where that thread is in a long call of the model, `deliver_if_free` brings them from another.

    Parameters
    ----------
    outputs : sequence of Output
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._outputs, self._opened = list(outputs), list[Output]()
        self._queue = deque[Decision | Event](maxlen=MOST_WAITING)
        self._guard = threading.Lock()  # held during every call of an output

    def open(self, facts: SessionFacts) -> None:
        """Open every output; DataError from the first that can't be."""
        with self._guard:
            for output in self._outputs:
                output.open(facts)
                self._opened.append(output)

    def samples(self, first: int, rows: Array) -> None:
        """Pass samples on at once."""
        with self._guard:
            for output in self._opened:
                output.samples(first, rows)

    def add(self, item: Decision | Event) -> None:
        """Queue a decision or an event."""
        self._queue.append(item)

    def deliver(self) -> None:
        """Empty the queue."""
        with self._guard:
            self._empty()

    def deliver_if_free(self) -> None:
        """Empty the queue unless another thread is in a call of an output."""
        if self._guard.acquire(blocking=False):
            try:
                self._empty()
            finally:
                self._guard.release()

    def failures(self) -> dict[str, str]:
        """What each output can't write at the moment, by its name."""
        return {output.name: output.failure for output in self._outputs if output.failure}

    def close(self) -> None:
        """Close every output, and pass on nothing that comes later; one that hangs in a call is left as it is."""
        if not self._guard.acquire(timeout=_CLOSE_S):
            return
        try:
            opened, self._opened = self._opened, []
            for output in opened:
                output.close()
        finally:
            self._guard.release()

    def _empty(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            for output in self._opened:
                if isinstance(item, Decision):
                    output.decide(item)
                else:
                    output.tell(item)
