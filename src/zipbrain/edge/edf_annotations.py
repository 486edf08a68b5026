"""Annotations as an EDF+C file without signals, as hypnograms and event lists are exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from zipbrain.signal.edf_header import MONTHS

_RECORD: Final = 8192  # bytes of a record; EDF asks for at most 61,440
_YEARS: Final = range(1985, 2085)  # that two digits can say
_STAMP: Final = b"+0\x14\x14\x00"  # every record begins with the time of its start
_FORBIDDEN: Final = str.maketrans(dict.fromkeys([*map(chr, range(32)), "\x7f"], " "))


def annotations_file(annotations: Iterable[tuple[float, float, str]], start: datetime | None = None) -> bytes:
    """Write annotations as the bytes of an EDF+ file.

    The file says nothing about the patient. Records have the length 0, as EDF+ wants it where there are no signals.

    Parameters
    ----------
    annotations : iterable of (onset, duration, text)
        Seconds from the start.
    start : datetime, optional
        When the recording began.

    Returns
    -------
    content : bytes
    """
    records = [_STAMP]
    for onset, duration, text in annotations:
        entry = _entry(onset, duration, text)
        if len(records[-1]) + len(entry) > _RECORD:
            records.append(_STAMP)
        records[-1] += entry
    size = _RECORD if len(records) > 1 else len(records[0]) + len(records[0]) % 2
    header = _header(len(records), size // 2, start)
    return header + b"".join(record.ljust(size, b"\0") for record in records)


def _entry(onset: float, duration: float, text: str) -> bytes:
    words = text.translate(_FORBIDDEN).strip()
    while len(words.encode()) > 1000:  # a record must hold it
        words = words[: len(words) // 2]
    return f"{onset:+.6f}".rstrip("0").rstrip(".").encode() + (
        b"\x15" + f"{duration:.6f}".rstrip("0").rstrip(".").encode() + b"\x14" + words.encode() + b"\x14\x00"
    )


def _header(records: int, samples: int, start: datetime | None) -> bytes:
    known = start if start is not None and start.year in _YEARS else None
    when = known or datetime(1985, 1, 1)
    date = f"{when.day:02d}-{MONTHS[when.month - 1]}-{when.year}" if known else "X"
    main = (
        (8, "0"), (80, "X X X X"), (80, f"Startdate {date} X zipbrain X"), (8, f"{when:%d.%m.%y}"),
        (8, f"{when:%H.%M.%S}"), (8, "512"), (44, "EDF+C"), (8, str(records)), (8, "0"), (4, "1"),
    )  # fmt: skip
    signal = (
        (16, "EDF Annotations"), (80, ""), (8, ""), (8, "-1"), (8, "1"), (8, "-32768"), (8, "32767"), (80, ""),
        (8, str(samples)), (32, ""),
    )  # fmt: skip
    return b"".join(text.ljust(width).encode("ascii") for width, text in (*main, *signal))
