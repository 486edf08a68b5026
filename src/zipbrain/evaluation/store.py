"""`Store`: results in a folder, one JSON object per line, only ever added to, by many processes at once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import DataError, OptionError
from zipbrain.files import decode_nan, encode_nan, lock_folder, parse_json
from zipbrain.numerals import plain_json

FORMAT: Final = 1
NAME: Final = "results.jsonl"

# Fields that hold numbers and nothing else, at any depth: here null stands for "not a number".
_NUMBERS: Final = ("scores", "intervals", "removed", "agreement", "logit_error", "seconds", "operations", "looked")
_PATIENCE: Final = 60.0  # seconds to wait for another process that adds
_LONGEST: Final = 2**24  # bytes of a line
_MOST_NAMED: Final = 10  # lines that a remark names by their numbers


class Store:
    """A folder with ``results.jsonl``; every record has a key, and a key is stored once.

    Parameters
    ----------
    folder : path
        Made when the first record is added.

    Notes
    -----
    A record is appended whole in one system call, under a lock, and is on the disk when `add` returns.
    What a process that was killed left half written is set aside as ``results.damaged-N.jsonl`` by the next `add`.
    A line in the middle that is no record stays where it is and is left out; `remarks` says so.

    The file is strict JSON. In ``scores``, ``intervals``, ``removed``, ``agreement``, ``logit_error``, ``seconds``,
    ``operations`` and ``looked`` NaN is written as null and read back as NaN, infinities are written as ``"inf"`` and
    ``"-inf"``; anywhere else a number that is not finite is refused.

    Examples
    --------
    >>> import tempfile
    >>> from zipbrain.evaluation.store import Store
    >>> store = Store(tempfile.mkdtemp())
    >>> store.add({"key": "a", "scores": {"auroc": float("nan")}})
    >>> store.get("a")
    {'format': 1, 'key': 'a', 'scores': {'auroc': nan}}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME
        self._set_aside: list[str] = []
        self._mine = threading.RLock()  # what was read is shared by the threads of this process
        self._forget()

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return type(self), (self.folder,)

    @property
    def remarks(self) -> list[str]:
        """What was found in the file that is no record, in words."""
        self._read()
        half = [f"{self.path} ends in a half-written line of {self._half} bytes: left out"] if self._half else []
        return [*self._set_aside, *([_left_out(self.path, self._skipped)] if self._skipped else []), *half]

    def get(self, key: str) -> dict[str, Any] | None:
        """The record with a key, or None; also one that another process has added meanwhile."""
        self._read()
        return self._records.get(key)

    def records(self) -> list[dict[str, Any]]:
        """All records in the order in which they were added. Treat them as read-only."""
        self._read()
        return list(self._records.values())

    def add(self, record: dict[str, Any]) -> None:
        """Append a record and wait until the disk has it; nothing happens if its key is there already.

        Parameters
        ----------
        record : dict
            With a ``"key"``; NumPy numbers and arrays may be in it. ``"format"`` is added where it is missing.
        """
        line = _line(record)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(), self._mine:
                self._read()
                if record["key"] not in self._records:
                    self._append(line)
        except OSError as error:
            why = error.strerror or error
            raise DataError(f"{self.path}: a result can't be added ({why}); what it holds is unharmed") from None
        self._read()

    # -- writing -------------------------------------------------------------------------------------------------------

    def _append(self, line: bytes) -> None:
        """Write a line at the end, or leave the file as it was. The lock is held and all whole lines are read."""
        new, half = not self.path.exists(), self._fresh()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        try:
            if half and _parsed(half) is not None:  # whole, only its line end is missing
                line = b"\n" + line
            elif half:
                self._put_aside(half)
                os.ftruncate(handle, self._end)
            before = os.fstat(handle).st_size
            try:
                while line:  # once, unless the disk fills up on the way: then the second call says so
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
        if new:
            _sync_folder(self.folder)

    def _put_aside(self, half: bytes) -> None:
        number = 1
        while (aside := self.folder / f"results.damaged-{number}.jsonl").exists():
            number += 1
        try:
            with open(aside, "xb") as file:
                file.write(half)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        self._set_aside.append(f"{self.path} ended in a half-written line: set aside as {aside.name}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for the folder's lock and hold it."""
        until, pause = time.monotonic() + _PATIENCE, 0.001
        with ExitStack() as stack:
            while True:
                busy = DataError(f"{self.folder}: other processes held its lock for {_PATIENCE:.0f} s; try again")
                try:
                    stack.enter_context(lock_folder(self.folder, busy))
                    break
                except DataError:
                    if time.monotonic() > until:
                        raise
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
            yield

    # -- reading -------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._records: dict[str, dict[str, Any]] = {}
        self._skipped: list[int] = []  # numbers of lines that hold no record
        self._file: tuple[int, int] | None = None  # which file was read: device and inode
        self._end = 0  # bytes read so far: all whole lines
        self._lines = 0
        self._half = 0  # bytes behind the last line end

    def _read(self) -> None:
        """Read the lines that were added since the last look."""
        with self._mine:
            self._take_all(self._fresh())

    def _fresh(self) -> bytes:
        """What stands behind the whole lines read so far; a file that was replaced or removed is begun anew."""
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                if self._file != (state.st_dev, state.st_ino) or state.st_size < self._end:  # another file, or cut
                    self._forget()
                    self._file = state.st_dev, state.st_ino
                file.seek(self._end)
                return file.read()
        except FileNotFoundError:
            self._forget()
            return b""
        except OSError as error:
            raise DataError(f"{self.path}: it can't be read ({error.strerror or error})") from None

    def _take_all(self, fresh: bytes) -> None:
        whole, line_end, half = fresh.rpartition(b"\n")
        for line in whole.split(b"\n") if line_end else ():
            self._take(line)
            self._end += len(line) + 1
        last = _parsed(half)
        if last is not None:  # whole, only its line end is missing
            self._keep(last, self._lines + 1)
        self._half = 0 if last is not None else len(half)

    def _take(self, line: bytes) -> None:
        record = _parsed(line)
        if record is not None:
            self._keep(record, self._lines + 1)
        elif line.strip():
            self._skipped.append(self._lines + 1)
        self._lines += 1

    def _keep(self, record: dict[str, Any], number: int) -> None:
        if record["format"] > FORMAT:
            raise DataError(
                f"{self.path}, line {number}: format {record['format']}, but this zipbrain reads up to {FORMAT}; "
                "use the newer zipbrain that wrote it"
            )
        numbers = {name: decode_nan(record[name]) for name in _NUMBERS if name in record}
        self._records.setdefault(record["key"], record | numbers)


def _left_out(path: Path, lines: list[int]) -> str:
    """Which lines of a file hold no record, in words."""
    shown = ", ".join(map(str, lines[:_MOST_NAMED])) + (" and others" if len(lines) > _MOST_NAMED else "")
    if len(lines) == 1:
        return f"{path}, line {shown}, is no record: left out, kept in the file"
    return f"{path}: {len(lines)} lines are no records, left out and kept in the file: {shown}"


def _line(record: Any) -> bytes:
    """A record as one line of strict JSON."""
    if not isinstance(record, dict):
        raise OptionError("record", type(record).__name__, "it must be a dictionary")
    key, number = record.get("key"), record.get("format", FORMAT)
    if not isinstance(key, str) or not key:
        raise OptionError("record.key", key, "it must be a string that says what was measured")
    if number != FORMAT or isinstance(number, bool):
        raise OptionError("record.format", number, f"this zipbrain writes {FORMAT}")
    values = {name: encode_nan(value) if name in _NUMBERS else value for name, value in record.items()}
    content = plain_json("record", {"format": FORMAT, **values})
    return (json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n").encode()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record that a line holds, or None if it holds none."""
    try:
        content = parse_json(line, _LONGEST)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("key"), str):
        return None
    number = content.get("format")
    return content if isinstance(number, int) and not isinstance(number, bool) and number >= 1 else None


def _sync_folder(folder: Path) -> None:
    """Make sure that a new file's name is on the disk too, where the system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
