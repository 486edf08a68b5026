"""The header of an EDF or BDF file and the times of its records, with what is wrong in them named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError
from zipbrain.signal.edf_annotations import MOST_BYTES, STAMP_BYTES, gather_annotations, read_stamp
from zipbrain.signal.montage import is_scalp
from zipbrain.signal.recording import MICROVOLTS, PACKED, Annotation

ANNOTATIONS: Final = ("EDF Annotations", "BDF Annotations")
JITTER: Final = 1e-3  # seconds by which a time stamp may be off
_LATE: Final = 0.5  # seconds by which the last one of a continuous file may be off, besides a drift of 1e-4

_LARGEST: Final = 1e30  # of a physical or digital limit: beyond, scaling would leave the range of numbers
_MOST_PLACED: Final = 1_000_000  # records of a discontinuous file, whose time stamps are kept
_MOST_RECORDS: Final = 10_000_000  # of a file with annotations, which are read record by record

_WIDTHS: Final = (16, 80, 8, 8, 8, 8, 8, 80, 8)  # label, transducer, unit, physical and digital ranges, filter, samples
_DATE: Final = re.compile(r"Startdate (\d\d)-([A-Z]{3})-(\d{4})\b", re.IGNORECASE)
_YEARS: Final = (1800, 2500)  # of a recording: made anonymous, it may lie in the past or in the future
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


@dataclass(frozen=True)
class SignalHeader:
    """One signal of a header."""

    label: str
    unit: str
    physical: tuple[float, float]
    digital: tuple[float, float]
    samples: int  # per record

    @property
    def no_scale(self) -> str:
        """Why its numbers can't be scaled; empty if they can."""
        for what, (low, high) in (("digital", self.digital), ("physical", self.physical)):
            if low == high:
                return f"its {what} minimum and maximum are both {low:g}: no scale"
            if not (abs(low) <= _LARGEST and abs(high) <= _LARGEST):
                return f"its {what} minimum and maximum are {low:g} and {high:g}: no scale"
        return ""


@dataclass(frozen=True)
class Header:
    """A header that was found usable; its signals include the annotations."""

    path: Path
    kind: str  # "edf" or "bdf", as the content says, whatever the name
    size: int  # bytes of the header
    reserved: str  # such as "EDF+C" and "EDF+D", continuous and discontinuous
    records: int  # as promised; -1 if unknown
    record_seconds: float
    signals: list[SignalHeader]
    start: datetime | None  # as the header says, to the second and without a time zone

    @classmethod
    def read(cls, path: Path, *, needs_rate: bool = True) -> Header:
        """Read a header, and refuse a file that can't be read from beginning to end.

        Without a need for a sampling rate, a record may last 0 s, as it does in files that hold annotations only.
        """
        with opened(path) as file:
            start = file.read(256)
            kind = "bdf" if start[:8] == b"\xffBIOSEMI" else "edf"
            if start.startswith(PACKED):
                raise DataError(f"{path}: is packed, as .gz and .zip files are, and no EDF or BDF file; unpack it")
            if kind == "edf" and text_of(start[:8]) != "0":
                raise DataError(f"{path}: is no EDF or BDF file (it begins with {start[:8]!r}); check what it is")
            try:
                size, records, count = (int(text_of(start[a:b])) for a, b in ((184, 192), (236, 244), (252, 256)))
                record_seconds = float(text_of(start[244:252]))
                rest = file.read(256 * max(count, 0))
                if size != 256 * (count + 1) or len(rest) != 256 * count:
                    raise ValueError(f"{count} signals, {size} bytes of header promised, {256 + len(rest)} found")
                signals = read_signals(rest, count)
            except ValueError as error:
                raise DataError(f"{path}: its header is broken or cut off ({error}); copy it again") from None
        header = cls(path, kind, size, text_of(start[192:236]), records, record_seconds, signals, start_time(start))
        if header.record_bytes <= 0 or min(signal.samples for signal in signals) < 0:
            raise DataError(f"{path}: its header lists no signal; use another file")
        if not 0 < record_seconds < np.inf and (needs_rate or record_seconds != 0):
            words = "so the sampling rate is unknown (the file may hold annotations only)"
            advice = "correct the record length in its header"
            raise DataError(f"{path}: a record lasts {record_seconds:g} s, {words}; {advice}")
        if header.found < 1:
            raise DataError(f"{path}: holds not one whole record after its header; copy it again")
        marks = header.sample_bytes * sum(signal.samples for signal in signals if signal.label in ANNOTATIONS)
        if marks > MOST_BYTES:
            words = f"its header promises {marks:,} bytes of annotations in every record"
            raise DataError(f"{path}: {words}, where at most {MOST_BYTES:,} are read; correct its header")
        most = _MOST_PLACED if header.discontinuous else _MOST_RECORDS
        if marks and header.found > most:
            words = f"has {header.found:,} records with time stamps, where at most {most:,} are read"
            raise DataError(f"{path}: {words}; write it with longer records")
        return header

    @property
    def sample_bytes(self) -> int:
        """2 in EDF, 3 in BDF."""
        return 2 if self.kind == "edf" else 3

    @property
    def record_bytes(self) -> int:
        """Bytes per record, annotations included."""
        return self.sample_bytes * sum(signal.samples for signal in self.signals)

    @property
    def found(self) -> int:
        """Whole records in the file, whatever was promised."""
        return (self.path.stat().st_size - self.size) // self.record_bytes

    def unusable(self, *, any_unit: bool) -> dict[str, str]:
        """Labels that must be left out, and why; `any_unit` lets units pass that are no voltages."""
        reasons: dict[str, str] = {}
        usable = []
        for s in self.signals:
            if s.label in ANNOTATIONS:
                continue
            if s.no_scale:
                reasons[s.label] = s.no_scale
            elif not any_unit and s.unit.lower() not in MICROVOLTS:
                reasons[s.label] = f"its unit {s.unit!r} is no voltage (if it is one, pass units=)"
            else:
                usable.append(s)
        rates, eeg = Counter(s.samples for s in usable), Counter(s.samples for s in usable if is_scalp(s.label))
        # A polygraphy has more belts, flows and limbs than electrodes on the head.
        main = max(rates, key=lambda samples: (eeg[samples], rates[samples], samples), default=0)
        whose = "most" if rates[main] == max(rates.values(), default=0) else "EEG"
        for s in usable:
            if s.samples != main:
                own, most = s.samples / self.record_seconds, main / self.record_seconds
                reasons[s.label] = f"it is sampled at {own:g} Hz, {whose} channels at {most:g} Hz"
        return reasons

    def notes(self, left_out: Container[str]) -> list[str]:
        """What gets repaired; `left_out` are labels that don't matter."""
        notes = []
        suffix = self.path.suffix.lower()
        if suffix in (".edf", ".bdf") and suffix != f".{self.kind}":
            notes.append(f"named {suffix}, but is {self.kind.upper()}")
        if self.records != self.found:
            promised = "an unknown number of records" if self.records == -1 else f"{self.records} records"
            notes.append(f"the header promises {promised}, the file holds {self.found}: {self.found} are used")
        if stray := (self.path.stat().st_size - self.size) % self.record_bytes:
            notes.append(f"{stray} bytes after the last whole record are not used")
        if late := self._late():
            off = f"is marked as continuous, but its last record is stamped {late:+g} s off"
            notes.append(f"{off}: there may be gaps, after which times are wrong")
        first = next(self._marks(only_first=True), b"")
        if first[:1] in (b"+", b"-") and read_stamp(first) is None:
            notes.append("the time stamp of its first record is no time: taken as 0 s")
        used = [s for s in self.signals if s.label not in left_out and s.label not in ANNOTATIONS]
        repeated = [label for label, count in Counter(s.label for s in used).items() if count > 1]
        notes += [f"several channels are called {label}: numbered from {label}-0" for label in repeated]
        notes += [
            f"channel {s.label}: digital minimum {s.digital[0]:g} above maximum {s.digital[1]:g}, so its sign is turned"
            for s in used
            if s.digital[0] > s.digital[1]
        ]
        return notes

    @property
    def discontinuous(self) -> bool:
        """True if records may have gaps between them."""
        return self.reserved[3:5] == "+D"

    def stamps(self) -> NDArray[np.float64]:
        """Seconds at which the records of a discontinuous file begin."""
        times: list[float] = []
        for marks in self._marks(only_first=True):
            if (stamp := read_stamp(marks)) is None:
                where = f"record {len(times)} of a discontinuous file"
                raise DataError(f"{self.path}: {where} has no time stamp; repair it")
            times.append(stamp)
        if not times:
            raise DataError(f"{self.path}: is marked as discontinuous and has no time stamps; use a continuous file")
        return np.array(times)

    def _late(self) -> float:
        """Seconds by which the last time stamp of a continuous file is off; 0 if it is right or there is none."""
        if self.discontinuous:
            return 0.0
        first, last = (read_stamp(next(self._marks(only_first=True, first=n), b"")) for n in (0, self.found - 1))
        if first is None or last is None:
            return 0.0
        late = last - first - (self.found - 1) * self.record_seconds
        return round(late, 3) if abs(late) > max(_LATE, 1e-4 * self.found * self.record_seconds) else 0.0

    def gaps(self, stamps: NDArray[np.float64]) -> list[tuple[int, float]]:
        """Records before which there is a gap, and its length in seconds; negative if records overlap."""
        lengths = np.diff(stamps) - self.record_seconds
        return [(int(i) + 1, float(lengths[i])) for i in np.flatnonzero(np.abs(lengths) > JITTER)]

    def begin(self) -> float:
        """Seconds from `start` at which the first record begins; 0 where its time stamp does not say it."""
        return read_stamp(next(self._marks(only_first=True), b"")) or 0.0

    def annotations(self) -> tuple[list[Annotation], list[str]]:
        """All annotations, sorted and in seconds from the beginning of the first record, and notes about them."""
        return gather_annotations(self._marks(), self.begin(), {signal.label for signal in self.signals}, self.path)

    def _marks(self, *, only_first: bool = False, first: int = 0) -> Iterator[bytes]:
        """The annotations of every record from `first` on; with `only_first` of the signal that has the time stamps."""
        offsets = np.cumsum([0, *(signal.samples for signal in self.signals)]) * self.sample_bytes
        places = [
            (int(offsets[i]), self.sample_bytes * signal.samples)
            for i, signal in enumerate(self.signals)
            if signal.label in ANNOTATIONS
        ]
        if not places:
            return
        with opened(self.path) as file:
            for record in range(first, self.found):
                for offset, length in places[:1] if only_first else places:
                    file.seek(self.size + record * self.record_bytes + offset)
                    yield file.read(min(length, STAMP_BYTES) if only_first else length)


def start_time(header: bytes) -> datetime | None:
    """Date and time of the first 256 bytes; the recording's own description has the century."""
    try:
        hour, minute, second = (int(part) for part in text_of(header[176:184]).split("."))
        if match := _DATE.match(text_of(header[88:168])):
            day, month, year = int(match[1]), MONTHS.index(match[2].upper()) + 1, int(match[3])
        else:
            day, month, year = (int(part) for part in text_of(header[168:176]).split("."))
            year += 2000 if year < 85 else 1900
        if not _YEARS[0] <= year <= _YEARS[1]:
            return None
        return datetime(year, month, day) + timedelta(hours=hour, minutes=minute, seconds=second)
    except (ValueError, OverflowError):
        return None


def read_signals(rest: bytes, count: int) -> list[SignalHeader]:
    """Take apart what lists one field after the other, each for all signals."""
    columns = []
    for width in _WIDTHS:
        column, rest = rest[: width * count], rest[width * count :]
        columns.append([text_of(column[at : at + width]) for at in range(0, width * count, width)])
    labels, _, units, *numbers, _, samples = columns
    labels = ["".join(letter if letter.isprintable() else "?" for letter in label) for label in labels]
    ranges = [[float(text.replace(",", ".")) for text in column] for column in numbers]
    return [
        SignalHeader(label, unit, (low, high), (least, most), int(n))
        for label, unit, low, high, least, most, n in zip(labels, units, *ranges, samples, strict=True)
    ]


def text_of(field: bytes) -> str:
    """The text of a field, which spaces or zeros fill up."""
    return field.split(b"\0")[0].decode("latin-1").strip()


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading in places of one's own choice; a failure is a `DataError`."""
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); check the file") from None
