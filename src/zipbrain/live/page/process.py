"""The page in a process of its own, so that no viewer takes a moment from the session."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError
from zipbrain.live.page.server import ADDRESS

_START_S: Final = 30.0


class PageProcess:
    """A page that is being served; it ends with the process that started it.

    Attributes
    ----------
    url : str
        Where it can be opened.
    pid : int
        Of its process.
    """

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process, self.url, self.pid = process, url, process.pid

    @property
    def is_running(self) -> bool:
        """False if it ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(folders: Path | Sequence[Path], address: str = ADDRESS) -> PageProcess:
    """Start the page of a session's folder, or of several; DataError in one line if it does not come up."""
    places = [folders] if isinstance(folders, Path) else list(folders)
    command = [sys.executable, "-m", "zipbrain.live.page", address, *map(str, places)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=sys.platform != "win32",  # Ctrl-C is the session's: the page ends after it
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip() if _has_answer(process) else ""
    if not line.startswith("http"):
        process.kill()
        process.wait()
        raise DataError(line.removeprefix("error: ") or f"{address}: the page did not start")
    return PageProcess(process, line)


def _has_answer(process: subprocess.Popen[str]) -> bool:
    """True when the process wrote its line or ended; where pipes can't be waited for, at once."""
    assert process.stdout is not None
    if sys.platform == "win32":
        return True
    with contextlib.suppress(ValueError):
        return bool(select.select([process.stdout], [], [], _START_S)[0])
    return False
