"""Retention: signal files of finished sessions are removed after some days; the journal and the decisions stay."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final

from zipbrain.errors import DataError
from zipbrain.files import lock_folder
from zipbrain.live.limits import check_days

SIGNALS: Final = "signals_*.edf"  # what the output edf calls its files

_DAY: Final = 86_400  # seconds


@dataclass(frozen=True)
class RemovedFile:
    """A signal file that was removed."""

    name: str
    bytes: int
    days: float  # since it was last written


def remove_old_signals(folder: str | Path, days: float, now: float | None = None) -> list[RemovedFile]:
    """Remove the signal files of a session's folder that were last written more than `days` days ago.

    A file that a session still writes stays, whatever its age; so does one that can't be removed.

    Parameters
    ----------
    folder : str or Path
    days : float
        0 removes all that are finished.
    now : float, optional
        Seconds since 1970; the clock's by default.
    """
    check_days("retain", days)
    now = time.time() if now is None else now
    removed = []
    for path in sorted(Path(folder).glob(SIGNALS)):
        with suppress(OSError, _InUse):
            state = path.stat(follow_symlinks=False)
            age = (now - state.st_mtime) / _DAY
            if age < days or not S_ISREG(state.st_mode):
                continue
            with lock_folder(path, _InUse(f"{path}: in use")):
                path.unlink()
            removed.append(RemovedFile(path.name, state.st_size, round(age, 3)))
    return removed


class _InUse(DataError):
    """A session writes the file."""
