"""Ctrl-C and SIGTERM: a command that is stopped says in one line what is kept and how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, TypeVar

from zipbrain.errors import ZipbrainError

EXIT_CODE: Final = 130  # of a command that was stopped
GOES_ON: Final = "the same command goes on from there"
AGAIN: Final = "run the same command again"

Command = TypeVar("Command", bound=Callable[..., None])


class Stopped(ZipbrainError):
    """A command that the user stopped; the message says what is kept and how to go on."""


def when_stopped(kept: str) -> Callable[[Command], Command]:
    """Decorator of a command: if it is stopped, it says this; ``{out}`` and the like stand for its options."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**options: object) -> None:
            try:
                command(**options)
            except KeyboardInterrupt:
                raise Stopped(kept.format_map(options)) from None

        return run  # type: ignore[return-value]

    return decorate


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
