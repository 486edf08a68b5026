"""Which recordings are meant by files and folders, and what their results are called."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from zipbrain.edge.formats import FORMATS, MARK
from zipbrain.edge.predict_one import stem_of
from zipbrain.edge.recording_tree import recording_endings
from zipbrain.edge.writers import file_names
from zipbrain.errors import OptionError


def find_recordings(given: Iterable[str | Path], *, others: bool = False) -> list[tuple[Path, Path]]:
    """List recordings, each with the folder it stands in, relative to the folder that was given.

    Folders are searched with all folders in them, with `others` also for formats that MNE reads; what zipbrain wrote
    there is not taken.
    """
    if isinstance(given, str | Path) or not isinstance(given, Iterable):
        raise OptionError("recordings", given, "it must be a list of paths")
    endings = recording_endings(others=others)
    found: dict[str, tuple[Path, Path]] = {}
    for name in given:
        path = Path(name)
        if not path.is_dir():
            found.setdefault(os.path.realpath(path), (path, Path()))
            continue
        named = (p for p in path.rglob("*") if p.name.lower().endswith(endings))
        inside = sorted(p for p in named if p.is_file() or (p.is_symlink() and not p.exists()))  # else lost in silence
        inside = [p for p in inside if not stem_of(p).endswith(MARK) and not p.name.startswith(".")]
        if not inside:
            raise OptionError("recordings", str(path), f"no file in it ends in {', '.join(endings)}")
        for recording in inside:
            found.setdefault(os.path.realpath(recording), (recording, recording.parent.relative_to(path)))
    if not found:
        raise OptionError("recordings", [], "at least one is needed")
    return list(found.values())


def named_apart(found: list[tuple[Path, Path]]) -> list[tuple[Path, Path, str]]:
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
