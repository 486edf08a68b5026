"""A folder of your own recordings with a table of labels."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from zipbrain.data.corpora.base import Found, Source
from zipbrain.data.corpora.tables import SHARES, TableCorpus, in_order
from zipbrain.data.splits import by_subject
from zipbrain.data.windows import SPLITS
from zipbrain.errors import DataError
from zipbrain.signal.label_tables import read_table, seconds
from zipbrain.signal.recording import file_kind

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST_LABEL = 100  # characters
_SPELLINGS = {"validation": "val", "valid": "val", "dev": "val", **{name: name for name in SPLITS}}


@dataclass(frozen=True)
class Folder(TableCorpus):
    """Recordings with a table of labels: columns file, label[, subject, onset, duration, split].

    Files are EDF, BDF, FIF, EEGLAB or BrainVision (its .vhdr is named). Without onset and duration a file as a whole
    has the label; with an onset, the stretch of `duration` seconds (a window if not given) has it. Without subjects
    every file is its own. Without splits, subjects are dealt to training, validation and test 60 : 20 : 20. Channels
    are those of the first recording that are places of the 10-10 system, unless the convention names some; every other
    recording must have them.

    Parameters
    ----------
    labels : str
        The table, from the folder.
    seed : int
        Of the shuffle.
    """

    name = "folder"
    title = "a folder with a table of labels"
    layout = "a table with the columns file and label, and the files it names"

    labels: str = "labels.csv"
    seed: int = 12345

    def find(self, root: Path) -> Found:
        table = root / self.labels
        rows = read_table(table, ("file", "label"))
        good, found = _check_rows(rows)
        if not good:
            causes = {what.removeprefix("label rows left out: "): count for what, count in found.problems.items()}
            reasons = "; ".join(f"{count} x {what}" for what, count in causes.items())
            raise DataError(f"{table}: no row can be used: {reasons or 'it has none'}")
        if not any(row["split"] for row in good):
            dealt = by_subject((row["subject"] for row in good), SHARES, self.seed)
            for row in good:
                row["split"] = dealt[row["subject"]]
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in good:
            if row["split"]:
                groups[row["file"], row["split"]].append(row)
            else:
                found.problems["label rows left out: no split, though others have one"] += 1
        found.classes = in_order(row["label"] for group in groups.values() for row in group)
        place = {label: number for number, label in enumerate(found.classes)}
        several = Counter(file for file, _ in groups)
        named: set[str] = set()
        for (file, split), group in sorted(groups.items()):
            key = file if several[file] == 1 else f"{file} ({split})"
            if PurePath(file).is_absolute() or ".." in PurePath(file).parts:
                found.refused[key] = "is in the table, but lies outside the folder: give a path inside it"
                continue
            if not os.path.isfile(root / file):  # false for a name that is too long
                found.refused[key] = "is in the table, but there is no such file"
                continue
            named.add(os.path.realpath(root / file))
            given = [[row["onset"], row["duration"], place[row["label"]]] for row in group]
            unique = [list(row) for row in dict.fromkeys(tuple(row) for row in given)]
            if len(unique) < len(given):
                found.problems["label rows left out: repeat another"] += len(given) - len(unique)
            found.sources.append(Source(key, root / file, group[0]["subject"], split, given=unique))
        others = [path for path in root.rglob("*") if file_kind(path) and path.suffix.lower() != ".rec"]
        unnamed = sum(os.path.realpath(path) not in named for path in others)
        if unnamed:
            found.problems["recordings left out: not in the table"] += unnamed
        return self.check(found, root)


def _check_rows(rows: list[dict[str, str]]) -> tuple[list[dict[str, Any]], Found]:
    """The rows that can be used, with numbers for onset and duration, and what was wrong with the others."""
    found = Found([], (), has_open_classes=True)
    good = []
    subjects: dict[str, str] = {}
    for row in rows:
        file, label = PurePath(row.get("file", "")).as_posix() if row.get("file") else "", row.get("label", "")
        split = row.get("split", "").lower()
        try:
            onset, duration = seconds(row.get("onset")), seconds(row.get("duration"))
        except ValueError:
            found.problems["label rows left out: onset or duration is no finite number"] += 1
            continue
        subject = row.get("subject") or file
        if not file or not label:
            found.problems["label rows left out: no file or no label"] += 1
        elif _CONTROL.search(file + label + subject) or len(label) > _LONGEST_LABEL:
            words = f"label rows left out: control characters, or a label of more than {_LONGEST_LABEL} characters"
            found.problems[words] += 1
        elif (onset or 0.0) < 0 or (duration is not None and duration <= 0):
            found.problems["label rows left out: onset below 0 or duration not above 0"] += 1
        elif split and split not in _SPELLINGS:
            found.problems["label rows left out: split is none of train, val, test"] += 1
        elif subjects.setdefault(file, subject) != subject:
            found.problems["label rows left out: another subject than the file's first row"] += 1
        else:
            times = {"onset": onset, "duration": duration, "split": _SPELLINGS.get(split, "")}
            good.append({"file": file, "label": label, "subject": subject, **times})
    return good, found
