"""What became of each of many recordings, and one table of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.text import readable
from zipbrain.errors import DataError
from zipbrain.files import write_whole

TABLE: Final = "zipbrain_recordings.csv"


@dataclass(frozen=True)
class RecordingResult:
    """What became of one recording."""

    recording: Path
    status: str  # "done", "failed", or "skipped": an earlier run has finished it
    summary: dict[str, Any]  # what its summary says; empty if it failed
    files: dict[str, Path]
    error: str = ""  # why it failed, in one line


def write_table(results: Sequence[RecordingResult], out: str | Path) -> Path:
    """Write one line per recording as ``zipbrain_recordings.csv``: what became of it, class shares, notes, errors."""
    names = list(dict.fromkeys(name for result in results for name in result.summary.get("classes", ())))
    facts = ("minutes", "windows", "no_decision", "times_real_time")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["recording", "status", *facts, *(f"share_{name}" for name in names), "notes", "error"])
    for result in results:
        found = result.summary
        shares = [found.get("classes", {}).get(name, {}).get("share") for name in names]
        words = "; ".join(found.get("notes", ())), result.error
        table.writerow([result.recording, result.status, *(found.get(fact) for fact in facts), *shares, *words])
    path = Path(out) / TABLE
    try:
        write_whole(path, readable(text.getvalue()).encode())
    except OSError as error:
        raise DataError(f"{path}: can't be written ({error.strerror or error}); make room") from None
    return path
