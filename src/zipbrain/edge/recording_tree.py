"""Recordings of a tree of any size, one after the other: no more than the names of one folder are in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from zipbrain.edge.formats import MARK
from zipbrain.edge.predict_one import stem_of
from zipbrain.errors import OptionError
from zipbrain.signal.recording import FILE_KINDS


def recording_endings(*, others: bool) -> tuple[str, ...]:
    """How names of recordings end; with `others` also those of formats that MNE reads."""
    return tuple(end for end, kind in FILE_KINDS.items() if others or kind in ("edf", "bdf"))


def walk_recordings(
    given: Iterable[str | Path], lost: Callable[[str], object], *, others: bool = False
) -> Iterator[Path]:
    """Yield files, and the recordings in folders and all folders in them, sorted by name within a folder.

    Links to folders are not followed, hidden files and what zipbrain wrote are left out. `lost` is called with a line
    for every folder that can't be read.
    """
    if isinstance(given, str | Path) or not isinstance(given, Iterable):
        raise OptionError("recordings", given, "it must be a list of paths")
    endings = recording_endings(others=others)
    for root in given:
        if not os.path.isdir(root):
            yield Path(root)
            continue
        folders = [os.fspath(root)]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError as error:
                lost(f"{folder}: can't be read ({error.strerror or error}); allow it, then run the same again")
                continue
            inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            folders += reversed(inner)
            for entry in entries:
                if entry.name.lower().endswith(endings) and not entry.name.startswith(".") and not entry.is_dir():
                    path = Path(entry.path)
                    if not stem_of(path).endswith(MARK):
                        yield path
