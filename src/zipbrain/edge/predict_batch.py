"""`predict_many`: many recordings through one exported file, side by side, going on where an earlier run stopped.

A recording is finished when its summary (``NAME_zipbrain.json``, written last) is there, all files it lists are there,
and its key is the same: the model file's SHA-256, the recording's size and time of last change, and the options that
change the answer or what is counted (hop, units, channels, audit, batch).
"""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.audit import read_audit
from zipbrain.edge.crew import Crew, Threads
from zipbrain.edge.description import ModelFile
from zipbrain.edge.limits import USUAL, Limits
from zipbrain.edge.model import EdgeModel, check_batch
from zipbrain.edge.predict_one import Opener, check_reading, predict
from zipbrain.edge.recording_tree import find_recordings, name_results
from zipbrain.edge.runtimes import find_runtime
from zipbrain.edge.writers import check_writable, choose_formats, file_names
from zipbrain.errors import DataError, ModelFileError, ZipbrainError
from zipbrain.files import remedy, remove_leftovers, stamp_files, write_whole
from zipbrain.jobs import run_jobs
from zipbrain.signal.cutting import check_hop
from zipbrain.signal.recording import COMPANIONS, check_units
from zipbrain.text import readable, table_cell

TABLE: Final = "zipbrain_recordings.csv"


@dataclass(frozen=True)
class RecordingResult:
    """What became of one recording."""

    recording: Path
    status: str  # "done", "failed", or "skipped": an earlier run has finished it
    summary: dict[str, Any]  # what its summary says; empty if it failed
    files: dict[str, Path]
    error: str = ""  # why it failed, in one line


@dataclass(frozen=True)
class Task:
    """One recording: where its results go, the keywords of `EdgeModel` and of `predict`."""

    recording: Path
    folder: Path
    stem: str
    model: Path
    sha256: str
    session: dict[str, Any]
    options: dict[str, Any]
    overwrite: bool


def predict_many(
    recordings: Iterable[str | Path],
    model: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] | None = None,
    hop_s: float | None = None,
    units: str | None = None,
    check: bool = True,
    channels: Mapping[str, str] | None = None,
    runtime: str = "onnxruntime",
    threads: int | None = None,
    provider: str = "cpu",
    limits: Limits = USUAL,
    backend: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    audit: float | None = None,
    audit_seed: int = 0,
    batch: int | None = None,
    opener: Opener | None = None,
    progress: Callable[[str, float, int], None] | None = None,
) -> list[RecordingResult]:
    """Predict recordings and folders of recordings; one that can't be read does not stop the others.

    Parameters
    ----------
    recordings : iterable of path
        Files, and folders that are searched with all folders in them.
    model : path
        What `zipbrain export` wrote.
    out : path
        Folder to write to; folders within given folders are kept.
    formats, hop_s, units, check, channels, audit, audit_seed, batch, opener
        As for `predict`.
    runtime, threads, provider, limits
        As for `EdgeModel`; if `threads` is not given, workers share the cores that are free.
    backend, workers, address
        As for `zipbrain.jobs.run_jobs`. If no backend is given: processes for several recordings where joblib is
        installed, else one after the other.
    overwrite : bool
        Also compute what an earlier run has finished, and replace results of another model or other options.
    progress : callable, optional
        Called with the name of a recording, how many are done, and how many there are.

    Returns
    -------
    results : list of RecordingResult
        In the order of the recordings; after them folders that can't be read, as failed.
    """
    find_runtime(runtime, threads, provider)
    check_reading(hop_s, channels)
    check_units(units)
    file = ModelFile.read(model)
    read_audit(audit, audit_seed, file.description, model)
    check_batch(batch, file.description.batch)
    convention = file.description.convention
    hop = check_hop(convention.hop_s if hop_s is None else hop_s, convention)
    chosen, _ = choose_formats(formats, file.description, hop)
    found, unread = find_recordings(recordings, others=opener is not None)
    places = name_results(found)
    crew = Crew.gather(backend, workers, threads, len(places))
    check_writable(Path(out))
    placed = Path.absolute if crew.is_elsewhere else Path  # workers elsewhere have another current folder
    session = {"runtime": runtime, "provider": provider, "limits": limits, **crew.session}
    options = {"formats": chosen, "hop_s": hop, "units": units, "check": check, "channels": dict(channels or {})}
    options |= {"opener": opener, "audit": audit, "audit_seed": audit_seed, "batch": batch}
    model = placed(Path(model))
    tasks = [
        Task(placed(path), placed(Path(out) / inside), stem, model, file.sha256, session, options, overwrite)
        for path, inside, stem in places
    ]
    folders = {task.folder for task in tasks}
    for folder in folders:
        remove_leftovers(folder)
    results: dict[int, RecordingResult] = {}

    def report(name: str, done: float) -> None:
        if progress is not None:
            progress(name, done, len(tasks))

    threads_here = Threads(file, _predict_task)
    job: Callable[[Task], RecordingResult] = _predict_task
    if crew.is_alone:
        job = partial(_predict_task, file=file, report=lambda name, share: report(name, len(results) + share))
    elif crew.backend == "threading":
        job = threads_here.run
    try:
        for index, result in run_jobs(job, tasks, backend=crew.backend, workers=crew.workers, address=address):
            results[index] = result
            report(result.recording.name, len(results))
    except BaseException:
        threads_here.stop()
        raise
    for folder in folders:  # of workers that outlived a killed process by some moments
        remove_leftovers(folder)
    lost = [RecordingResult(folder, "failed", {}, {}, readable(line)) for folder, line in unread.items()]
    return [*(results[index] for index in range(len(tasks))), *lost]


def _predict_task(
    task: Task, file: ModelFile | None = None, report: Callable[[str, float], None] | None = None
) -> RecordingResult:
    """Predict one recording in a worker: what is wrong with it is returned, what is wrong with the model raised."""
    share = None if report is None else partial(report, task.recording.name)
    if share is not None:
        share(0.0)
    try:
        key = _key(task)
        if not task.overwrite and (known := _finished(task, key)) is not None:
            return replace(known, status="skipped")
    except ZipbrainError as error:
        return _failed(task, str(error))
    model = opened_model(task, file)
    try:
        predict(task.recording, model, task.folder, stem=task.stem, progress=share, more={"key": key}, **task.options)
        done = _finished(task, key)
    except ModelFileError:
        raise
    except Exception as error:  # an unforeseen failure of one file must not stop the thousand others
        return _failed(task, describe_failure(task.recording, error))
    return done or _failed(task, f"{task.recording}: its results went away again; run the same once more")


def _failed(task: Task, error: str) -> RecordingResult:
    return RecordingResult(task.recording, "failed", {}, {}, readable(" ".join(error.split())))


def describe_failure(recording: Path, error: Exception) -> str:
    """Why a recording could not be predicted, in one line."""
    if isinstance(error, ZipbrainError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"{recording}: not enough memory for it ({error}); close other programs, or take fewer workers"
    return f"{recording}: unexpected {type(error).__name__}: {error}; please report it"


def _key(task: Task) -> dict[str, Any]:
    """What an answer depends on."""
    audit, batch = task.options["audit"], task.options["batch"]
    return {
        "model_sha256": task.sha256,
        "recording": stamp_recording(task.recording),
        **{name: task.options[name] for name in ("hop_s", "units", "check", "channels")},
        **({} if audit is None else {"audit": [audit, task.options["audit_seed"]]}),
        **({} if batch is None else {"batch": batch}),
    }


def stamp_recording(path: Path) -> list[list[int]]:
    """Size and time of last change of a recording's files."""
    try:
        path.stat()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); give a recording") from None
    stamps = stamp_files(path, *(path.with_suffix(end) for end in COMPANIONS.get(path.suffix.lower(), ())))
    return [stamp for stamp in stamps if stamp is not None]


def _finished(task: Task, key: dict[str, Any]) -> RecordingResult | None:
    """What an earlier run wrote, if it is all there; refused if it is something else's."""
    names = file_names(task.stem, task.options["formats"])
    path = task.folder / names["summary"]
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        same, files = summary["key"] == key, {kind: task.folder / name for kind, name in summary["files"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same, files = False, {}
    if not same:
        found = "is of another model, another version of the recording or other options"
        raise DataError(f"{path}: {found}; take another --out, or --overwrite to replace it")
    if not set(names) <= set(files) or not all(file.is_file() for file in files.values()):
        return None
    return RecordingResult(task.recording, "done", summary, files)


_ready = threading.local()  # a worker opens the model once; OpenVINO's can't be shared by threads


def opened_model(task: Task, file: ModelFile | None) -> EdgeModel:
    wanted = (task.model, task.sha256, task.session)
    if getattr(_ready, "wanted", None) != wanted:
        model = EdgeModel(file or task.model, **task.session)
        if model.sha256 != task.sha256:
            raise ModelFileError(f"{task.model}: was changed while recordings were predicted; run the same again")
        _ready.model, _ready.wanted = model, wanted
    found: EdgeModel = _ready.model
    return found


def write_table(results: Sequence[RecordingResult], out: str | Path) -> Path:
    """Write one line per recording as ``zipbrain_recordings.csv``: what became of it, class shares, notes, errors.

    A recording that an earlier run has finished is done: the table tells what the folder holds, not which run made it.
    """
    names = list(dict.fromkeys(name for result in results for name in result.summary.get("classes", ())))
    looks = ("looked_twice",) if any("looked_twice" in result.summary for result in results) else ()
    facts = ("minutes", "windows", "no_decision", *looks, "times_real_time")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    heads = ["recording", "status", *facts, *(f"share_{name}" for name in names), "notes", "error"]
    table.writerow(map(table_cell, heads))
    for result in results:
        found = result.summary
        shares = [found.get("classes", {}).get(name, {}).get("share") for name in names]
        words = "; ".join(found.get("notes", ())), result.error
        status = "done" if result.status == "skipped" else result.status
        row = [str(result.recording), status, *(found.get(fact) for fact in facts), *shares, *words]
        table.writerow(map(table_cell, row))
    path = Path(out) / TABLE
    try:
        write_whole(path, readable(text.getvalue()).encode())
    except OSError as error:
        raise DataError(f"{path}: can't be written ({error.strerror or error}); {remedy(error, 'make room')}") from None
    return path
