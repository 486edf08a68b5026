"""EEGMMIDB (PhysioNet EEG Motor Movement/Imagery 1.0.0): eyes open or closed, or which movement is imagined?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.data.corpora.base import SIXTEEN, Corpus, Found, Source, key, usual_inputs, without_copies
from zipbrain.data.file_trees import FileTree, physionet
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_number
from zipbrain.errors import DataError
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

_ENDS = {"train": 70, "val": 85, "test": 109}
_RATE = 160.0
_TRIAL = (3.9, 4.6)  # s; trials last 4.1 or 4.2 s, and recordings with other trials have faulty timing
_USED = 60.0  # s of an eyes recording


@dataclass(frozen=True)
class EEGMMIDB(Corpus):
    """What both tasks share. Subjects 1-70 train, 71-85 val, 86-109 test; anything but 160 Hz is refused."""

    title = "EEGMMIDB"
    layout = "S001/S001R01.edf to S109/S109R14.edf"
    inputs: ClassVar = usual_inputs(SIXTEEN, notch=60)
    # The .event files repeat the annotations of the EDFs.
    published = FileTree(
        "eegmmidb", "https://physionet.org/files/eegmmidb/1.0.0", physionet, re.compile(r".*(?<!\.event)")
    )
    runs: ClassVar[dict[int, tuple[int, ...]]]  # what a run's annotations T1, T2 mean, or what the whole run means
    classes: ClassVar[tuple[str, ...]]

    def find(self, root: Path) -> Found:
        found = Found([], self.classes)
        sources = []
        for path in sorted(root.rglob("S*.edf")):
            match = re.fullmatch(r"S(\d{3})R(\d\d)", path.stem)
            if match is None or int(match[2]) not in self.runs:
                continue
            split = by_number(int(match[1]), _ENDS) if int(match[1]) else None
            if split is None:
                found.refused[key(path, root)] = "EEGMMIDB has subjects 1 to 109"
            else:
                sources.append(Source(key(path, root), path, match[1], split, given=list(self.runs[int(match[2])])))
        without_copies(sources, lambda source: source.path.stem, found)
        return self.check(found, root)

    def _check_rate(self, recording: Recording) -> None:
        if recording.sfreq != _RATE:
            raise DataError(f"is sampled at {recording.sfreq:g} Hz, not {_RATE:g}: its timing can't be trusted")


@dataclass(frozen=True)
class EEGMMIDBEyes(EEGMMIDB):
    """Eyes open (run 1) or closed (run 2): windows of 4 s, 2 s apart, from the first minute."""

    name = "eegmmidb-eyes"
    window_s, hop_s = 4.0, 2.0
    classes = ("open", "closed")
    runs: ClassVar = {1: (0,), 2: (1,)}

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        self._check_rate(recording)
        if recording.duration < _USED - 1e-6:
            raise DataError(f"is {recording.duration:g} s long, but {_USED:g} s are needed")
        return Plan.regular(0.0, _USED, convention, source.given[0])


@dataclass(frozen=True)
class EEGMMIDBImagery(EEGMMIDB):
    """Imagined movement of the left fist, the right fist, both fists or both feet: the 4 s after each cue.

    A recording whose trials overlap or don't last about 4.1 s is refused.
    """

    name = "eegmmidb-imagery"
    window_s, hop_s = 4.0, 4.0
    cued = True
    classes = ("left fist", "right fist", "both fists", "both feet")
    runs: ClassVar = {4: (0, 1), 8: (0, 1), 12: (0, 1), 6: (2, 3), 10: (2, 3), 14: (2, 3)}

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        self._check_rate(recording)
        plan = Plan()
        end = 0.0
        for onset, duration, what in sorted(recording.annotations):
            if what not in ("T0", "T1", "T2"):
                plan.problems["annotations left out: none of T0, T1, T2"] += 1
                continue
            if onset < end - 0.05:
                raise DataError(f"has annotations that overlap: {what} at {onset:g} s begins before {end:g} s")
            end = onset + duration
            if what == "T0":
                continue
            if onset + convention.window_s > recording.duration + 1e-6:
                plan.problems["trials left out: past the end of the recording"] += 1
            elif _TRIAL[0] <= duration <= _TRIAL[1]:
                plan.add(onset, source.given[int(what[1]) - 1])
            else:
                raise DataError(f"has a trial of {duration:g} s at {onset:g} s; trials of this corpus last about 4.1 s")
        if not plan.starts and not plan.problems:
            raise DataError("has no annotations T1 or T2")
        return plan
