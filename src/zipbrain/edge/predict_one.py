"""`predict`: one recording through one exported file, window by window."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import electrode
from zipbrain.edge.audit import Audit, read_audit
from zipbrain.edge.model import USUAL_BATCH, EdgeModel, as_probabilities, check_batch
from zipbrain.edge.prediction import NO_ANSWER, Prediction
from zipbrain.edge.writers import check_writable, choose_formats, file_names, write
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.cutting import check_hop, windows
from zipbrain.signal.edf import open_edf
from zipbrain.signal.recording import file_kind

Opener = Callable[..., Any]


def predict(
    recording: str | Path | Any,
    model: str | Path | EdgeModel,
    out: str | Path | None = None,
    *,
    formats: Sequence[str] | None = None,
    hop_s: float | None = None,
    units: str | None = None,
    check: bool = True,
    channels: Mapping[str, str] | None = None,
    opener: Opener | None = None,
    stem: str | None = None,
    progress: Callable[[float], None] | None = None,
    more: dict[str, Any] | None = None,
    audit: float | None = None,
    audit_seed: int = 0,
    batch: int | None = None,
) -> Prediction:
    """`Prediction` for every window of a recording; nothing is decided where the signal is not good.

    Parameters
    ----------
    recording : path, or an open recording
        EDF or BDF; anything with the attributes of `EDFRecording` works too.
    model : path or EdgeModel
        What `zipbrain export` wrote.
    out : path, optional
        Folder to write to; earlier results of the same name are replaced, all at once. Nothing is written if not given.
    formats : sequence of {"csv", "edf", "bids", "yasa", "figure"}, optional
        All that suit the model and the installation if not given.
    hop_s : float, optional
        Seconds from one window to the next; the model's own if not given.
    units : {"nV", "uV", "mV", "V"}, optional
        What the file's numbers are, where it is known that its header is wrong.
    check : bool
        Refuse amplitudes that can't be microvolts.
    channels : dict of str to str, optional
        The recording's names of electrodes, ``{"C3": "EEG 1"}``.
    opener : callable, optional
        Opens recordings that are neither EDF nor BDF, called as ``opener(path, units=units, check=check)``.
    stem : str, optional
        Name of the files that are written; the recording's if not given.
    progress : callable, optional
        Called with the share that is done.
    more : dict, optional
        Further entries of the summary's file.
    audit : float, optional
        This share of the windows, drawn at random, runs again uncompressed, for a file with a second look: `Audit`.
    audit_seed : int
        Of the draw.
    batch : int, optional
        Windows per call of the network; with 1 the answers are those of a stream to the last bit. As `EdgeModel.look`
        has it if not given.

    """
    check_reading(hop_s, channels)
    if not isinstance(recording, str | Path) and not hasattr(recording, "ch_names"):
        advice = "give a path or an open recording; `predict_many` takes several"
        raise OptionError("recording", type(recording).__name__, advice)
    ready = model if isinstance(model, EdgeModel) else EdgeModel(model)
    convention = ready.description.convention
    hop = check_hop(convention.hop_s if hop_s is None else hop_s, convention)
    check_batch(batch, ready.description.batch)
    asked = read_audit(audit, audit_seed, ready.description, ready.path)
    notes = list(ready.notes)
    if isinstance(faults := ready.description.parity.get("faults"), list) and faults:
        words = "; ".join(map(str, faults))
        notes.append(f"the model's file was kept by force, it differs from its original: {words}")
    if out is not None:
        formats, note = choose_formats(formats, ready.description, hop)
        notes += [note] if note else []
    opened = open_any(recording, units, check, opener) if isinstance(recording, str | Path) else recording
    if out is not None:
        stem = stem or stem_of(Path(opened.path))
        check_writable(Path(out), file_names(stem, formats or ()).values())
    rename(opened, channels or {})
    begin = time.perf_counter()
    starts, probabilities, flags, looked, audited = _predict_windows(opened, ready, hop, progress, asked, batch)
    seconds, start = time.perf_counter() - begin, getattr(opened, "start", None)
    answers = Path(opened.path), ready.description, ready.sha256, ready.runtime, starts, probabilities, flags
    times = hop, float(opened.duration), seconds, start
    prediction = Prediction(*answers, *times, [*opened.notes, *notes], looked, audited)
    if out is not None:
        write(prediction, out, formats or (), stem=stem, more=more)
    return prediction


def _predict_windows(
    recording: Any,
    model: EdgeModel,
    hop: float,
    progress: Callable[[float], None] | None,
    audit: Audit | None,
    batch: int | None,
) -> tuple[NDArray[np.float64], NDArray[np.float32], tuple[str, ...], NDArray[np.bool_] | None, Audit | None]:
    """Starts (n,), probabilities (n, classes) and flags of all windows, which were looked at twice (n,), and the audit.

    Windows with a flag do not go through the network.
    """
    convention = model.description.convention
    total = max(1, math.floor((recording.duration - convention.window_s) / hop + 1e-9) + 1)
    starts, answers, flags, looked = [], [], list[str](), []
    draw = None if audit is None else audit.draw(recording.path)
    for some in windows(recording, convention, hop_s=hop, batch=max(batch or 0, USUAL_BATCH)):
        good = np.array([not flag for flag in some.flags], dtype=bool)
        rows = np.full((len(good), len(model.description.classes)), np.nan, dtype=np.float32)
        logits, twice = model.look(some.x[good], batch=batch)
        rows[good] = as_probabilities(logits)
        looked.append(np.zeros(len(good), dtype=bool))
        looked[-1][good] = twice
        if audit is not None and draw is not None:
            chosen = good & (draw.random(len(good)) < audit.share)
            if chosen.any():
                audit = audit.add(rows[chosen], as_probabilities(model.look(some.x[chosen], math.inf, batch=batch)[0]))
        silent = np.isnan(rows[:, 0])  # a row has all probabilities or none
        flags += [flag or (NO_ANSWER if blank else "") for flag, blank in zip(some.flags, silent, strict=True)]
        starts.append(some.starts)
        answers.append(rows)
        if progress is not None:
            progress(min(1.0, len(flags) / total))
    twice_all = np.concatenate(looked) if model.description.looks_twice else None
    return np.concatenate(starts), np.concatenate(answers), tuple(flags), twice_all, audit


def check_reading(hop_s: object, channels: object) -> None:
    """Refuse a hop that is no number, and channels that are no table of names."""
    if hop_s is not None and (isinstance(hop_s, bool) or not isinstance(hop_s, Real)):
        raise OptionError("hop_s", hop_s, "it is a number of seconds")
    is_table = isinstance(channels, Mapping) and all(
        isinstance(name, str) for pair in channels.items() for name in pair
    )
    if channels is not None and not is_table:
        raise OptionError("channels", channels, "it must be a dictionary of names, such as {'C3': 'EEG 1'}")


def open_any(path: str | Path, units: str | None, check: bool, opener: Opener | None) -> Any:
    """An open recording: EDF and BDF by zipbrain's own reader, other formats by the `opener`."""
    path = Path(path)
    if file_kind(path) not in ("edf", "bdf", None):
        if opener is None:
            advice = "pip install 'zipbrain[report]', or convert it to EDF"
            raise DataError(f"{path}: only EDF and BDF are read without MNE; {advice}")
        return opener(path, units=units, check=check)
    return open_edf(path, units=units, check=check)


def stem_of(path: Path) -> str:
    """Name of a recording without its ending."""
    return path.name[: -len(".fif.gz")] if path.name.lower().endswith(".fif.gz") else path.stem


def rename(recording: Any, channels: Mapping[str, str]) -> None:
    """Call channels as the model knows them: new name to old name in any usual spelling, ``{"C3": "EEG 1"}``."""
    names = list(recording.ch_names)
    for new, old in channels.items():
        rows = [row for row, name in enumerate(recording.ch_names) if name == old]
        rows = rows or [row for row, name in enumerate(recording.ch_names) if electrode(name) == electrode(old)]
        if len(rows) != 1:
            problem = "is not there" if not rows else "could be several"
            known = ", ".join(recording.ch_names)
            wish = f"channel {old}, which {new} is to be taken from, {problem}: it has {known}"
            raise DataError(f"{recording.path}: {wish}; correct --rename")
        names[rows[0]] = new
    for new in channels:
        if sum(electrode(name) == electrode(new) for name in names) > 1:
            advice = "rename the other one too (--rename)"
            raise DataError(f"{recording.path}: two channels would be called {new}; {advice}")
    recording.ch_names = names
