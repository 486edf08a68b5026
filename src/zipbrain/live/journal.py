"""The journal: every decision, alarm and gap of a session, appended with a hash chain and kept through a kill."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from zipbrain import __version__
from zipbrain.errors import DataError, OptionError
from zipbrain.files import lock_folder
from zipbrain.live.chain import FORMAT, JOURNAL, ORIGIN, encode_line, read_alarm_events, read_end, read_row

REQUIRED: Final = ("model", "recipe", "thresholds")  # facts of a session's first line
MOST_WAITING: Final = 10_000  # lines kept while the disk refuses them

_SYNC_S: Final = 0.5  # between two fsyncs


class Journal:
    """An append-only file ``journal.jsonl`` with a hash chain; a journal that exists is continued.

    A full or faulty disk raises nothing: `write` returns False, `failure` says why, lines wait (the oldest go
    first beyond 10,000) and are written when the disk takes them again, behind a line of kind ``"lost"`` if some went.

    Parameters
    ----------
    folder : str or Path
        Where the journal lies; made for one user alone if it is missing.
    facts : dict
        What the session runs with: ``model`` (hash), ``recipe``, ``thresholds``, and whatever else should be kept.

    Attributes
    ----------
    earlier_events : list of dict
        Alarm events of the session before this one.
    """

    def __init__(self, folder: str | Path, facts: dict[str, Any]) -> None:
        for name in REQUIRED:
            if name not in facts:
                raise OptionError("facts", sorted(facts), f"a journal needs {', '.join(REQUIRED)}")
        self.path = Path(folder) / JOURNAL
        self.failure, self.lost = "", 0
        self.earlier_events: list[dict[str, Any]] = []
        self._waiting: deque[tuple[str, str, dict[str, Any]]] = deque()
        self._rest, self._unreported, self._is_dirty = b"", 0, False
        self._number, self._last = 0, ORIGIN
        self._guard, self._stop, self._stack = threading.Lock(), threading.Event(), ExitStack()
        try:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataError(
                f"{self.path}: the journal can't be written ({error.strerror}); name another folder"
            ) from None
        self._stack.callback(os.close, self._handle)
        try:
            busy = DataError(f"{self.path}: another session writes this journal; stop it or name another folder")
            self._stack.enter_context(lock_folder(self.path, busy))
            self._continue()
        except BaseException:
            self._stack.close()
            raise
        self.write("session", format=FORMAT, zipbrain=__version__, **facts)
        self._thread = threading.Thread(target=self._keep, name="journal", daemon=True)
        self._thread.start()

    def write(self, kind: str, /, **facts: Any) -> bool:
        """Append a line and hand it to the system at once; False if it waits for the disk."""
        stamp = datetime.now(UTC).isoformat(timespec="microseconds")
        with self._guard:
            if self._stop.is_set():
                return False
            self._waiting.append((stamp, kind, facts))
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.lost, self._unreported = self.lost + 1, self._unreported + 1
            return self._flush()

    @property
    def waiting(self) -> int:
        """Lines that the disk has not taken yet."""
        return len(self._waiting) + bool(self._rest)

    def close(self) -> bool:
        """Write the last line and close the file; False if lines were left unwritten."""
        if self._stop.is_set():
            return not self.waiting
        self.write("closed", lost=self.lost)
        self._stop.set()
        self._thread.join()
        with self._guard:
            is_written = self._flush()
            self._sync()
            self._stack.close()
        return is_written

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continue(self) -> None:
        """Take up the chain where it ends, and put an incomplete last line on record."""
        if not self.path.stat().st_size:
            return
        chain = read_end(self.path)
        if chain.fault:
            place = chain.before + chain.fault[0]
            raise DataError(f"{self.path}: line {place} of the journal: {chain.fault[1]}; name another folder")
        self._number, self._last = chain.count, chain.last
        self.earlier_events = read_alarm_events(self.path)
        if chain.torn:
            self._rest = b"\n"  # the torn bytes stay, as a line of their own
            line, _ = read_row(chain.torn, chain)
            if line is not None:  # only its newline was missing
                self._number, self._last = line["number"], line["hash"]
                return
            self.write("torn", bytes=len(chain.torn), sha256=hashlib.sha256(chain.torn).hexdigest())

    def _flush(self) -> bool:
        """Write what waits, as far as the disk takes it."""
        try:
            while True:
                while self._rest:
                    self._rest = self._rest[os.write(self._handle, self._rest) :]
                    self._is_dirty = True
                if self._unreported:
                    stamp = datetime.now(UTC).isoformat(timespec="microseconds")
                    lines, self._unreported = self._unreported, 0
                    self._encode(stamp, "lost", {"lines": lines})
                elif self._waiting:
                    self._encode(*self._waiting.popleft())
                else:
                    break
        except OSError as error:
            self.failure = error.strerror or str(error)
            return False
        self.failure = ""
        return True

    def _encode(self, stamp: str, kind: str, facts: dict[str, Any]) -> None:
        self._rest, self._last = encode_line(self._number + 1, self._last, stamp, kind, facts)
        self._number += 1

    def _sync(self) -> None:
        if self._is_dirty:
            self._is_dirty = False
            try:
                os.fsync(self._handle)
            except OSError as error:
                self.failure = error.strerror or str(error)

    def _keep(self) -> None:
        """Sync the file and try again what the disk refused, twice a second."""
        while not self._stop.wait(_SYNC_S):
            if self.waiting:
                with self._guard:
                    self._flush()
            self._sync()  # outside the guard: a slow disk must not hold up the session
