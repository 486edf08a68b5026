"""The header of an EDF or BDF file: what must be right in it before MNE is let at the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from zipbrain.errors import DataError

# Microvolts in a unit; a signal without unit is in volts, as MNE takes it.
MICRO: Final = {"nv": 1e-3, "uv": 1.0, "µv": 1.0, "μv": 1.0, "\x83\xcav": 1.0, "mv": 1e3, "v": 1e6, "": 1e6}
ANNOTATIONS: Final = ("EDF Annotations", "BDF Annotations")

_WIDTHS: Final = (16, 80, 8, 8, 8, 8, 8, 80, 8)  # label, transducer, unit, physical and digital ranges, filter, samples
_STAMP: Final = re.compile(rb"([+-]\d+(?:\.\d*)?)\x14")  # seconds at which a record starts


@dataclass(frozen=True)
class Signal:
    """One signal of a header."""

    label: str
    unit: str
    physical: tuple[float, float]
    digital: tuple[float, float]
    samples: int  # per record


@dataclass(frozen=True)
class Header:
    """A header that was found usable.

    Parameters
    ----------
    path : Path
    kind : {"edf", "bdf"}
        What the content says, whatever the name.
    size : int
        Bytes of the header.
    reserved : str
        Such as "EDF+C" and "EDF+D", continuous and discontinuous.
    records : int
        As promised; -1 if unknown.
    record_seconds : float
    signals : list of Signal
        Annotations included.
    """

    path: Path
    kind: str
    size: int
    reserved: str
    records: int
    record_seconds: float
    signals: list[Signal]

    @classmethod
    def read(cls, path: Path) -> Header:
        """Read a header, and refuse a file that can't be read from beginning to end."""
        with path.open("rb") as file:
            start = file.read(256)
            kind = "bdf" if start[:8] == b"\xffBIOSEMI" else "edf"
            if kind == "edf" and _text(start[:8]) != "0":
                raise DataError(f"{path}: is no EDF or BDF file (it begins with {start[:8]!r}); check what it is")
            try:
                size, records, count = (int(_text(start[a:b])) for a, b in ((184, 192), (236, 244), (252, 256)))
                record_seconds = float(_text(start[244:252]))
                rest = file.read(256 * max(count, 0))
                if size != 256 * (count + 1) or len(rest) != 256 * count:
                    raise ValueError(f"{count} signals, {size} bytes of header promised, {256 + len(rest)} found")
                signals = _signals(rest, count)
            except ValueError as error:
                raise DataError(f"{path}: its header is broken or cut off ({error}); copy it again") from None
        header = cls(path, kind, size, _text(start[192:236]), records, record_seconds, signals)
        if header.record_bytes <= 0 or min(signal.samples for signal in signals) < 0:
            raise DataError(f"{path}: its header lists no signal; use another file")
        if not 0 < record_seconds < np.inf:
            raise DataError(
                f"{path}: a record lasts {record_seconds:g} s, so the sampling rate is unknown (the file may hold "
                "annotations only); correct the record length in its header"
            )
        if header.found < 1:
            raise DataError(f"{path}: holds not one whole record after its header; copy it again")
        header._refuse_gaps()
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
            if s.digital[0] == s.digital[1]:
                reasons[s.label] = f"its digital minimum and maximum are both {s.digital[0]:g}: no scale"
            elif s.physical[0] == s.physical[1]:
                reasons[s.label] = f"its physical minimum and maximum are both {s.physical[0]:g}: no scale"
            elif not any_unit and s.unit.lower() not in MICRO:
                reasons[s.label] = f"its unit {s.unit!r} is no voltage (if it is one, pass units=)"
            else:
                usable.append(s)
        rates = Counter(s.samples for s in usable)
        main = max(rates, key=lambda samples: (rates[samples], samples), default=0)
        for s in usable:
            if s.samples != main:
                own, most = s.samples / self.record_seconds, main / self.record_seconds
                reasons[s.label] = f"it is sampled at {own:g} Hz, most channels at {most:g} Hz"
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
        used = [s for s in self.signals if s.label not in left_out and s.label not in ANNOTATIONS]
        repeated = [label for label, count in Counter(s.label for s in used).items() if count > 1]
        notes += [f"several channels are called {label}: numbered from {label}-0" for label in repeated]
        notes += [
            f"channel {s.label}: digital minimum {s.digital[0]:g} above maximum {s.digital[1]:g}, so its sign is turned"
            for s in used
            if s.digital[0] > s.digital[1]
        ]
        if self._discontinuous:
            notes.append("marked as discontinuous, but without gaps")
        return notes

    @property
    def _discontinuous(self) -> bool:
        return self.reserved[3:5] == "+D"

    def _refuse_gaps(self) -> None:
        """Compare the time stamps of a discontinuous file with its record length."""
        if not self._discontinuous:
            return
        first = next((i for i, signal in enumerate(self.signals) if signal.label in ANNOTATIONS), None)
        if first is None:
            raise DataError(f"{self.path}: is marked as discontinuous and has no time stamps; use a continuous file")
        offset = self.sample_bytes * sum(signal.samples for signal in self.signals[:first])
        width = min(40, self.sample_bytes * self.signals[first].samples)
        records = np.memmap(self.path, np.uint8, "r", self.size, (self.found, self.record_bytes))
        times: list[float] = []
        for stamp in records[:, offset : offset + width]:
            match = _STAMP.match(stamp.tobytes())
            if match is None:
                raise DataError(
                    f"{self.path}: record {len(times)} of a discontinuous file has no time stamp; repair it"
                )
            times.append(float(match[1]))
        gaps = np.diff(times) - self.record_seconds
        wide = np.flatnonzero(np.abs(gaps) > 1e-3)
        if wide.size:
            at = times[wide[0]] + self.record_seconds - times[0]
            raise DataError(
                f"{self.path}: is discontinuous (EDF+D) with {wide.size} gaps, the first of {gaps[wide[0]]:g} s after "
                f"{at:g} s; split it there into continuous files"
            )


def _signals(rest: bytes, count: int) -> list[Signal]:
    """Take apart what lists one field after the other, each for all signals."""
    columns: list[list[str]] = []
    offset = 0
    for width in _WIDTHS:
        columns.append([_text(rest[offset + i * width : offset + (i + 1) * width]) for i in range(count)])
        offset += width * count
    labels, _, units, *numbers, _, samples = columns
    ranges = [[float(text.replace(",", ".")) for text in column] for column in numbers]
    return [
        Signal(label, unit, (low, high), (least, most), int(n))
        for label, unit, low, high, least, most, n in zip(labels, units, *ranges, samples, strict=True)
    ]


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("latin-1").strip()
