"""The bytes of an EDF+ file: its header, time stamps and annotations. It says nothing about the patient."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from zipbrain.numerals import spell_seconds
from zipbrain.signal.edf_header import ANNOTATIONS, MONTHS, SignalHeader
from zipbrain.text import readable

UNKNOWN: Final = -1  # number of records of a file that is still written

_MAIN: Final = (8, 80, 80, 8, 8, 8, 44, 8, 8, 4)  # bytes of the header's fields
_SIGNAL: Final = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)  # bytes of a signal's fields
_YEARS: Final = range(1985, 2085)  # that two digits can say
_NUMBER: Final = 8  # characters of a number in the header
MOST_TEXT: Final = 1000  # bytes of an annotation's text
_FORBIDDEN: Final = str.maketrans(dict.fromkeys([*map(chr, range(32)), "\x7f"], " "))


def header_bytes(
    signals: Sequence[SignalHeader], records: int, record_seconds: float, start: datetime | None = None
) -> bytes:
    """The header of a continuous EDF+ file; `start` counts to the second, and only in the years 1985 to 2084."""
    known = start if start is not None and start.year in _YEARS else None
    when = known or datetime(1985, 1, 1)
    date = f"{when.day:02d}-{MONTHS[when.month - 1]}-{when.year}" if known else "X"
    main = ["0", "X X X X", f"Startdate {date} X zipbrain X", f"{when:%d.%m.%y}", f"{when:%H.%M.%S}"]
    main += [str(256 * (len(signals) + 1)), "EDF+C", str(records), spell_number(record_seconds), str(len(signals))]
    columns = [
        (s.label, "", s.unit, *map(spell_number, (*s.physical, *s.digital)), "", str(s.samples), "") for s in signals
    ]
    fields = [(text, width) for text, width in zip(main, _MAIN, strict=True)]
    fields += [(row[place], width) for place, width in enumerate(_SIGNAL) for row in columns]
    return b"".join(text[:width].ljust(width).encode("ascii", "replace") for text, width in fields)


def annotation_signal(size: int) -> SignalHeader:
    """The signal that holds `size` bytes of annotations a record."""
    return SignalHeader(ANNOTATIONS[0], "", (-1, 1), (-32768, 32767), size // 2)


def stamp_bytes(seconds: float) -> bytes:
    """The time stamp with which every record begins."""
    return f"{_signed(seconds)}\x14\x14\0".encode()


def annotation_bytes(onset: float, duration: float | None, text: str) -> bytes:
    """An annotation; its text is cut after 1,000 bytes at most."""
    words = readable(text).translate(_FORBIDDEN).strip()
    while len(words.encode()) > MOST_TEXT:  # a record must hold it
        words = words[: len(words) // 2]
    lasting = "" if duration is None else f"\x15{spell_seconds(duration)}"
    return f"{_signed(onset)}{lasting}\x14{words}\x14\0".encode()


def spell_number(value: float) -> str:
    """A number as closely as the eight characters of a header's field can say it."""
    return next(text for digits in range(_NUMBER, 0, -1) if len(text := f"{value:.{digits}g}") <= _NUMBER)


def _signed(seconds: float) -> str:
    return f"{'' if seconds < 0 else '+'}{spell_seconds(seconds)}"
