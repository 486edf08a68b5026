"""The fields of an EDF or BDF header: text of fixed width -> signals, and the time of the beginning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

_WIDTHS: Final = (16, 80, 8, 8, 8, 8, 8, 80, 8)  # label, transducer, unit, physical and digital ranges, filter, samples
_DATE: Final = re.compile(r"Startdate (\d\d)-([A-Z]{3})-(\d{4})\b", re.IGNORECASE)
_NAMES: Final = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
MONTHS: Final = tuple(_NAMES.split())


@dataclass(frozen=True)
class Signal:
    """One signal of a header."""

    label: str
    unit: str
    physical: tuple[float, float]
    digital: tuple[float, float]
    samples: int  # per record


def start_time(header: bytes) -> datetime | None:
    """Date and time of the first 256 bytes; the recording's own description has the century."""
    try:
        hour, minute, second = (int(part) for part in text_of(header[176:184]).split("."))
        if match := _DATE.match(text_of(header[88:168])):
            day, month, year = int(match[1]), MONTHS.index(match[2].upper()) + 1, int(match[3])
        else:
            day, month, year = (int(part) for part in text_of(header[168:176]).split("."))
            year += 2000 if year < 85 else 1900
        return datetime(year, month, day) + timedelta(hours=hour, minutes=minute, seconds=second)
    except (ValueError, OverflowError):
        return None


def read_signals(rest: bytes, count: int) -> list[Signal]:
    """Take apart what lists one field after the other, each for all signals."""
    columns: list[list[str]] = []
    offset = 0
    for width in _WIDTHS:
        columns.append([text_of(rest[offset + i * width : offset + (i + 1) * width]) for i in range(count)])
        offset += width * count
    labels, _, units, *numbers, _, samples = columns
    ranges = [[float(text.replace(",", ".")) for text in column] for column in numbers]
    return [
        Signal(label, unit, (low, high), (least, most), int(n))
        for label, unit, low, high, least, most, n in zip(labels, units, *ranges, samples, strict=True)
    ]


def text_of(field: bytes) -> str:
    """The text of a field, which spaces or zeros fill up."""
    return field.split(b"\0")[0].decode("latin-1").strip()
