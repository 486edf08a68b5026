"""Recordings among files and folders, found one by one, and the names of their results."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from zipbrain.edge.formats import FORMATS, MARK
from zipbrain.edge.predict_one import stem_of
from zipbrain.edge.writers import file_names
from zipbrain.errors import OptionError
from zipbrain.signal.recording import FILE_KINDS


def list_given(recordings: Iterable[str | Path]) -> list[str | Path]:
    """The files and folders that were given; refused if there are none, or if one path stands in place of a list."""
    if isinstance(recordings, str | Path) or not isinstance(recordings, Iterable):
        raise OptionError("recordings", recordings, "it must be a list of paths")
    given = list(recordings)
    if not given:
        raise OptionError("recordings", given, "at least one is needed")
    return given


def no_recording_in(folder: str | Path, *, others: bool) -> OptionError:
    """The refusal of a folder without recordings."""
    return OptionError("recordings", str(folder), f"no file in it ends in {', '.join(_endings(others))}")


def walk_recordings(
    given: Iterable[str | Path], lost: Callable[[Path, str], object], *, others: bool = False
) -> Iterator[Path]:
    """Yield the files that were given, and the recordings in folders and all folders in them, sorted within a folder.

    Of a tree of any size only the names of one folder are in memory. Hidden files and folders, such as the ``.git`` of
    a DataLad dataset, and what zipbrain wrote are left out. Links to files are recordings under the link's name, links
    to folders are not followed. With `others`, formats that MNE reads are recordings too. `lost` is called with every
    folder that can't be read, and a line that says why.
    """
    endings = _endings(others)
    for root in given:
        if not os.path.isdir(root):
            yield Path(root)
            continue
        folders = [os.fspath(root)]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as found:
                    entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda entry: entry.name)
            except OSError as error:
                words = f"can't be read ({error.strerror or error}); allow it, then run the same again"
                lost(Path(folder), f"{folder}: {words}")
                continue
            folders += [entry.path for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]
            for entry in entries:
                if entry.name.lower().endswith(endings) and not os.path.isdir(entry.path):
                    path = Path(entry.path)
                    if not stem_of(path).endswith(MARK):
                        yield path


def find_recordings(
    given: Iterable[str | Path], *, others: bool = False
) -> tuple[list[tuple[Path, Path]], dict[Path, str]]:
    """The recordings of `walk_recordings`, each once, with the folder it stands in, relative to the given one.

    Also the folders that can't be read, and why.
    """
    found: dict[str, tuple[Path, Path]] = {}
    unread: dict[Path, str] = {}
    for root in list_given(given):
        inside = list(walk_recordings([root], unread.__setitem__, others=others))
        if not inside and not unread:
            raise no_recording_in(root, others=others)
        is_folder = os.path.isdir(root)
        for path in inside:
            place = path.parent.relative_to(root) if is_folder else Path()
            found.setdefault(os.path.join(os.path.realpath(path.parent), path.name), (path, place))
    return list(found.values()), unread


def name_results(found: list[tuple[Path, Path]]) -> list[tuple[Path, Path, str]]:
    """Add the name of every recording's results: with the recording's ending where only that tells two apart."""
    count = Counter((inside, stem_of(path)) for path, inside in found)
    places = [
        (path, inside, stem_of(path) if count[inside, stem_of(path)] == 1 else path.name.replace(".", "-"))
        for path, inside in found
    ]
    taken: dict[Path, Path] = {}
    for path, inside, stem in places:
        for name in file_names(stem, FORMATS).values():
            if (other := taken.setdefault(inside / name, path)) is not path:
                advice = "give the folder above both, or different folders for the results"
                raise OptionError("recordings", str(path), f"results would be called like those of {other}: {advice}")
    return places


def _endings(others: bool) -> tuple[str, ...]:
    """How names of recordings end."""
    return tuple(end for end, kind in FILE_KINDS.items() if others or kind in ("edf", "bdf"))
