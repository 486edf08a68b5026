"""What every corpus answers: which recordings, whose, in which split, and which windows carry which label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from zipbrain.data.file_trees import FileTree, OnRequest
from zipbrain.data.labelling import Plan
from zipbrain.errors import DataError, OptionError
from zipbrain.paper import NETWORKS, canonical_name
from zipbrain.signal.convention import Convention
from zipbrain.signal.label_tables import read_labels
from zipbrain.signal.montage import Derivation, derive, parse_montage
from zipbrain.signal.recording import Recording

Names = Sequence[str]  # of channels

_SHORT: Final = ("labram", "eegpt", "biot", "tfm", "cbramod")  # names of `NETWORKS`, in their order

_REFERENTIAL: Final = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
_BIPOLAR: Final = """
FP1-F7 F7-T3 T3-T5 T5-O1 FP2-F8 F8-T4 T4-T6 T6-O2 FP1-F3 F3-C3 C3-P3 P3-O1 FP2-F4 F4-C4 C4-P4 P4-O2
"""
_SIXTEEN: Final = "FP1 FP2 F3 F4 F7 F8 T7 T8 C3 C4 P7 P8 P3 P4 O1 O2"
REFERENTIAL: Final = tuple(_REFERENTIAL.split())
BIPOLAR: Final = tuple(_BIPOLAR.split())
SIXTEEN: Final = tuple(_SIXTEEN.split())  # the electrodes of `BIPOLAR`, by their new names


@dataclass(frozen=True)
class Source:
    """One recording and what belongs to it."""

    key: str  # unique in the corpus and the same on every machine, such as the path from its folder
    path: Path
    subject: str
    split: str  # "train", "val" or "test"
    labels: Path | None = None  # when this file changes, the recording is prepared again
    given: Any = None  # JSON that decides the labels too: a class from a folder's name, rows of a table
    units: str | None = None  # see `zipbrain.data.open_recording`
    check: bool = True

    def open(self) -> Recording:
        """The recording."""
        from zipbrain.data.recording import open_recording

        return open_recording(self.path, units=self.units, check=self.check)


@dataclass
class Found:
    """What a corpus' folder holds."""

    sources: list[Source]  # sorted
    classes: tuple[str, ...]
    has_open_classes: bool = field(default=False, kw_only=True)  # named by the labels: one without windows is none
    refused: dict[str, str] = field(default_factory=dict)  # files that can't be used, with the reason
    problems: Counter[str] = field(default_factory=Counter)  # what else is wrong, in words, and how often


@dataclass(frozen=True)
class Expected:
    """A count of windows that is known from elsewhere."""

    split: str  # may be a sum such as "train+val"
    which: str  # a class, "all", "largest class" or "smallest class"
    count: int


@dataclass(frozen=True)
class ModelInput:
    """How one model wants the recordings of a corpus; see `Convention` for what the words mean."""

    montage: Names  # such as "C3" or "F3-A2"; empty for the scalp channels of the first recording
    scaling: str
    names: Names = ()  # those of the montage if empty
    band: tuple[float, float] | None = (0.1, 75.0)
    notch: float | None = 50
    cut_sfreq: float | None = 200
    sfreq: float = 200
    window_resampling: str = "fft"
    filter_windows: bool = False


def usual_inputs(
    montage: Names, pairs: Names = BIPOLAR, *, labram: Names = (), eegpt: Names = (), **common: Any
) -> dict[str, ModelInput]:
    """Inputs of all models: a montage, under other names for LaBraM and EEGPT, and pairs for BIOT and TFM."""
    return {
        "labram": ModelInput(montage, "hundred", labram, **common),
        "eegpt": ModelInput(montage, "zscore-average", eegpt, **common, sfreq=256, window_resampling="nearest"),
        "biot": ModelInput(pairs, "q95", **common),
        "tfm": ModelInput(pairs, "q95", **common),
        "cbramod": ModelInput(montage, "hundred", **common),
    }


@dataclass(frozen=True)
class Corpus(ABC):
    """Base of all corpora; the fields of a subclass are its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    layout: ClassVar[str]  # for the message when nothing is found
    expected: ClassVar[tuple[Expected, ...]] = ()
    fixed: ClassVar[bool] = False  # the labels fix the length of a window, and where it begins
    cued: ClassVar[bool] = False  # the labels fix where a window begins, so that there is no hop
    only: ClassVar[str] = "*"  # a pattern that channel names must match to be considered
    hint: ClassVar[str] = ""  # what to try when counts differ from the expected ones
    window_s: ClassVar[float]  # seconds of a window
    hop_s: ClassVar[float]  # seconds from one window to the next
    inputs: ClassVar[Mapping[str, ModelInput]] = {}  # by the model's short name
    published: ClassVar[FileTree | OnRequest | None] = None  # where to get it

    @abstractmethod
    def find(self, root: Path) -> Found:
        """List the recordings below a folder, sorted, with subject and split."""

    @abstractmethod
    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        """Say which windows of a recording have which label; a DataError refuses the recording."""

    @classmethod
    def convention(cls, model: str) -> Convention:
        """How it is prepared for a model, in any spelling."""
        short = dict(zip(NETWORKS, _SHORT, strict=True))[canonical_name("model", model, NETWORKS)]
        if short not in cls.inputs:
            raise OptionError("corpus", cls.name, f"it says nothing about {short}: give a convention")
        given = asdict(cls.inputs[short]) | {"window_s": cls.window_s, "hop_s": cls.hop_s}
        montage, names = given.pop("montage"), given.pop("names")
        return Convention(short, cls.name, parse_montage(montage), tuple(names or montage), **given)

    def derive(self, source: Source, recording: Recording, convention: Convention) -> Derivation:
        """Say which rows of a recording make the channels; a DataError refuses it."""
        return derive(convention.montage, recording.ch_names, only=self.only)

    def settle(self, convention: Convention, found: Found) -> Convention:
        """Fill in what the table of conventions leaves to the files."""
        return convention

    def options(self) -> dict[str, Any]:
        """The options, for the record. JSON."""
        return asdict(self)

    def check(self, found: Found, root: Path) -> Found:
        """Refuse an empty folder with the layout that was looked for."""
        if not found.sources and not found.refused:
            raise DataError(f"{root}: no recordings of {self.title}; looked for {self.layout}")
        return found


def without_copies(sources: Iterable[Source], identity: Callable[[Source], str], found: Found) -> None:
    """Add sources to `found`, and refuse a second file of the same recording."""
    seen: dict[str, str] = {}
    for source in sources:
        first = seen.setdefault(identity(source), source.key)
        if first == source.key:
            found.sources.append(source)
        else:
            found.refused[source.key] = f"a second copy of {first}"


def key(path: Path, root: Path) -> str:
    """The path from the corpus' folder, with forward slashes."""
    return path.relative_to(root).as_posix()


def read_lines(source: Source) -> list[str]:
    """The lines of a source's label file that are not blank."""
    assert source.labels is not None
    try:
        text = read_labels(source.labels)
    except DataError as error:
        words = str(error).removeprefix(f"{source.labels}: ")
        raise DataError(f"its label file {source.labels.name} {words}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
