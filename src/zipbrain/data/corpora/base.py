"""What every corpus answers: which recordings, whose, in which split, and which windows carry which label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from zipbrain.data.labelling import Plan
from zipbrain.errors import DataError
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import Derivation, derive
from zipbrain.signal.recording import Recording


@dataclass(frozen=True)
class Source:
    """One recording and what belongs to it.

    Attributes
    ----------
    key : str
        Unique in the corpus and the same on every machine, such as the path from the corpus' folder.
    path : Path
        Of the recording.
    subject : str
    split : {"train", "val", "test"}
    labels : Path, optional
        A label file; when it changes, the recording is prepared again.
    given : JSON
        What else decides the labels: a class from a folder's name, rows of a table.
    units, check
        How to open the recording; see `zipbrain.data.open_recording`.
    """

    key: str
    path: Path
    subject: str
    split: str
    labels: Path | None = None
    given: Any = None
    units: str | None = None
    check: bool = True

    def open(self) -> Recording:
        """The recording."""
        from zipbrain.data.recording import open_recording

        return open_recording(self.path, units=self.units, check=self.check)


@dataclass
class Found:
    """What a corpus' folder holds.

    Attributes
    ----------
    sources : list of Source
        Sorted.
    classes : tuple of str
    refused : dict
        Files that can't be used, with the reason.
    problems : Counter
        What else is wrong, in words, and how often.
    """

    sources: list[Source]
    classes: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Expected:
    """A count that is known from elsewhere; `which` is a class, "all", "largest class" or "smallest class".

    `split` may be a sum such as "train+val".
    """

    split: str
    which: str
    count: int


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

    @abstractmethod
    def find(self, root: Path) -> Found:
        """List the recordings below a folder, sorted, with subject and split."""

    @abstractmethod
    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        """Say which windows of a recording have which label; a DataError refuses the recording."""

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
        text = source.labels.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise DataError(f"its label file {source.labels.name} can't be read ({error.strerror})") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
