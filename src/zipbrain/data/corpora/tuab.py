"""TUAB, the TUH Abnormal EEG Corpus 3.0: is a recording abnormal?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.data.corpora.base import BIPOLAR, Corpus, Expected, Found, ModelInput, Source, key
from zipbrain.data.corpora.temple import TEMPLE_INPUTS, from_temple
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_subject
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

_CLASSES = ("normal", "abnormal")


@dataclass(frozen=True)
class TUAB(Corpus):
    """Windows of 10 s, end to end; the class is the folder. `eval` is the test split.

    The subjects of `train` are dealt to training (80 %) and validation (20 %), abnormal and normal ones separately. A
    subject with recordings of both classes stays in the split of the abnormal ones.

    Parameters
    ----------
    seed : int
        Of the shuffle.
    """

    name = "tuab"
    title = "TUAB"
    layout = "edf/{train,eval}/{normal,abnormal}/**/<subject>_<session>_<token>.edf"
    only = "EEG *-REF"  # recordings against linked ears (-LE) are not part of the published counts
    expected = (
        Expected("train+val", "all", 372_510),  # the paper does not say which subjects go to which
        Expected("test", "all", 36_945),
        Expected("test", "normal", 19_906),
        Expected("test", "abnormal", 17_039),
    )
    window_s, hop_s = 10.0, 10.0
    inputs: ClassVar = {**TEMPLE_INPUTS, "biot": ModelInput(BIPOLAR, "q95", band=None, notch=None)}
    published = from_temple(
        "tuab",
        "tuh_eeg_abnormal/v3.0.1",
        """\
DIR/edf/train/normal/01_tcp_ar/<subject>_<session>_<token>.edf
DIR/edf/train/abnormal/01_tcp_ar/<subject>_<session>_<token>.edf
DIR/edf/eval/normal/01_tcp_ar/<subject>_<session>_<token>.edf
DIR/edf/eval/abnormal/01_tcp_ar/<subject>_<session>_<token>.edf""",
    )

    seed: int = 12345

    def find(self, root: Path) -> Found:
        base = root / "edf" if (root / "edf").is_dir() else root
        files = {
            (part, label): sorted((base / part / label).rglob("*.edf"))
            for part in ("train", "eval")
            for label in _CLASSES
        }
        split: dict[str, str] = {}
        for label in reversed(_CLASSES):
            subjects = {_subject(path) for path in files["train", label]}
            split = by_subject(subjects, {"train": 0.8, "val": 0.2}, self.seed) | split
        sources = [
            Source(key(path, root), path, who, "test" if part == "eval" else split[who], given=_CLASSES.index(label))
            for (part, label), paths in files.items()
            for path in paths
            for who in [_subject(path)]
        ]
        return self.check(Found(sorted(sources, key=lambda source: source.key), _CLASSES), root)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        return Plan.regular(0.0, recording.duration, convention, source.given)


def _subject(path: Path) -> str:
    return path.stem.split("_")[0]
