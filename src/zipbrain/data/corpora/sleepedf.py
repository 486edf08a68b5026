"""Sleep-EDF Expanded (PhysioNet sleep-edfx 1.0.0): which sleep stage?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from zipbrain.data.corpora.base import Corpus, Found, ModelInput, Source, key, usual_inputs, without_copies
from zipbrain.data.file_trees import FileTree, physionet
from zipbrain.data.labelling import Plan
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Convention
from zipbrain.signal.edf import read_annotations
from zipbrain.signal.recording import Recording

_CLASSES: Final = ("W", "N1", "N2", "N3", "REM")
_WAKE: Final = _CLASSES.index("W")
_STAGES: Final = {"W": 0, "1": 1, "2": 2, "3": 3, "4": 3, "R": 4}  # stages 3 and 4 of Rechtschaffen and Kales are N3
_STAGE: Final = "Sleep stage "
_PAIRS: Final = ("FPZ-CZ", "PZ-OZ")
_BETWEEN: Final = ("FZ", "POZ")  # places between the electrodes of each pair, as LaBraM and EEGPT know places only
_STUDIES: Final = {"cassette": "SC", "telemetry": "ST"}
_NIGHT: Final = re.compile(r"((SC|ST)[47](\d\d)\d[A-Z])[A-Z0-9]-PSG")
# By the last digit: subjects of the cassette study are numbered by age.
_SPLITS: Final = ("train", "train", "train", "val", "test")
_APART: Final = 1.0  # seconds by which a recording and its hypnogram may start at different times


@dataclass(frozen=True)
class SleepEDF(Corpus):
    """Epochs of 30 s of a night, from `wake` minutes before sleep to as long after it.

    Stages 3 and 4 are N3; movement time and epochs without a stage are left out. Both nights of a subject are in one
    split: test are subjects whose number ends in 4 or 9, val those with 3 or 8.

    Parameters
    ----------
    study : {"cassette", "telemetry", "both"}
        153 nights of 78 healthy people at home, or 44 nights of 22 people in hospital, half of them after temazepam.
    wake : int
        Minutes of wake to keep before the first and after the last epoch of sleep; recordings of the cassette study
        last about 20 hours.
    """

    name = "sleepedf"
    title = "Sleep-EDF Expanded"
    layout = "sleep-cassette/SC4001E0-PSG.edf and SC4001EC-Hypnogram.edf, sleep-telemetry/ST7011J0-PSG.edf and so on"
    fixed = True
    window_s, hop_s = 30.0, 30.0
    # Recorded at 100 Hz, with 50 Hz at its edge. z-scores of two channels less their mean would be one channel.
    inputs: ClassVar = {
        **usual_inputs(_PAIRS, _PAIRS, labram=_BETWEEN, notch=None),
        "eegpt": ModelInput(_PAIRS, "hundred", _BETWEEN, notch=None),
    }
    published = FileTree(
        "sleepedf",
        "https://physionet.org/files/sleep-edfx/1.0.0",
        physionet,
        aliases=("sleepedfx", "sleepedfexpanded", "sleepphysionet"),
    )

    study: str = "cassette"
    wake: int = 30

    def __post_init__(self) -> None:
        if self.study not in (*_STUDIES, "both"):
            raise OptionError("study", self.study, "it must be 'cassette', 'telemetry' or 'both'")
        if self.wake < 0:
            raise OptionError("wake", self.wake, "it must be a number of minutes, 0 or more")

    def find(self, root: Path) -> Found:
        found, sources = Found([], _CLASSES), []
        for path in sorted(root.rglob("*-PSG.edf")):
            match = _NIGHT.fullmatch(path.stem)
            if match is None:
                found.refused[key(path, root)] = f"not a file of {self.title}: {self.layout}"
                continue
            night, study, number = match.groups()
            if self.study != "both" and _STUDIES[self.study] != study:
                found.problems[f"recordings left out: not of the {self.study} study"] += 1
                continue
            scored = sorted(path.parent.glob(f"{night}?-Hypnogram.edf"))
            if len(scored) == 1:
                split = _SPLITS[int(number) % len(_SPLITS)]
                sources.append(Source(key(path, root), path, f"{study}{number}", split, labels=scored[0]))
            else:
                few = f"there is no {night}?-Hypnogram.edf beside it, which says the stages; fetch it"
                several = f"several hypnograms lie beside it ({', '.join(one.name for one in scored)}); keep one"
                found.refused[key(path, root)] = several if scored else few
        without_copies(sources, lambda source: source.path.stem, found)
        if not found.sources and found.problems and not found.refused:
            raise DataError(f"{root}: no night of the {self.study} study; looked for {self.layout}")
        return self.check(found, root)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        plan, length = Plan(), convention.window_s
        scored = self._epochs(source, recording, plan, length)
        asleep = [start for start, label in scored if label not in (None, _WAKE)]
        if not asleep:
            raise DataError("its hypnogram has no epoch of sleep")
        first, last = asleep[0] - 60 * self.wake, asleep[-1] + 60 * self.wake
        for start, label in scored:
            if not first <= start <= last:
                plan.problems[f"epochs left out: more than {self.wake} minutes from sleep"] += 1
            elif label is None:
                plan.problems["epochs left out: movement, or not scored"] += 1
            else:
                plan.add(start, label)
        return plan

    def _epochs(
        self, source: Source, recording: Recording, plan: Plan, length: float
    ) -> list[tuple[float, int | None]]:
        """Start and stage of every whole epoch of a recording, in order; None where there is no stage."""
        assert source.labels is not None
        try:
            begins, annotations, _ = read_annotations(source.labels)
        except DataError as error:
            words = str(error).removeprefix(f"{source.labels}: ")
            raise DataError(f"its hypnogram {source.labels.name} {words}") from None
        started = getattr(recording, "start", None)
        if begins and started and abs((begins - started).total_seconds()) > _APART:
            raise DataError(
                f"starts at {started}, but its hypnogram {source.labels.name} at {begins}; fetch both again"
            )
        epochs: list[tuple[float, int | None]] = []
        end = 0.0
        for onset, duration, what in annotations:
            if onset < end - 1e-6:
                raise DataError(f"its hypnogram has stages that overlap: {what} at {onset:g} s begins before {end:g} s")
            end = onset + duration
            there = max(0, int((min(end, recording.duration) - onset) / length + 1e-6))
            if past := int(duration / length + 1e-6) - there:
                plan.problems["epochs left out: past the end of the recording"] += past
            label = _STAGES.get(what.removeprefix(_STAGE)) if what.startswith(_STAGE) else None
            epochs += [(onset + place * length, label) for place in range(there)]
        return epochs
