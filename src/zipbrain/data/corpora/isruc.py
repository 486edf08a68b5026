"""ISRUC-Sleep, sub-group 1: which sleep stage?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.data.corpora.base import Corpus, Expected, Found, Source, key, read_lines, usual_inputs, without_copies
from zipbrain.data.file_trees import OnRequest
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_number
from zipbrain.errors import OptionError
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import Derivation, derive
from zipbrain.signal.recording import Recording

_CLASSES = ("W", "N1", "N2", "N3", "REM")
_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3, "5": 4}
_MONTAGE = ("F3-A2", "C3-A2", "O1-A2", "F4-A1", "C4-A1", "O2-A1")
_NAMES = ("F3", "C3", "O1", "F4", "C4", "O2")
_ENDS = {"train": 80, "val": 90, "test": 100}


@dataclass(frozen=True)
class ISRUC(Corpus):
    """Epochs of 30 s, as one expert scored them. Subjects 1-80 train, 81-90 val, 91-100 test.

    Channels are F3-A2, C3-A2, O1-A2, F4-A1, C4-A1, O2-A1, where A1 and A2 may be called M1 and M2, and are made by
    subtraction where electrodes were recorded on their own (subject 40).

    Parameters
    ----------
    expert : {1, 2}
        Whose scoring to use; the paper uses 1.
    missing : {"skip", "zeros"}
        What to do with a recording that lacks F3 and F4 (subject 8): refuse it, or set these channels to 0.
    multiple : int
        Shorten every night to a multiple of so many epochs; 20 reproduces a pipeline that stores sequences of 20.
    """

    name = "isruc"
    title = "ISRUC-Sleep, sub-group 1"
    layout = "<n>/<n>.rec or <n>/<n>/<n>.rec with <n>_1.txt beside it, n = 1 to 100"
    fixed = True
    hint = "the published counts may come from nights cut to a multiple of 20 epochs: --option multiple=20"
    expected = (
        Expected("test", "all", 8_700),
        Expected("test", "largest class", 3_120),
        Expected("test", "smallest class", 1_031),
    )
    window_s, hop_s = 30.0, 30.0
    inputs: ClassVar = usual_inputs(_MONTAGE, _MONTAGE, labram=_NAMES, eegpt=_NAMES)
    published = OnRequest(
        "isruc",
        "https://sleeptight.isr.uc.pt/",
        "ISRUC-Sleep is public, no form is needed: fetch subgroup I, 1.rar to 100.rar (large), and unpack each.",
        """\
DIR/<n>/<n>.rec      n = 1 to 100 (DIR/<n>/<n>/<n>.rec is read too)
DIR/<n>/<n>_1.txt    stages by expert 1
DIR/<n>/<n>_2.txt    stages by expert 2""",
        aliases=("isrucsleep",),
    )

    expert: int = 1
    missing: str = "skip"
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.expert not in (1, 2):
            raise OptionError("expert", self.expert, "there are experts 1 and 2")
        if self.missing not in ("skip", "zeros"):
            raise OptionError("missing", self.missing, "it must be 'skip' or 'zeros'")
        if self.multiple < 1:
            raise OptionError("multiple", self.multiple, "it must be at least 1")

    def find(self, root: Path) -> Found:
        found = Found([], _CLASSES)
        sources = []
        for path in [*root.glob("*/*.rec"), *root.glob("*/*/*.rec")]:
            number = path.stem
            if not number.isdecimal() or path.parent.name != number:
                continue
            split = by_number(int(number), _ENDS) if int(number) else None
            if split is None:
                found.refused[key(path, root)] = "sub-group 1 has subjects 1 to 100"
                continue
            labels = path.with_name(f"{number}_{self.expert}.txt")
            sources.append(Source(key(path, root), path, f"{int(number):03d}", split, labels=labels))
        sources.sort(key=lambda source: (source.subject, source.key))
        without_copies(sources, lambda source: source.subject, found)
        return self.check(found, root)

    def derive(self, source: Source, recording: Recording, convention: Convention) -> Derivation:
        zeros = ("F3-A2", "F4-A1") if self.missing == "zeros" else ()
        return derive(convention.montage, recording.ch_names, zeros=zeros)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        plan = Plan()
        stages = read_lines(source)
        length = convention.window_s
        epochs = int(recording.duration / length + 1e-6)
        count = min(len(stages), epochs)
        if len(stages) > epochs:
            plan.problems["labels left out: past the end of the recording"] += len(stages) - epochs
        elif epochs > len(stages):
            plan.problems["epochs left out: recorded after the last label"] += epochs - len(stages)
        if count % self.multiple:
            plan.problems[f"epochs left out: beyond a multiple of {self.multiple}"] += count % self.multiple
            count -= count % self.multiple
        for epoch, stage in enumerate(stages[:count]):
            if stage in _STAGES:
                plan.add(epoch * length, _STAGES[stage])
            else:
                plan.problems["epochs left out: label is none of 0, 1, 2, 3, 5"] += 1
        return plan
