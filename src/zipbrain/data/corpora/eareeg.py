"""EarEEG (EESM23, OpenNeuro ds005178): sleep stages from electrodes in the ears."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.data.corpora.base import Corpus, Expected, Found, Source, key, read_lines, usual_inputs
from zipbrain.data.file_trees import FileTree, openneuro
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_number
from zipbrain.errors import DataError
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

_CLASSES = ("W", "REM", "N1", "N2", "N3", "Artefact")
_ENDS = {"train": 6, "val": 8, "test": 10}
_EARS = ("RB", "RT", "LB", "LT")
_NAMES = {"labram": ("A2", "T8", "A1", "T7"), "eegpt": ("TP8", "T8", "TP7", "T7")}  # of the places nearest to them
_EAR, _SCORING = "_acq-earEEG_eeg.set", "_acq-scoring_events.tsv"


@dataclass(frozen=True)
class EarEEG(Corpus):
    """Epochs of 30 s of the scored nights, each filtered on its own. Subjects 1-6 train, 7-8 val, 9-10 test.

    Fractions of a second of an epoch's onset are dropped. An epoch with a NaN in any recorded row, used or not, is left
    out, and so is one that the signal does not fill.
    """

    name = "eareeg"
    title = "EarEEG (EESM23)"
    layout = f"sub-0NN/ses-0NN/eeg/sub-0NN_ses-0NN_task-sleep{_EAR} with ...{_SCORING} beside it"
    fixed = True
    expected = (Expected("test", "all", 2_944), Expected("test", "N2", 1_179), Expected("test", "N1", 204))
    window_s, hop_s = 30.0, 30.0
    inputs: ClassVar = usual_inputs(_EARS, _EARS, **_NAMES, band=(0.1, 100.0), cut_sfreq=None, filter_windows=True)
    published = FileTree(
        "eareeg",
        "https://s3.amazonaws.com/openneuro.org/ds005178",
        openneuro,
        re.compile(r"[^/]+|sub-\d+/ses-00[12]/eeg/(?!.*acq-PSG).*"),  # nights that are scored; PSG is not ear-EEG
        "ds005178.v1.0.0",
        ("eesm23", "ds005178"),
    )

    def find(self, root: Path) -> Found:
        found = Found([], _CLASSES)
        for path in sorted(root.glob(f"sub-*/ses-*/eeg/*_task-sleep{_EAR}")):
            subject = path.parts[-4].removeprefix("sub-")
            split = by_number(int(subject), _ENDS) if subject.isdecimal() and int(subject) else None
            labels = path.with_name(path.name.replace(_EAR, _SCORING))
            if split is None:
                found.refused[key(path, root)] = "EarEEG has subjects 1 to 10"
            elif labels.exists():
                found.sources.append(Source(key(path, root), path, subject, split, labels=labels))
            else:
                found.problems["nights left out: not scored"] += 1
        if not found.sources and found.problems:
            raise DataError(f"{root}: no scored nights of {self.title}; looked for {self.layout}")
        return self.check(found, root)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        plan = Plan()
        rows = csv.DictReader(read_lines(source), delimiter="\t")
        missing = {"onset", "scoring_idx"} - set(rows.fieldnames or ())
        if missing:
            assert source.labels is not None
            raise DataError(f"its label file {source.labels.name} has no column {' and no '.join(sorted(missing))}")
        seen: set[int] = set()
        for row in rows:
            try:
                onset, label = float(row["onset"]), int(row["scoring_idx"])
            except (TypeError, ValueError):
                onset, label = math.nan, 0
            if not (math.isfinite(onset) and onset >= 0 and 1 <= label <= len(_CLASSES)):
                plan.problems["label rows left out: no onset or no class 1 to 6"] += 1
                continue
            start = int(onset)
            if any(second in seen for second in (start, start + int(convention.window_s) - 1)):
                plan.problems["label rows kept: overlap another"] += 1
            seen.update(range(start, start + int(convention.window_s)))
            plan.add(start, label - 1)
        return plan
