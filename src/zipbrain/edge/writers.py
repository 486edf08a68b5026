"""Writing a prediction: which formats suit, names of files, and all files at once or none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zipbrain.edge.description import Description
from zipbrain.edge.formats import FORMATS, MARK, json_bytes
from zipbrain.edge.prediction import Prediction, read_key
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.files import new_partial, remedy, write_whole


def choose_formats(given: Sequence[str] | None, description: Description, hop_s: float) -> tuple[tuple[str, ...], str]:
    """The formats that are written, and a note about what is left out for want of a package.

    If none are given, all that suit the model, `hop_s` seconds between windows, and the installation.
    """
    suited = {name: form for name, form in FORMATS.items() if not form.refusal_of(description, hop_s)}
    missing = [form for form in suited.values() if not form.is_installed()]
    if given is None:
        notes = [f"no {f.name}: {f.package} is not installed (pip install 'zipbrain[{f.extra}]')" for f in missing]
        return tuple(name for name, form in suited.items() if form not in missing), "; ".join(notes)
    for name in given:
        if name not in FORMATS:
            raise OptionError("formats", name, f"known are {', '.join(FORMATS)}")
        if name not in suited:
            raise OptionError("formats", name, FORMATS[name].refusal_of(description, hop_s))
        if (form := FORMATS[name]) in missing:
            raise MissingExtra(form.package, form.extra, f"a {name}")
    return tuple(name for name in FORMATS if name in given), ""


def file_names(stem: str, formats: Iterable[str]) -> dict[str, str]:
    """Names of the files of each kind for a recording called `stem`; ``"summary"`` is always among them."""
    names = {kind: name for chosen in formats for kind, name in FORMATS[chosen].file_names(stem).items()}
    return names | {"summary": f"{stem}{MARK}.json"}


def check_writable(folder: Path, names: Iterable[str] = ()) -> None:
    """Make a folder, and refuse it if files of these names can't be written there; to call before computing."""
    named = list(names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_partial(folder / max(named, key=len, default="zipbrain")):
            pass
    except OSError as error:
        raise DataError(f"{folder}: can't be written to ({error.strerror or error}); give another folder") from None
    for name in named:
        if (folder / name).is_dir():
            raise DataError(f"{folder / name}: is a folder where a file is to be written; give another folder")


def write(
    prediction: Prediction,
    folder: str | Path,
    formats: Sequence[str],
    *,
    stem: str | None = None,
    more: dict[str, Any] | None = None,
) -> dict[str, Path]:
    """Write a prediction: all files are made before the first earlier one is replaced, and the summary comes last.

    Where the summary is, everything is. Earlier files of kinds that are not written now stay if they are of the same
    model and options, and are listed in the summary; else they are removed, so that no two results stand side by side.
    `more` are further entries of the summary.
    """
    folder, stem = Path(folder), stem or prediction.path.stem
    names = file_names(stem, formats)
    summary = prediction.summary() | (more or {})
    valid, stale = _earlier(folder, stem, summary)
    listed = {**{kind: name for kind, name in valid.items() if kind not in names}, **names}
    try:
        with new_partial(folder / f"{stem}{MARK}", is_folder=True) as aside:
            for chosen in formats:
                for kind, content in FORMATS[chosen].contents(prediction).items():
                    write_whole(aside / names[kind], content)
            write_whole(aside / names["summary"], json_bytes(summary | {"files": listed}))
            for name in (names["summary"], *set(stale).difference(names.values())):
                (folder / name).unlink(missing_ok=True)  # from now on, what is there is not whole
            for name in names.values():
                os.replace(aside / name, folder / name)
    except OSError as error:
        words = f"results of {prediction.path.name} can't be written ({error.strerror or error})"
        raise DataError(f"{folder}: {words}; {remedy(error, 'make room or give another folder')}") from None
    return {kind: folder / name for kind, name in listed.items()}


def _earlier(folder: Path, stem: str, summary: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Files that an earlier summary lists: by kind those of the same model and options, and all others."""
    known = file_names(stem, FORMATS)
    try:
        before = json.loads((folder / known["summary"]).read_text(encoding="utf-8"))
        same = read_key(before) == read_key(summary) and before.get("hop_s") == summary.get("hop_s")
        same = same and before["model"]["sha256"] == summary["model"]["sha256"]
        found = {kind: name for kind, name in before["files"].items() if known.get(kind) == name != known["summary"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, []
    if same:
        return {kind: name for kind, name in found.items() if (folder / name).is_file()}, []
    return {}, list(found.values())
