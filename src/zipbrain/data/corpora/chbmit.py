"""CHB-MIT (PhysioNet chbmit 1.0.0): is there a seizure?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from zipbrain.channels import electrode
from zipbrain.data.corpora.base import (
    BIPOLAR,
    Corpus,
    Found,
    ModelInput,
    Source,
    key,
    usual_inputs,
    without_copies,
)
from zipbrain.data.file_trees import FileTree, physionet
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_number
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import regular
from zipbrain.signal.label_tables import read_labels
from zipbrain.signal.montage import Derivation, derive
from zipbrain.signal.recording import Recording

CLASSES: Final = ("background", "seizure")
ENDS: Final = {"train": 15, "val": 19, "test": 24}
SAME_CHILD: Final = {21: 1}  # chb21 was recorded from the same girl as chb01, a year and a half later
# Places between the two electrodes of each pair, as LaBraM and EEGPT know places only.
_BETWEEN: Final = "AF7 FT7 TP7 PO7 AF8 FT8 TP8 PO8 AF3 FC3 CP3 PO3 AF4 FC4 CP4 PO4"
BETWEEN: Final = tuple(_BETWEEN.split())

_RECORDING: Final = re.compile(r"chb(\d\d)[a-z]?_\d\d\+?")
_FILE: Final = re.compile(r"File Name\s*:\s*(\S+?)(?:\.edf)?\s*$", re.IGNORECASE)
_COUNT: Final = re.compile(r"Number of Seizures in File\s*:\s*(\d+)", re.IGNORECASE)
_TIME: Final = re.compile(r"Seizure\s*\d*\s*(Start|End) Time\s*:\s*(\d+(?:\.\d+)?)\s*sec", re.IGNORECASE)
_LIST: Final = "RECORDS-WITH-SEIZURES"
_REFERENCE: Final = "-CS2"  # of a few recordings of chb12 that are not bipolar
_COMPARED: Final = 10  # seconds of channels with the same name


@dataclass
class Entry:
    """What a summary says of one recording."""

    count: int | None = None  # of its seizures
    starts: list[float] = field(default_factory=list)  # seconds from its beginning
    ends: list[float] = field(default_factory=list)

    @property
    def fault(self) -> str:
        """Why its seizures are not known; empty if they are."""
        if self.count is None:
            return "no number of seizures"
        if not len(self.starts) == len(self.ends) == self.count:
            return f"{self.count} seizures, but {len(self.starts)} start and {len(self.ends)} end times"
        for start, end in zip(self.starts, self.ends, strict=True):
            if end <= start:
                return f"a seizure that starts at {start:g} s and ends at {end:g} s"
        return ""


@dataclass(frozen=True)
class CHBMIT(Corpus):
    """Windows of 10 s with a seizure or without; times come from the summary of each case.

    A seizure gives windows from its start on, half a window apart, as long as half of a window or more lies in it.
    Background are the windows, `hop_s` apart, that touch no seizure. Cases 1-15 and 21, which is the child of case 1,
    train; 16-19 val; 20 and 22-24 test.

    Parameters
    ----------
    recordings : {"all", "seizures"}
        Use all recordings, 45 GB of windows of BIOT's size, or those with a seizure only.
    """

    name = "chbmit"
    title = "CHB-MIT"
    layout = "chb01/chb01_01.edf to chb24/chb24_22.edf, and chb01/chb01-summary.txt to chb24/chb24-summary.txt"
    window_s, hop_s = 10.0, 10.0
    inputs: ClassVar = {
        **usual_inputs(BIPOLAR, labram=BETWEEN, eegpt=BETWEEN, notch=60),
        "biot": ModelInput(BIPOLAR, "q95", band=None, notch=None, cut_sfreq=None),  # as its script does
    }
    # The .seizures files repeat the summaries.
    published = FileTree(
        "chbmit",
        "https://physionet.org/files/chbmit/1.0.0",
        physionet,
        re.compile(r".*(?<!\.seizures)"),
        aliases=("chbmitscalpeeg",),
    )

    recordings: str = "all"

    def __post_init__(self) -> None:
        if self.recordings not in ("all", "seizures"):
            raise OptionError("recordings", self.recordings, "it must be 'all' or 'seizures'")

    def find(self, root: Path) -> Found:
        found = Found([], CLASSES)
        summaries: dict[Path, dict[str, Entry] | str] = {}
        with_seizures = _listed(root)
        sources = []
        for path in sorted(root.rglob("chb*.edf")):
            match = _RECORDING.fullmatch(path.stem)
            split = split_of(int(match[1])) if match else None
            if match is None or split is None:
                found.refused[key(path, root)] = f"not a file of {self.title}: {self.layout}"
                continue
            summary = path.with_name(f"chb{match[1]}-summary.txt")
            if summary not in summaries:
                summaries[summary] = _read_summary(summary, found)
            seizures = _seizures_of(path, summary, summaries[summary], with_seizures)
            if isinstance(seizures, str):
                found.refused[key(path, root)] = seizures
            elif not seizures and self.recordings == "seizures":
                found.problems["recordings left out: no seizure in them"] += 1
            else:
                sources.append(Source(key(path, root), path, person_of(int(match[1])), split, given=seizures))
        without_copies(sources, lambda source: source.path.stem, found)
        if not found.sources and found.problems and not found.refused:
            raise DataError(f"{root}: no recording of {self.title} with a seizure; looked for {self.layout}")
        return self.check(found, root)

    def derive(self, source: Source, recording: Recording, convention: Convention) -> Derivation:
        names = _without_numbers(recording)
        bare = [name[: -len(_REFERENCE)] if name.upper().endswith(_REFERENCE) else name for name in names]
        return derive(convention.montage, bare)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        plan, length = Plan(), convention.window_s
        for start, end in source.given:
            if end > recording.duration + 1:  # times are whole seconds
                said = f"its summary says a seizure from {start:g} to {end:g} s, but it lasts {recording.duration:g} s"
                raise DataError(f"{said}; fetch both again")
            if end - start < length / 2:
                plan.problems["seizures left out: shorter than half a window"] += 1
                continue
            last = min(end - length / 2, recording.duration - length)
            for begin in np.arange(start, last + 1e-6, length / 2).tolist() or [max(last, 0.0)]:
                plan.add(begin, CLASSES.index("seizure"))
        for begin in regular(0.0, recording.duration, convention):
            if all(begin + length <= start or begin >= end for start, end in source.given):
                plan.add(begin, CLASSES.index("background"))
        return plan


def split_of(case: int) -> str | None:
    """The split of a case; None for a number that CHB-MIT does not have."""
    return by_number(SAME_CHILD.get(case, case), ENDS) if case else None


def person_of(case: int) -> str:
    """The child of a case, named by its first case."""
    return f"chb{SAME_CHILD.get(case, case):02d}"


def parse_summary(text: str) -> dict[str, Entry]:
    """What the text of a summary says of each recording, by its name without ending."""
    entries: dict[str, Entry] = {}
    entry = Entry()
    for line in text.splitlines():
        if named := _FILE.search(line):
            entry = entries.setdefault(named[1], Entry())
        elif counted := _COUNT.search(line):
            entry.count = int(counted[1])
        elif timed := _TIME.search(line):
            (entry.starts if timed[1].lower() == "start" else entry.ends).append(float(timed[2]))
    return entries


def _read_summary(path: Path, found: Found) -> dict[str, Entry] | str:
    """The entries of a summary, or why there are none."""
    if not path.exists():
        return f"there is no {path.name} beside it, which says when there are seizures; fetch it"
    try:
        text = read_labels(path)
    except DataError as error:
        return f"its summary {path.name} {str(error).removeprefix(f'{path}: ')}"
    if re.search(r"^Channels changed", text, re.IGNORECASE | re.MULTILINE):
        found.problems["cases whose channels change between recordings: each file's own names are used"] += 1
    return parse_summary(text)


def _seizures_of(
    path: Path, summary: Path, entries: dict[str, Entry] | str, with_seizures: set[str] | None
) -> list[list[float]] | str:
    """Start and end of a recording's seizures, or why they are not known."""
    if isinstance(entries, str):
        return entries
    entry = entries.get(path.stem)
    if entry is None:
        if with_seizures is not None and path.stem not in with_seizures:  # chb24's summary leaves these out
            return []
        return f"{summary.name} says nothing about it; fetch that file again, and {_LIST}"
    if entry.fault:
        return f"{summary.name} has {entry.fault} for it; correct it, or fetch it again"
    return [[start, end] for start, end in zip(entry.starts, entry.ends, strict=True)]


def _listed(root: Path) -> set[str] | None:
    """The recordings that PhysioNet lists as having seizures; None if that list is not there."""
    path = root / _LIST
    return {Path(line.strip()).stem for line in read_labels(path).splitlines()} if path.exists() else None


def _without_numbers(recording: Recording) -> Iterator[str]:
    """Channel names, where of several that have one name and the same signal (T8-P8) the first keeps it."""
    several: dict[str, list[int]] = {}
    for row, name in enumerate(recording.ch_names):
        if match := re.fullmatch(r"(.+-.+)-\d", name):
            several.setdefault(electrode(match[1]), []).append(row)
    n = min(recording.n_times, int(_COMPARED * recording.sfreq))
    for name, rows in several.items():
        x = recording.read(0, n, rows)
        if not np.array_equal(x, np.broadcast_to(x[:1], x.shape), equal_nan=True):
            raise DataError(f"has {len(rows)} different channels called {name}; remove those that are not meant")
    first = {rows[0]: name for name, rows in several.items()}
    yield from (first.get(row, name) for row, name in enumerate(recording.ch_names))
