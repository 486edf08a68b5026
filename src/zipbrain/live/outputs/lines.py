"""A text file that grows line by line, for one user alone, and outlives a full disk."""

from __future__ import annotations

import os
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError
from zipbrain.files import remedy

MOST_WAITING: Final = 10_000  # lines kept while the disk refuses them; beyond, the oldest go


class LineFile:
    """An append-only file; `failure` says why lines wait, `lost` how many were dropped."""

    def __init__(self, path: Path) -> None:
        self.path, self.failure, self.lost = path, "", 0
        self._waiting: deque[bytes] = deque()
        self._rest = b""  # of a line that is half on disk
        self._handle = new_file(path)

    def append(self, line: str) -> None:
        """Hand a line to the system, and what waited before it."""
        self._waiting.append(line.encode("utf-8", "backslashreplace") + b"\n")
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._flush()

    def close(self) -> None:
        """Write what waits, as far as the disk takes it, and close the file."""
        if self._handle >= 0:
            self._flush()
            os.close(self._handle)
            self._handle = -1

    def _flush(self) -> None:
        try:
            while self._rest or self._waiting:
                self._rest = self._rest or self._waiting.popleft()
                self._rest = self._rest[os.write(self._handle, self._rest) :]
        except OSError as error:
            self.failure = f"{self.path.name}: {error.strerror or error}"
        else:
            self.failure = ""


def new_file(path: Path) -> int:
    """The handle of a new file that its user alone may read; DataError if there can be none."""
    make_folder(path.parent)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _no_file(path, error) from None


def make_folder(folder: Path) -> None:
    """A folder that its user alone may enter, if it is missing; DataError if there can be none."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _no_file(folder, error) from None


def _no_file(path: Path, error: OSError) -> DataError:
    advice = remedy(error, "name another folder")
    return DataError(f"{path}: it can't be written ({error.strerror or error}); {advice}")


def new_path(folder: Path, kind: str, start: datetime, ending: str) -> Path:
    """A name that is not taken: what the file holds and when that began, and nothing about the patient."""
    stem, number = f"{kind}_{start:%Y%m%dT%H%M%SZ}", 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}.{ending}").exists():
        number += 1
    return path
