"""Labels that come as tables: rows of file, onset, duration and label, for folders and BIDS datasets."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from zipbrain.data.labelling import Plan
from zipbrain.errors import DataError
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import regular
from zipbrain.signal.recording import Recording

Row = Sequence[float | int | None]  # onset and duration in seconds or None, class


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """Read a table with these columns, separated by commas, semicolons or tabs; column names in any case."""
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror}); it must be a table of labels") from None
    header = lines[0] if lines else ""
    rows = csv.reader(lines, delimiter=max(",;\t", key=header.count), skipinitialspace=True)
    names = [name.strip().lower() for name in next(rows, [])]
    missing = [column for column in columns if column not in names]
    if missing:
        there = ", ".join(names) or "none"
        raise DataError(f"{path}: has no column {' and no '.join(missing)}; its columns are {there}")
    return [dict(zip(names, (cell.strip() for cell in row), strict=False)) for row in rows if any(row)]


def seconds(text: str | None) -> float | None:
    """A number of seconds; None for an empty cell or n/a. Anything else is a ValueError."""
    if text is None or text.lower() in ("", "n/a", "nan"):
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels, sorted as numbers if all are whole numbers, as text otherwise."""
    names = set(labels)
    if all(name.lstrip("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def plan_rows(rows: Sequence[Row], recording: Recording, convention: Convention, *, extend: bool) -> Plan:
    """Plan the windows of labelled stretches (onset, duration, class), which are cut into windows `hop_s` apart.

    Without onset and duration the whole recording has the class. With `extend`, a stretch that is shorter than a window
    gives one window from its onset instead of none.
    """
    plan = Plan()
    total = recording.n_times / recording.sfreq
    stretches = []
    for onset, duration, label in rows:
        assert label is not None
        if onset is None and duration is not None:
            plan.problems["label rows left out: a duration without an onset"] += 1
            continue
        start = onset or 0.0
        stop = total if onset is None else start + (convention.window_s if duration is None else duration)
        if extend:
            stop = max(stop, start + convention.window_s)
        if start >= total:
            plan.problems["label rows left out: past the end of the recording"] += 1
            continue
        starts = regular(start, min(stop, total), convention)
        if not starts:
            plan.problems["label rows left out: shorter than a window"] += 1
        elif stop > total + 1e-6:
            plan.problems["label rows cut short: past the end of the recording"] += 1
        for second in starts:
            plan.add(second, int(label))
        stretches.append((start, stop, int(label)))
    end, before = 0.0, -1
    for start, stop, label in sorted(stretches):
        if start < end - 1e-6:
            which = "the same" if label == before else "another"
            plan.problems[f"label rows kept: overlap a row with {which} label"] += 1
        if stop > end:
            end, before = stop, label
    return plan
