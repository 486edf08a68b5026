"""Where a command is, on stderr: a bar in a terminal, elsewhere a line per stage and per tenth of its work."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from zipbrain.cli.terminal import Console
from zipbrain.text import printable

_QUIET: Final = 2.0  # seconds for which a command without a terminal says nothing
_PAUSE: Final = 0.2  # seconds between the lines of a stage: what an earlier run has stored comes at once
_SIGN: Final = 60.0  # seconds of silence after which it says where it is


class ProgressDisplay(ABC):
    """A `zipbrain.progress.Progress` that shows where the work is; other lines go to its console meanwhile."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def __call__(self, what: str, done: float, total: int) -> None:
        """Show what is done next, how much of its stage is done, and all of the stage."""


@contextmanager
def show_progress(what: str = "opening") -> Iterator[ProgressDisplay]:
    """A bar in a terminal, lines elsewhere, on stderr."""
    console = Console(stderr=True, highlight=False)
    with _Bar(console) if console.is_terminal else _Lines(console) as shown:
        shown(what, 0, 0)
        yield shown


class _Bar(ProgressDisplay):
    """One bar, which begins anew with every stage."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = RichProgress(*columns, TimeRemainingColumn(compact=True), console=console, transient=True)
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: float, total: int) -> None:
        stage = what.partition(": ")[0]
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._stage = self._bar.add_task(what, total=total or None), stage
        shown = printable(what)[-60:]
        self._bar.update(self._task, description=shown, completed=done, total=total or None, refresh=True)


class _Lines(ProgressDisplay):
    """Lines for a log: nothing in the first seconds, then a line per stage and tenth, or per minute of silence.

    Time left is that of the stage, at the pace since the last line: what an earlier run had stored comes at once and
    would promise too much.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._started = time.monotonic()
        self._said: float | None = None  # when the last line was
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._what, self._stage, self._done, self._total = "", "", 0.0, 0
        self._tenth = -1  # of the stage that the last line told; -1 before its first
        self._mark: tuple[float, float] = (self._started, 0.0)  # when the pace is counted from, and what was done then
        self._pace = 0.0  # seconds of one unit of work; 0 if not known
        self._signs = threading.Thread(target=self._give_signs, daemon=True)

    def __enter__(self) -> Self:
        self._signs.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def __call__(self, what: str, done: float, total: int) -> None:
        with self._lock:
            stage = what.partition(": ")[0]
            now = time.monotonic()
            if stage != self._stage or total != self._total:
                self._stage, self._tenth, self._mark, self._pace = stage, -1, (now, done), 0.0
            self._what, self._done, self._total = what, done, total
            tenth = int(10 * done / total) if total else 0
            is_new = self._tenth < 0 or (tenth > self._tenth and now - (self._said or 0.0) >= _PAUSE)
            if is_new and now - self._started >= _QUIET:
                self._say(now)

    def _give_signs(self) -> None:
        """The first line of a command that takes long, and one after every minute without any."""
        pause = _QUIET
        while not self._ended.wait(pause):
            with self._lock:
                now = time.monotonic()
                due = self._started + _QUIET if self._said is None else self._said + _SIGN
                if now >= due and self._what and not self._ended.is_set():
                    self._say(now)
                    due = now + _SIGN
                pause = max(due - now, 0.01)

    def _say(self, now: float) -> None:
        since, before = self._mark
        if self._done > before:
            self._pace, self._mark = (now - since) / (self._done - before), (now, self._done)
        self._said, self._tenth = now, int(10 * self._done / self._total) if self._total else 0
        words = [f"[{_clock(now - self._started)}] {printable(self._what)}"]
        if self._total:
            done = f"{self._done:.1f}".removesuffix(".0")
            words.append(f"{done} of {self._total} ({100 * self._done / self._total:.0f} %)")
            if self._pace and self._done < self._total:
                words.append(f"about {_clock(self._pace * (self._total - self._done))} left")
        self.console.print(Text(", ".join(words)), soft_wrap=True)


def _clock(seconds: float) -> str:
    """``0:07``, ``12:30`` or ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
