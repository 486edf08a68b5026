"""A prediction as files: CSV, EDF+ annotations, BIDS events, YASA's hypnogram, a figure; each whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from zipbrain.edge.description import Description
from zipbrain.edge.edf_annotations import annotations_file
from zipbrain.edge.prediction import Prediction
from zipbrain.edge.sleep_stages import EPOCH_S, UNDECIDED, edf_text, sleep_stages, yasa_name
from zipbrain.edge.text import readable
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.files import write_whole

FORMATS: Final = ("csv", "edf", "bids", "yasa", "figure")
NO_DECISION: Final = "no decision"
MARK: Final = "_zipbrain"  # in the name of everything written here

_BIDS_MARK: Final = "_desc-zipbrain_events"
_BIDS_NAME: Final = re.compile(r"(sub-.+)_(eeg|ieeg|meg)$")


def choose_formats(given: Sequence[str] | None, description: Description, hop_s: float) -> tuple[tuple[str, ...], str]:
    """Decide which files are written, and refuse those that can't be.

    Parameters
    ----------
    given : sequence of str, optional
        Among `FORMATS`; if not given, all that suit the model and the installation.
    description : Description
    hop_s : float
        Seconds from one window to the next.

    Returns
    -------
    formats : tuple of str
    note : str
        What is left out and why, or "".
    """
    sleep = sleep_stages(description.classes) is not None
    scored = sleep and hop_s == EPOCH_S == description.convention.window_s
    plots = find_spec("matplotlib") is not None
    if given is None:
        note = "" if plots else "no figure: matplotlib is not installed (pip install 'zipbrain[plot]')"
        left_out = {*(() if scored else ("yasa",)), *(() if plots else ("figure",))}
        return tuple(name for name in FORMATS if name not in left_out), note
    for name in given:
        if name not in FORMATS:
            raise OptionError("formats", name, f"known are {', '.join(FORMATS)}")
    if "yasa" in given and not scored:
        why = f"windows of {description.convention.window_s:g} s every {hop_s:g} s" if sleep else "no sleep stages"
        raise OptionError("formats", "yasa", f"a hypnogram has one stage per 30 s, this model has {why}")
    if "figure" in given and not plots:
        raise MissingExtra("matplotlib", "plot", "a figure")
    return tuple(name for name in FORMATS if name in given), ""


def file_names(stem: str, formats: Sequence[str]) -> dict[str, str]:
    """Names of the files of each kind for a recording called `stem`; ``"summary"`` is always among them.

    Parameters
    ----------
    stem : str
        Name of the recording without its ending.
    formats : sequence of str
    """
    events = _BIDS_NAME.sub(r"\1", stem) + _BIDS_MARK
    names = {
        "csv": {"csv": f"{stem}{MARK}.csv"},
        "edf": {"edf": f"{stem}{MARK}.edf"},
        "bids": {"bids": f"{events}.tsv", "bids_sidecar": f"{events}.json"},
        "yasa": {"yasa": f"{stem}{MARK}_hypnogram.csv"},
        "figure": {"figure": f"{stem}{MARK}.png", "figure_svg": f"{stem}{MARK}.svg"},
    }
    return {kind: name for chosen in formats for kind, name in names[chosen].items()} | {
        "summary": f"{stem}{MARK}.json"
    }


def check_writable(folder: Path, names: Iterable[str] = ()) -> None:
    """Make a folder, and refuse it if files of these names can't be written there; to call before computing."""
    named = list(names)
    probe = folder / f".{max(named, key=len, default='zipbrain')}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataError(f"{folder}: can't be written to ({error.strerror or error}); give another folder") from None
    for name in named:
        if (folder / name).is_dir():
            raise DataError(f"{folder / name}: is a folder where a file is to be written; give another folder")


def write(
    prediction: Prediction, folder: str | Path, formats: Sequence[str], *, stem: str | None = None,
    more: dict[str, Any] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write a prediction: all files are made before the first earlier one is replaced, and the summary comes last.

    Where the summary is, everything is. Earlier files of kinds that are not written now stay if they are of the same
    model and options, and are listed in the summary; else they are removed, so that no two results stand side by side.

    Parameters
    ----------
    prediction : Prediction
    folder : path
    formats : sequence of str
        Among `FORMATS`.
    stem : str, optional
        Name of the files; the recording's if not given.
    more : dict, optional
        What the summary says besides.

    Returns
    -------
    files : dict of str to Path
    """
    folder, stem = Path(folder), stem or prediction.path.stem
    names = file_names(stem, formats)
    summary = prediction.summary() | (more or {})
    valid, stale = _earlier(folder, stem, summary)
    listed = {**{kind: name for kind, name in valid.items() if kind not in names}, **names}
    contents: dict[str, Callable[[], bytes]] = {
        "csv": lambda: _csv(prediction),
        "edf": lambda: annotations_file(_annotations(prediction), prediction.start),
        "bids": lambda: _events(prediction),
        "bids_sidecar": lambda: _sidecar(prediction),
        "yasa": lambda: _hypnogram(prediction),
        "figure": lambda: _figure(prediction, "png"),
        "figure_svg": lambda: _figure(prediction, "svg"),
        "summary": lambda: _json(summary | {"files": listed}),
    }
    aside = folder / f".{stem}{MARK}.{secrets.token_hex(4)}"
    try:
        aside.mkdir(parents=True)
        for kind, name in names.items():
            write_whole(aside / name, contents[kind]())
        for name in (names["summary"], *set(stale).difference(names.values())):
            (folder / name).unlink(missing_ok=True)  # from now on, what is there is not whole
        for name in names.values():
            os.replace(aside / name, folder / name)
    except OSError as error:
        words = f"results of {prediction.path.name} can't be written ({error.strerror or error})"
        raise DataError(f"{folder}: {words}; make room or give another folder") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return {kind: folder / name for kind, name in listed.items()}


def _earlier(folder: Path, stem: str, summary: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Files that an earlier summary lists: by kind those that tell the same, and those that tell something else."""
    known = file_names(stem, FORMATS)
    try:
        before = json.loads((folder / known["summary"]).read_text(encoding="utf-8"))
        same = all(before.get(name) == summary.get(name) for name in ("key", "hop_s"))
        same = same and before["model"]["sha256"] == summary["model"]["sha256"]
        found = {kind: name for kind, name in before["files"].items() if known.get(kind) == name != known["summary"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, []
    if same:
        return {kind: name for kind, name in found.items() if (folder / name).is_file()}, []
    return {}, list(found.values())


def _csv(prediction: Prediction) -> bytes:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["start_s", "stop_s", *(f"probability_{name}" for name in prediction.classes), "decision", "note"])
    for start, row, label, flag in _rows(prediction):
        cells = [""] * len(row) if flag else [f"{value:.6f}" for value in row]
        table.writerow([_number(start), _number(start + prediction.window_s), *cells, label or NO_DECISION, flag])
    return readable(text.getvalue()).encode()


def _annotations(prediction: Prediction) -> Iterable[tuple[float, float, str]]:
    """One annotation per window; sleep stages by the texts that EDF+ has for them."""
    stages = sleep_stages(prediction.classes)
    texts = prediction.classes if stages is None else tuple(edf_text(stage) for stage in stages)
    named = dict(zip(prediction.classes, texts, strict=True))
    for start, _, label, flag in _rows(prediction):
        undecided = f"{NO_DECISION}: {flag}" if stages is None else UNDECIDED[1]
        yield start, prediction.window_s, undecided if flag else named[label]


def _events(prediction: Prediction) -> bytes:
    """Tab-separated, ``n/a`` for what is not there, as BIDS wants it."""
    lines = ["onset\tduration\ttrial_type\tprobability\tnote"]
    duration = _number(prediction.window_s)
    for start, row, label, flag in _rows(prediction):
        share = "n/a" if flag else f"{row.max():.6f}"
        lines.append(f"{_number(start)}\t{duration}\t{_cell(label)}\t{share}\t{_cell(flag)}")
    return readable("\n".join(lines) + "\n").encode()


def _sidecar(prediction: Prediction) -> bytes:
    said = prediction.description
    maker = f"{said.model} trained on {said.corpus}, {said.precision}, file sha256 {prediction.model_sha256}"
    return _json(
        {
            "onset": {"Description": "Start of the window from the recording's first sample.", "Units": "s"},
            "duration": {"Description": "Length of the window.", "Units": "s"},
            "trial_type": {
                "LongName": "Predicted class",
                "Description": f"The most probable class, computed by zipbrain ({maker}). n/a: no decision, see note.",
                "Levels": {_cell(name): f"The model's class {_cell(name)!r}." for name in prediction.classes},
            },
            "probability": {"Description": "Probability that the model gives the predicted class.", "Units": "1"},
            "note": {"Description": "Why there is no decision, such as a gap, flat or saturated channels."},
        }
    )


def _hypnogram(prediction: Prediction) -> bytes:
    """The table of ``yasa.Hypnogram(...).hypno.to_csv()``: one stage per epoch of 30 s, UNS where there is none."""
    stages = sleep_stages(prediction.classes)
    if stages is None or not np.allclose(prediction.starts, EPOCH_S * np.arange(len(prediction.starts))):
        raise OptionError("formats", "yasa", "a hypnogram has one sleep stage for every 30 s from the beginning")
    names = (*(yasa_name(stage) for stage in stages), UNDECIDED[0])
    lines = [f"{epoch},{names[decision]}" for epoch, decision in enumerate(prediction.decisions)]
    return ("\n".join(["Epoch,Stage", *lines]) + "\n").encode()


def _figure(prediction: Prediction, kind: str) -> bytes:
    from zipbrain.edge.figure import draw

    return draw(prediction, kind)


def _rows(prediction: Prediction) -> Iterable[tuple[float, Any, str, str]]:
    """Start, probabilities, decision and flag of every window."""
    starts = (float(start) for start in prediction.starts)
    return zip(starts, prediction.probabilities, prediction.labels, prediction.flags, strict=True)


def _cell(text: str) -> str:
    return " ".join(text.split()) or "n/a"


def _number(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _json(content: Any) -> bytes:
    return readable(json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
