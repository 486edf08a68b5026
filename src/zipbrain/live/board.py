"""The board: a file of fixed size with the last hour of a session's signals and its newest state, for its page.

One process writes it and any number read it, without a lock between them: signals are a ring with two counters, the
state lies in two slots written in turn, each with a digest. A reader takes only what no write can have touched. The
writer holds a lock on the file as long as it lives, which is how a reader knows that it died.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError, OptionError
from zipbrain.files import encode_nan, new_partial
from zipbrain.live.commands import FOLDER, take_commands

try:
    import fcntl
except ImportError:  # Windows: a dead writer is known by its silence alone
    fcntl = None  # type: ignore[assignment]

BOARD: Final = "live.board"
FORMAT: Final = 1
LARGEST_STATE: Final = 2**18  # bytes of a state as JSON
LARGEST_RING: Final = 2**29  # bytes of signals; a wider or faster stream keeps less than an hour

_JUST_NOW_S: Final = 0.3  # between making a board and locking it
_MAGIC: Final = b"zipboard"
_HEADER: Final = struct.Struct("<8sII")  # magic, format, bytes of the facts that follow
_LARGEST_FACTS: Final = 2**18
_COUNTERS: Final = _HEADER.size + _LARGEST_FACTS  # claimed, written, sequence, heartbeat in wall nanoseconds
_SLOT: Final = struct.Struct("<QI16s")  # sequence, length, digest
_SLOT_SIZE: Final = _SLOT.size + LARGEST_STATE + 4
_STATES: Final = _COUNTERS + 64
_SIGNALS: Final = -(-(_STATES + 2 * _SLOT_SIZE) // 4096) * 4096


def _digest(sequence: int, content: bytes) -> bytes:
    return hashlib.blake2b(struct.pack("<Q", sequence) + content, digest_size=16).digest()


def _ring(memory: mmap.mmap, rows: int, channels: int) -> NDArray[np.float32]:
    """The signals (rows, C) in the file."""
    return np.frombuffer(memory, np.float32, rows * channels, _SIGNALS).reshape(rows, channels)


class Board:
    """The writer's side: ``DIR/live.board``, made anew for every session, readable by its owner alone.

    Its whole size is taken at once, so that a disk that fills later can't stop it. `samples` and `publish` cost
    microseconds and never wait for a reader.

    Parameters
    ----------
    folder : Path
        The session's folder.
    ch_names : sequence of str
    sfreq : float
        Samples per second.
    seconds : float
        How much is kept; less where that would take more than 512 MiB.
    """

    def __init__(self, folder: Path, ch_names: Sequence[str], sfreq: float, *, seconds: float = 3600) -> None:
        if not ch_names or not sfreq > 0 or not seconds > 0:
            raise OptionError("board", (len(ch_names), sfreq, seconds), "it needs channels, a rate and a length")
        self._channels = len(ch_names)
        self._rows = int(min(np.ceil(seconds * sfreq), LARGEST_RING // (4 * self._channels)))
        facts = {"ch_names": list(ch_names), "sfreq": float(sfreq), "rows": self._rows, "pid": os.getpid()}
        content = json.dumps(facts | {"session": secrets.token_hex(8)}).encode()
        if len(content) > _LARGEST_FACTS:
            raise OptionError("ch_names", len(ch_names), f"their names take more than {_LARGEST_FACTS:,} bytes")
        self.refused = 0  # commands that were malformed
        self._folder, self._claimed, self._written, self._sequence = Path(folder), 0, 0, 0
        path = self._folder / BOARD
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
            for left in (self._folder / FOLDER).glob("*.json"):  # meant for a session that is over
                left.unlink(missing_ok=True)
            with new_partial(path) as temporary:
                temporary.chmod(0o600)
                self._handle = os.open(temporary, os.O_RDWR)
                try:
                    self._prepare(content)
                    os.replace(temporary, path)
                except BaseException:
                    os.close(self._handle)
                    raise
        except OSError as error:
            needed = (_SIGNALS + 4 * self._rows * self._channels) / 2**20
            raise DataError(
                f"{path}: the board ({needed:.0f} MiB) can't be made ({error.strerror}); make room there"
            ) from None
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._handle, fcntl.LOCK_EX)  # readers hold it for microseconds

    def _prepare(self, facts: bytes) -> None:
        size = _SIGNALS + 4 * self._rows * self._channels
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._handle, 0, size)
        else:
            for _ in range(0, size, 2**20):
                os.write(self._handle, bytes(2**20))
            os.truncate(self._handle, size)
        self._memory = mmap.mmap(self._handle, size)
        self._memory[: _HEADER.size] = _HEADER.pack(_MAGIC, FORMAT, len(facts))
        self._memory[_HEADER.size : _HEADER.size + len(facts)] = facts
        self._counters = np.frombuffer(self._memory, np.uint64, 4, _COUNTERS)
        self._signals = _ring(self._memory, self._rows, self._channels)
        self._counters[3] = time.time_ns()

    def samples(self, first: int, rows: NDArray[Any]) -> None:
        """Add samples ``(C, n)`` in microvolts, the first with this index; what was skipped before it is NaN.

        Samples older than the newest one on the board are left out: its past does not change.
        """
        if np.ndim(rows) != 2 or len(rows) != self._channels:
            raise OptionError("rows", np.shape(rows), f"the board has {self._channels} channels: ({self._channels}, n)")
        fresh = np.asarray(rows)[:, max(self._written - first, 0) :].T
        stop = first + np.shape(rows)[1]
        if stop <= self._written:
            return
        self._counters[0] = stop  # from here on no reader takes what is about to be overwritten
        start = max(self._written, stop - self._rows)
        begin = stop - len(fresh)
        if begin > start:
            self._fill(start, np.full((begin - start, self._channels), np.nan, np.float32))
        self._fill(max(begin, start), fresh[-self._rows :].astype(np.float32))
        self._written = stop
        self._counters[1] = stop
        self._counters[3] = time.time_ns()

    def _fill(self, first: int, rows: NDArray[np.float32]) -> None:
        place = first % self._rows
        head = min(len(rows), self._rows - place)
        self._signals[place : place + head] = rows[:head]
        self._signals[: len(rows) - head] = rows[head:]

    def publish(self, state: dict[str, Any]) -> None:
        """Replace the state; it must be what JSON can hold, NaN becomes None."""
        content = json.dumps(encode_nan(state), separators=(",", ":"), default=str).encode()
        if len(content) > LARGEST_STATE:
            raise OptionError("state", len(content), f"a state has at most {LARGEST_STATE:,} bytes as JSON")
        self._sequence += 1
        place = _STATES + (self._sequence % 2) * _SLOT_SIZE
        header = _SLOT.pack(self._sequence, len(content), _digest(self._sequence, content))
        self._memory[place + _SLOT.size : place + _SLOT.size + len(content)] = content
        self._memory[place : place + _SLOT.size] = header
        self._counters[2] = self._sequence
        self._counters[3] = time.time_ns()

    def commands(self) -> list[dict[str, Any]]:
        """Commands of viewers since the last call, oldest first and checked (`commands.check_command`)."""
        taken, refused = take_commands(self._folder)
        self.refused += refused
        return taken

    def close(self) -> None:
        """Close the file; it stays for readers, who see that its writer is gone."""
        if self._handle >= 0:
            del self._counters, self._signals
            self._memory.close()
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BoardReader:
    """A reader's side of the board in a folder, whether it exists yet or not.

    Attributes
    ----------
    session : str
        Which session it shows, "" for none; another one after `refresh` found a new board.
    failure : str
        What is wrong with the file that lies there, "" for nothing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.failure = Path(folder), ""
        self.session, self.ch_names, self.sfreq, self.rows = "", (), 0.0, 0
        self._handle, self._node = -1, (-1, -1)
        self.refresh()

    def refresh(self) -> bool:
        """True if there is another board than before; its facts are read then, if it is whole."""
        try:
            handle = os.open(self.folder / BOARD, os.O_RDONLY)
        except OSError:
            return False
        state = os.fstat(handle)
        if (state.st_dev, state.st_ino) == self._node:
            os.close(handle)
            return False
        self.close()
        self._handle, self._node, self.failure = handle, (state.st_dev, state.st_ino), ""
        try:
            self._memory = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
            magic, form, length = _HEADER.unpack(self._memory[: _HEADER.size])
            if magic != _MAGIC or form != FORMAT or length > _LARGEST_FACTS:
                raise ValueError("another format")
            facts = json.loads(self._memory[_HEADER.size : _HEADER.size + length])
            self.ch_names, self.sfreq, self.rows = tuple(facts["ch_names"]), float(facts["sfreq"]), int(facts["rows"])
            self._counters = np.frombuffer(self._memory, np.uint64, 4, _COUNTERS)
            self._signals = _ring(self._memory, self.rows, len(self.ch_names))
            self.session = str(facts["session"])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            self.close()
            self.failure = f"no board of this zipbrain ({error}); start the session again with this version"
        return True

    @property
    def written(self) -> int:
        """Samples since the session began; the newest one has the index below."""
        return int(self._counters[1]) if self.session else 0

    @property
    def oldest(self) -> int:
        """Index of the oldest sample that is kept."""
        return max(self.written - self.rows, 0)

    @property
    def silent_s(self) -> float:
        """Seconds since the writer last wrote anything, by the wall clock."""
        return max(time.time() - int(self._counters[3]) / 1e9, 0.0) if self.session else float("inf")

    def has_writer(self) -> bool:
        """False if the session that wrote the board has ended or was killed."""
        if not self.session:
            return False
        if fcntl is not None and self.silent_s > _JUST_NOW_S:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(self._handle, fcntl.LOCK_UN)
                return False
            except BlockingIOError:
                return True
            except OSError:
                pass
        return self.silent_s < 3

    def samples(self, first: int, stop: int) -> tuple[int, NDArray[np.float32]]:
        """Samples (n, C) in microvolts from `first` up to `stop`, as far as they are kept, and the first's index."""
        stop = min(stop, self.written)
        first = min(max(first, self.oldest, 0), stop)
        if not self.session or first >= stop:
            return stop, np.empty((0, len(self.ch_names)), np.float32)
        place, count = first % self.rows, stop - first
        taken = np.concatenate(
            (self._signals[place : place + count], self._signals[: max(place + count - self.rows, 0)])
        )
        safe = int(self._counters[0]) - self.rows  # older ones may have been overwritten meanwhile
        cut = min(max(safe - first, 0), count)
        return first + cut, taken[cut:]

    @property
    def sequence(self) -> int:
        """Number of the newest state, 0 for none."""
        return int(self._counters[2]) if self.session else 0

    def state(self) -> dict[str, Any] | None:
        """The newest state that is whole, None if there is none yet."""
        for _ in range(100):
            sequence = self.sequence
            if not sequence:
                return None
            place = _STATES + (sequence % 2) * _SLOT_SIZE
            found, length, digest = _SLOT.unpack(self._memory[place : place + _SLOT.size])
            if found == sequence and length <= LARGEST_STATE:
                content = self._memory[place + _SLOT.size : place + _SLOT.size + length]
                if _digest(sequence, content) == digest:
                    state: dict[str, Any] = json.loads(content)
                    return state
        return None

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            for name in ("_counters", "_signals", "_memory"):  # the map closes with its last view
                self.__dict__.pop(name, None)
            os.close(self._handle)
        self._handle, self.session, self.ch_names, self.sfreq, self.rows = -1, "", (), 0.0, 0
