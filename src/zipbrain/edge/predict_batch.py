"""`predict_many`: many recordings through one exported file, side by side, going on where an earlier run stopped.

A recording is finished when its summary (``NAME_zipbrain.json``, written last) is there, all files it lists are there,
and its key is the same: that of the `PredictionPlan`, and the recording's size and time of last change.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.crew import Crew, Report
from zipbrain.edge.description import ModelFile
from zipbrain.edge.limits import USUAL, Limits
from zipbrain.edge.predict_one import Opener, predict
from zipbrain.edge.prediction import read_key
from zipbrain.edge.prediction_plan import Task, describe_failure, open_model, plan_prediction, stamp_recording
from zipbrain.edge.recording_tree import find_recordings, name_results
from zipbrain.edge.writers import check_writable, choose_formats, file_names
from zipbrain.errors import DataError, ModelFileError, ZipbrainError
from zipbrain.files import remedy, remove_leftovers, write_whole
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
    options: dict[str, Any] = {"hop_s": hop_s, "units": units, "check": check, "channels": channels, "opener": opener}
    options |= {"audit": audit, "audit_seed": audit_seed, "batch": batch}
    plan = plan_prediction(model, options, runtime=runtime, threads=threads, provider=provider, limits=limits)
    chosen, _ = choose_formats(formats, plan.file.description, plan.options["hop_s"])
    found, unread = find_recordings(recordings, others=opener is not None)
    crew = Crew.gather(backend, workers, address, threads, len(found))
    check_writable(Path(out))
    tasks = [
        plan.task(crew, path, Path(out) / inside, stem=stem, formats=chosen, overwrite=overwrite)
        for path, inside, stem in name_results(found)
    ]
    folders = {task.folder for task in tasks}
    for folder in folders:
        remove_leftovers(folder)
    results: dict[int, RecordingResult] = {}

    def report(name: str, share: float) -> None:
        if progress is not None:
            progress(name, len(results) + share, len(tasks))

    with crew.at_work(_predict_files, plan.file, report) as share_out:
        for index, result in share_out(tasks):
            results[index] = result
            report(result.recording.name, 0.0)
    for folder in folders:  # of workers that outlived a killed process by some moments
        remove_leftovers(folder)
    lost = [RecordingResult(folder, "failed", {}, {}, readable(line)) for folder, line in unread.items()]
    return [*(results[index] for index in range(len(tasks))), *lost]


def _predict_files(task: Task, file: ModelFile | None = None, report: Report | None = None) -> RecordingResult:
    """Predict one recording in a worker: what is wrong with it is returned, what is wrong with the model raised."""
    share = None if report is None else partial(report, task.recording.name)
    if share is not None:
        share(0.0)
    try:
        task = replace(task, key={**task.key, "recording": stamp_recording(task.recording)})
        if not task.overwrite and (known := _finished(task)) is not None:
            return replace(known, status="skipped")
    except ZipbrainError as error:
        return _failed(task, error)
    model = open_model(task, file)
    try:
        where: dict[str, Any] = {"formats": task.formats, "stem": task.stem, "more": {"key": task.key}}
        predict(task.recording, model, task.folder, progress=share, **where, **task.options)
        done = _finished(task)
    except ModelFileError:
        raise
    except Exception as error:  # an unforeseen failure of one file must not stop the thousand others
        return _failed(task, error)
    return done or _failed(task, DataError(f"{task.recording}: its results went away again; run the same once more"))


def _failed(task: Task, error: Exception) -> RecordingResult:
    return RecordingResult(task.recording, "failed", {}, {}, readable(describe_failure(task.recording, error)))


def _finished(task: Task) -> RecordingResult | None:
    """What an earlier run wrote, if it is all there; refused if it is something else's."""
    names = file_names(task.stem, task.formats)
    path = task.folder / names["summary"]
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        same = read_key(summary) == task.key
        files = {kind: task.folder / name for kind, name in summary["files"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same, files = False, {}
    if not same:
        found = "is of another model, another runtime, another version of the recording or other options"
        raise DataError(f"{path}: {found}; take another --out, or --overwrite to replace it")
    if not set(names) <= set(files) or not all(file.is_file() for file in files.values()):
        return None
    return RecordingResult(task.recording, "done", summary, files)


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
