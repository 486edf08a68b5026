"""`Limits`: the time and memory that a model's file may take; any graph can ask for more than a machine has."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zipbrain.errors import OptionError

MOST_SECONDS: Final = 1e6  # of a call: OpenVINO counts its milliseconds in 32 bits
MOST_MEMORY: Final = 2**50  # bytes: more than any machine has, and few enough for the system's counters
_ALLOCATION: Final = re.compile(r"alloc|memory", re.IGNORECASE)  # in the messages of runtimes that ran out of memory
_STATE: Final = Path("/proc/self/statm")
_PRIVATE: Final = 5  # column of the pages of private memory in it


@dataclass(frozen=True)
class Limits:
    """What a model's file may take before it is refused; None stands for no bound.

    Parameters
    ----------
    seconds : float, optional
        Of one call with up to 32 windows; checked between two operators.
    memory : int, optional
        Bytes that loading or one call may add to this process. Linux alone can bound them; elsewhere they are not.
    """

    seconds: float | None = 120.0
    memory: int | None = 4 * 2**30

    def __post_init__(self) -> None:
        for name, value, most in (("seconds", self.seconds, MOST_SECONDS), ("memory", self.memory, MOST_MEMORY)):
            if value is not None and not (isinstance(value, int | float) and 0 < value <= most):
                words = f"it must be a positive number up to {most:.3g}, or None for no bound"
                raise OptionError(f"limits.{name}", value, words)

    def advice_on(self, words: str) -> str:
        """Advice for a runtime's error message."""
        if self.memory is None or not _ALLOCATION.search(words):
            return "export it again"
        return f"it may add {self.memory / 2**30:g} GB: raise --memory-limit if you trust it, or export it again"


USUAL: Final = Limits()
UNBOUNDED: Final = Limits(None, None)


class _Watchdog:
    """A watchdog thread that calls `stop` for every run past its deadline, checked every 50 ms while there are runs."""

    def __init__(self) -> None:
        self._lock, self._is_busy = threading.Lock(), threading.Event()
        self._ends: dict[object, tuple[float, Callable[[], None]]] = {}  # deadline and `stop` of every run
        self._thread: threading.Thread | None = None

    def add(self, run: object, seconds: float, stop: Callable[[], None]) -> None:
        with self._lock:
            self._ends[run] = time.monotonic() + seconds, stop
            if self._thread is None or not self._thread.is_alive():  # none yet, or this process is a fork
                self._thread = threading.Thread(target=self._watch, name="zipbrain-limits", daemon=True)
                self._thread.start()
        self._is_busy.set()

    def remove(self, run: object) -> None:
        with self._lock:
            self._ends.pop(run, None)

    def _watch(self) -> None:
        while True:
            self._is_busy.wait()
            time.sleep(0.05)
            with self._lock:
                late = [run for run, (end, _) in self._ends.items() if time.monotonic() > end]
                for run in late:
                    self._ends.pop(run)[1]()
                if not self._ends:
                    self._is_busy.clear()


_watchdog = _Watchdog()


@contextmanager
def bounded_time(limits: Limits, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` from the watchdog thread if the block takes longer than the limits allow."""
    if limits.seconds is None:
        yield
        return
    run = object()
    _watchdog.add(run, limits.seconds, stop)
    try:
        yield
    finally:
        _watchdog.remove(run)


_lock = threading.Lock()
_users = 0  # calls under a bound at the same time share it
_before: tuple[int, int] = (0, 0)


@contextmanager
def bounded_memory(limits: Limits) -> Iterator[None]:
    """Bound the private memory that this process may add within the block; an allocation beyond it fails."""
    global _users, _before
    if limits.memory is None or not _STATE.exists():
        yield
        return
    import resource

    with _lock:
        if not _users:
            _before = resource.getrlimit(resource.RLIMIT_DATA)
            now = int(_STATE.read_text().split()[_PRIVATE]) * resource.getpagesize()
            bounds = [int(now + limits.memory), *(bound for bound in _before if bound != resource.RLIM_INFINITY)]
            resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), _before[1]))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                resource.setrlimit(resource.RLIMIT_DATA, _before)
