"""`predict_archive`: a tree of any number of recordings into one Parquet dataset, going on where it was stopped.

The tree is walked while recordings are predicted, in batches; workers hand windows over, and this process alone writes:
a part of the dataset, then the index that lists it (`ArchiveIndex`). Every recording is in the dataset once, whatever
was killed and however often.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.archive_index import INDEX, ArchiveIndex, Outcome, name_recording
from zipbrain.edge.audit import Audit
from zipbrain.edge.crew import Crew, Report
from zipbrain.edge.description import ModelFile
from zipbrain.edge.limits import USUAL, Limits
from zipbrain.edge.parquet_parts import DATASET, Parts, Rows
from zipbrain.edge.predict_batch import TABLE
from zipbrain.edge.predict_one import Opener, predict
from zipbrain.edge.prediction_plan import Task, describe_failure, open_model, plan_prediction, stamp_recording
from zipbrain.edge.recording_tree import list_given, no_recording_in, walk_recordings
from zipbrain.edge.writers import check_writable
from zipbrain.errors import DataError, ModelFileError, OptionError
from zipbrain.files import lock_folder, new_partial, remedy
from zipbrain.text import readable, table_cell

_BATCH: Final = 4096  # recordings that are shared out together
_PART_WINDOWS: Final = 200_000  # of a part of the dataset, at least, unless one of the others comes first
_PART_RECORDINGS: Final = 2000
_PART_SECONDS: Final = 60.0  # of work that a kill may cost
_SHOWN: Final = 20  # folders that can't be read, in the report
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")


@dataclass
class ArchiveReport:
    """What became of the recordings of an archive."""

    dataset: Path  # folder of Parquet files
    table: Path  # CSV with a line per recording
    done: int = 0  # recordings in the dataset
    skipped: int = 0  # of them from an earlier run
    failed: int = 0
    hours: float = 0.0  # of EEG in the dataset
    windows: int = 0
    no_decision: int = 0
    hours_per_second: float = 0.0  # of EEG in this run
    seconds: float = 0.0  # this run took
    reasons: list[tuple[str, int, str]] = field(default_factory=list)  # of failures: words, how many, an example
    unreadable: int = 0  # folders
    folders: list[str] = field(default_factory=list)  # a line for each of the first of them
    audit: Audit | None = None


def predict_archive(
    recordings: Iterable[str | Path],
    model: str | Path,
    out: str | Path,
    *,
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
) -> ArchiveReport:
    """Predict all recordings of folders into one Parquet dataset; memory does not grow with their number.

    Parameters
    ----------
    out : path
        Folder to write to: ``zipbrain_predictions.parquet``, a folder of parts with a row per window;
        ``zipbrain_archive.sqlite``, from which a stopped run goes on; ``zipbrain_recordings.csv``.
    overwrite : bool
        Remove what an earlier run wrote there, and predict all again.
    progress : callable, optional
        Called with words on speed, how many recordings are done, and how many there are (0 until they are counted).

    The others are those of `predict_many`.
    """
    options: dict[str, Any] = {"hop_s": hop_s, "units": units, "check": check, "channels": channels, "opener": opener}
    options |= {"audit": audit, "audit_seed": audit_seed, "batch": batch}
    plan = plan_prediction(model, options, runtime=runtime, threads=threads, provider=provider, limits=limits)
    given, folder = list_given(recordings), Path(out)
    check_writable(folder)
    crew = Crew.gather(backend, workers, address, threads, _BATCH)
    busy = OptionError("out", str(folder), "another run is writing there; wait for it, or take another folder")
    with lock_folder(folder, busy):
        parts = Parts(folder, plan.file.description, plan.file.sha256)
        if overwrite:
            (folder / INDEX).unlink(missing_ok=True)
            shutil.rmtree(parts.folder)
            parts.folder.mkdir()
        index = ArchiveIndex(folder)
        try:
            index.settle_key(plan.key)
            parts.remove_unlisted(index.parts())
            run = _Run(index, parts, progress)
            run.count(given, others=opener is not None)
            found = walk_recordings(given, run.lose, others=opener is not None)
            try:
                with crew.at_work(_predict_rows, plan.file) as share_out:
                    while some := list(islice(found, _BATCH)):
                        claimed = run.claim(some)
                        tasks = [plan.task(crew, path) for path in claimed]
                        for place, answer in share_out(tasks):
                            run.take(name_recording(claimed[place]), answer)
            finally:
                run.flush()
            return run.report(folder, given, audit, audit_seed, others=opener is not None)
        finally:
            index.close()


@dataclass(frozen=True, eq=False)
class _RecordingRows:
    """The windows of one recording and facts about it, or why there are none, as a worker hands them over."""

    rows: Rows | None
    facts: dict[str, Any]
    error: str = ""


def _predict_rows(task: Task, file: ModelFile | None = None, report: Report | None = None) -> _RecordingRows:
    """Predict one recording: what is wrong with it is returned, what is wrong with the model raised."""
    model = open_model(task, file)
    share = None if report is None else partial(report, task.recording.name)
    try:
        found = predict(task.recording, model, progress=share, **task.options)
    except ModelFileError:
        raise
    except Exception as error:  # an unforeseen failure of one file must not stop the thousand others
        return _RecordingRows(None, {}, describe_failure(task.recording, error))
    summary = found.summary()
    kept = ("minutes", "windows", "no_decision", "looked_twice", "seconds", "times_real_time", "audit", "notes")
    facts = {name: summary[name] for name in kept if name in summary}
    shares = {name: one["share"] for name, one in summary["classes"].items()}
    return _RecordingRows(Rows.of(found), facts | {"shares": shares})


class _Run:
    """One run: what is claimed, what waits for the next part, and how fast it goes."""

    def __init__(self, index: ArchiveIndex, parts: Parts, progress: Callable[[str, float, int], None] | None) -> None:
        self._index, self._parts, self._progress = index, parts, progress
        self._rows: list[tuple[str, Rows]] = []
        self._outcomes: list[Outcome] = []
        self._began = self._flushed = time.monotonic()
        self._started: float | None = None  # when the first recording was shared out
        self._windows, self._minutes, self._finished, self._total = 0, 0.0, 0, 0
        self._skipped = self._unreadable = 0
        self._folders: list[str] = []

    def count(self, given: Sequence[str | Path], *, others: bool) -> None:
        """Count the recordings in a thread of its own, so that progress can show the time left."""

        def walk() -> None:
            self._total = sum(1 for _ in walk_recordings(given, lambda folder, line: None, others=others))

        if self._progress is not None:
            threading.Thread(target=walk, daemon=True).start()

    def lose(self, folder: Path, line: str) -> None:
        """Count a folder that can't be read."""
        self._unreadable += 1
        if len(self._folders) < _SHOWN:
            self._folders.append(readable(line))

    def claim(self, batch: Sequence[Path]) -> list[Path]:
        """Those of a batch that are to be predicted; the others are done, or fail here."""

        def stamped() -> Iterator[tuple[Path, str]]:
            for path in batch:
                try:
                    yield path, repr(stamp_recording(path))
                except DataError:  # it is refused with the reason when it is read
                    yield path, ""

        claimed, done = self._index.claim(stamped())
        self._skipped += done
        self._finished += len(batch) - len(claimed)
        self._started = self._started or time.monotonic()
        self._tell()
        return claimed

    def take(self, name: str, answer: _RecordingRows) -> None:
        """Keep an answer for the next part."""
        self._outcomes.append(Outcome(name, answer.facts, _reason(answer.error), answer.error))
        if answer.rows is not None:
            self._rows.append((name, answer.rows))
            self._windows += len(answer.rows.starts)
            self._minutes += answer.facts["minutes"]
        self._finished += 1
        waited = time.monotonic() - self._flushed
        if self._windows >= _PART_WINDOWS or len(self._outcomes) >= _PART_RECORDINGS or waited >= _PART_SECONDS:
            self.flush()
        self._tell()

    def flush(self) -> None:
        """Write what waits as a part, and list it."""
        if self._outcomes:
            number = self._index.next_part() if self._rows else None
            windows = 0 if number is None else self._parts.write(number, self._rows)
            self._index.settle(self._outcomes, number, windows)
        self._rows, self._outcomes, self._windows, self._flushed = [], [], 0, time.monotonic()

    def _speed(self) -> float:
        """Hours of EEG a second."""
        return self._minutes / 60 / max(time.monotonic() - (self._started or self._began), 1e-6)

    def _tell(self) -> None:
        if self._progress is not None:
            done = min(self._finished, self._total) if self._total else self._finished
            self._progress(f"{self._speed():.3g} hours of EEG a second", done, self._total)

    def report(
        self, folder: Path, given: Sequence[str | Path], share: float | None, seed: int, *, others: bool
    ) -> ArchiveReport:
        """What the index holds of this run's recordings; their table is written."""
        counts = self._index.counts()
        if not counts and not self._unreadable:
            raise no_recording_in(given[0], others=others)
        minutes, windows, undecided, *audited = self._index.totals(
            "minutes", "windows", "no_decision", "audit.windows", "audit.agreeing"
        )
        return ArchiveReport(
            folder / DATASET,
            _write_table(self._index, folder),
            counts.get("done", 0),
            self._skipped,
            counts.get("failed", 0) + counts.get("changed", 0),
            minutes / 60,
            int(windows),
            int(undecided),
            self._speed(),
            time.monotonic() - self._began,
            self._index.reasons(),
            self._unreadable,
            self._folders,
            None if share is None else Audit(share, seed, int(audited[0]), int(audited[1])),
        )


def _reason(error: str) -> str:
    """An error without the file's name, numbers and advice: ``lasts N s, but a window N s``."""
    words = error.partition(": ")[2] or error
    return _NUMBER.sub("N", words.partition(";")[0].partition(" (")[0])


def _write_table(index: ArchiveIndex, folder: Path) -> Path:
    """Write one line per recording of this run, one at a time."""
    path = folder / TABLE
    facts = ("minutes", "windows", "no_decision", "times_real_time")
    try:
        with new_partial(path) as aside:
            with aside.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(["recording", "status", *facts, "shares", "notes", "error"])
                for name, status, found, error in index.rows():
                    shares = ", ".join(f"{key} {value}" for key, value in found.get("shares", {}).items())
                    words = shares, "; ".join(found.get("notes", ())), error
                    state = "done" if status == "done" else "failed"
                    row = [name, state, *(found.get(fact) for fact in facts), *words]
                    table.writerow([readable(cell) if isinstance(cell, str) else cell for cell in map(table_cell, row)])
            os.replace(aside, path)
    except OSError as error:
        raise DataError(f"{path}: can't be written ({error.strerror or error}); {remedy(error, 'make room')}") from None
    return path
