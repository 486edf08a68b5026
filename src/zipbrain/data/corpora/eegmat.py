"""EEGMAT (PhysioNet eegmat 1.0.0): rest or mental arithmetic?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.channels import SYNONYMS
from zipbrain.data.corpora.base import SIXTEEN, Corpus, Expected, Found, Source, key, usual_inputs, without_copies
from zipbrain.data.file_trees import FileTree, physionet
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_number
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

_CLASSES = ("rest", "arithmetic")
_ENDS = {"train": 25, "val": 30, "test": 35}
_OLD_NAMES = tuple(SYNONYMS.get(name, name) for name in SIXTEEN)  # the first 16 channels, in file order
_USED = (2.0, 62.0)  # seconds; a task file is 62 s long


@dataclass(frozen=True)
class EEGMAT(Corpus):
    """Windows of 4 s, 2 s apart, from seconds 2 to 62 of each file. Subjects 0-25 train, 26-30 val, 31-35 test.

    Parameters
    ----------
    rest : {"first", "last"}
        Which 62 s of a rest file to use; the paper does not say.
    """

    name = "eegmat"
    title = "EEGMAT"
    layout = "SubjectNN_1.edf (rest) and SubjectNN_2.edf (arithmetic), NN = 00 to 35"
    expected = (
        Expected("train", "all", 1_508),
        Expected("val", "all", 290),
        Expected("test", "all", 290),
        Expected("test", "rest", 145),
        Expected("test", "arithmetic", 145),
    )
    window_s, hop_s = 4.0, 2.0
    inputs: ClassVar = usual_inputs(_OLD_NAMES, eegpt=SIXTEEN, band=None, notch=None)
    published = FileTree("eegmat", "https://physionet.org/files/eegmat/1.0.0", physionet)

    rest: str = "first"

    def __post_init__(self) -> None:
        if self.rest not in ("first", "last"):
            raise OptionError("rest", self.rest, "it must be 'first' or 'last'")

    def find(self, root: Path) -> Found:
        found = Found([], _CLASSES)
        sources = []
        for path in sorted(root.rglob("Subject*.edf")):
            match = re.fullmatch(r"Subject(\d\d)_([12])", path.stem)
            split = by_number(int(match[1]), _ENDS) if match else None
            if match is None or split is None:
                found.refused[key(path, root)] = f"not a file of {self.title}: {self.layout}"
            else:
                sources.append(Source(key(path, root), path, match[1], split, given=int(match[2]) - 1))
        without_copies(sources, lambda source: source.path.stem, found)
        return self.check(found, root)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        length = recording.duration
        if length < _USED[1] - 1e-6:
            raise DataError(f"is {length:g} s long, but {_USED[1]:g} s are needed")
        shift = length - _USED[1] if self.rest == "last" and source.given == 0 else 0.0
        return Plan.regular(_USED[0] + shift, _USED[1] + shift, convention, source.given)
