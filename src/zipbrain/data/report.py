"""What became of every file: windows, refusals, problems, expected counts. For people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from zipbrain.data.corpora.base import Expected

_SHOWN = 12  # rows of a table of files on a terminal; the rest is in report.json


@dataclass(frozen=True)
class Check:
    """An expected count and what was found."""

    split: str
    which: str
    expected: int
    found: int


@dataclass(frozen=True)
class Report:
    """What `prepare` did.

    Attributes
    ----------
    name, model, folder : str
    classes, ch_names : list of str
    sfreq, window_s, seconds : float
        Sampling rate in Hz, length of a window and duration of the run in seconds.
    files, prepared, reused : int
        Recordings that were not refused; how many of them were read in this run, and how many were there already.
    windows, subjects : dict
        Split -> class -> count, and split -> count.
    checks : list of Check
        Expected against found counts, for splits that have recordings.
    refused : dict
        File -> reason.
    problems : dict
        What was wrong with labels and signals, in words -> file -> count.
    notes : dict
        File -> what reading it had to say, MNE's warnings included.
    warnings : list of str
        What concerns the corpus as a whole.
    """

    name: str
    model: str
    folder: str
    classes: list[str]
    ch_names: list[str]
    sfreq: float
    window_s: float
    files: int
    prepared: int
    reused: int
    windows: dict[str, dict[str, int]]
    subjects: dict[str, int]
    checks: list[Check]
    refused: dict[str, str]
    problems: dict[str, dict[str, int]]
    notes: dict[str, list[str]]
    warnings: list[str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def show(self, console: Console) -> None:
        """Print tables."""
        shape = f"{len(self.ch_names)} channels, {self.window_s:g} s at {self.sfreq:g} Hz"
        console.print(f"{self.name} for {self.model}: {shape}, in {self.folder}", soft_wrap=True, markup=False)
        files = f"{self.files} recordings ({self.prepared} read now, {self.reused} there before)"
        console.print(f"{files}, {len(self.refused)} refused, {self.seconds:.1f} s", soft_wrap=True)
        rows = []
        for split, counts in self.windows.items():
            numbers = [*(counts[name] for name in self.classes), sum(counts.values())]
            rows.append([split, str(self.subjects[split]), *(f"{number:,}" for number in numbers)])
        _table(console, "Windows", ["split", "subjects", *self.classes, "all"], rows)
        if self.checks:
            checks = [
                (c.split, c.which, f"{c.expected:,}", f"{c.found:,}", "yes" if c.expected == c.found else "no")
                for c in self.checks
            ]
            _table(console, "Against published counts", ["split", "windows", "expected", "found", "same"], checks)
        totals = [(str(sum(files.values())), str(len(files)), what) for what, files in sorted(self.problems.items())]
        _table(console, "Labels and signals", ["count", "files", "what"], totals)
        _table(console, "Refused", ["file", "reason"], list(self.refused.items()))
        notes = [(file, note) for file, lines in self.notes.items() for note in lines]
        _table(console, "Notes on files", ["file", "note"], notes)
        for warning in self.warnings:
            console.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def compare(expected: Sequence[Expected], windows: dict[str, dict[str, int]]) -> list[Check]:
    """Expected counts beside those found, for splits that have windows."""
    checks = []
    for row in expected:
        parts = row.split.split("+")
        if not all(part in windows for part in parts):
            continue
        counts = {name: sum(windows[part][name] for part in parts) for name in windows[parts[0]]}
        numbers = list(counts.values())
        totals = {"all": sum(numbers), "largest class": max(numbers), "smallest class": min(numbers), **counts}
        checks.append(Check(row.split, row.which, row.count, totals[row.which]))
    return checks


def gather_problems(own: Counter[str], of_files: dict[str, dict[str, int]], whole: str) -> dict[str, dict[str, int]]:
    """Turn problems per file into files per problem; those of the corpus stand under `whole`."""
    problems: dict[str, dict[str, int]] = {}
    for file, counts in [(whole, dict(own)), *of_files.items()]:
        for what, count in counts.items():
            problems.setdefault(what, {})[file] = count
    return problems


def split_warnings(windows: dict[str, dict[str, int]], subjects: dict[str, set[str]]) -> list[str]:
    """What is odd about the splits: nothing to train on, one class only, empty classes, subjects in two of them."""
    warnings = []
    if windows and "train" not in windows:
        warnings.append(f"nothing to train on: all windows are in {' and '.join(windows)}")
    classes = {name for counts in windows.values() for name, count in counts.items() if count}
    if len(classes) == 1:
        warnings.append(f"all windows are of one class, {classes.pop()}: nothing to tell apart")
    for split, counts in windows.items():
        empty = [name for name, count in counts.items() if not count]
        if empty:
            warnings.append(f"{split} has no windows of {', '.join(empty)}")
    names = list(subjects)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            both = sorted(subjects[first] & subjects[second])
            if both:
                warnings.append(f"subjects in both {first} and {second}: {', '.join(both[:10])} ({len(both)} in all)")
    return warnings


def count_reasons(refused: Mapping[str, str], most: int = 3) -> str:
    """How many files were refused for which reason, the commonest first, each with the first file of its kind."""
    kinds: dict[str, list[str]] = {}
    for file, reason in sorted(refused.items()):
        kinds.setdefault(reason, []).append(file)
    rows = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    words = [f"{len(files)} x {reason} ({files[0]})" for reason, files in rows[:most]]
    return "; ".join([*words, *([f"{len(rows) - most} more reasons"] if len(rows) > most else [])])


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for column in columns:
        text = column in ("split", "file", "reason", "note", "what", "windows", "same")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    for row in rows[:_SHOWN]:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"... and {len(rows) - _SHOWN} more in report.json")
