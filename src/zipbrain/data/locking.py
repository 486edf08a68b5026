"""Keep a second process out of a folder that is being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zipbrain.errors import ZipbrainError


@contextmanager
def alone_in(folder: Path, busy: ZipbrainError) -> Iterator[None]:
    """Hold a lock on a folder; the system gives it back when this process ends, however it ends.

    Parameters
    ----------
    folder : Path
        An existing folder.
    busy : ZipbrainError
        Raised where another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows refuses to rename a file that another process has open
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)
