"""Time stamps and annotations of EDF+ and BDF+, scanned in one pass and within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError
from zipbrain.signal.recording import Annotation

STAMP_BYTES: Final = 64  # that a time stamp, the beginning of a record's annotations, may take
MOST_ANNOTATIONS: Final = 500_000  # of a file
MOST_BYTES: Final = 1 << 24  # of annotations in one record
LATEST: Final = 1e9  # seconds from the start of a file, 31 years: what lies beyond is no time

_END: Final = b"\x14"
_STAMP: Final = re.compile(rb"([+-]\d+(?:\.\d*)?)\x14")  # seconds at which a record starts
_TIMES: Final = re.compile(rb"([+-]\d+(?:\.\d*)?)(?:\x15(\d+(?:\.\d*)?))?\Z")  # onset, and duration if there is one
_TIMES_BYTES: Final = 128  # that both may take

Mark = tuple[float, float, bytes]  # onset and duration in seconds, text


def read_stamp(marks: bytes) -> float | None:
    """Seconds of the time stamp with which a record's annotations begin; None if there is none or it is no time."""
    match = _STAMP.match(marks[:STAMP_BYTES])
    return float(match[1]) if match and abs(float(match[1])) <= LATEST else None


def scan_marks(marks: bytes) -> Iterator[Mark]:
    """Onset, duration and text of every annotation of a record, whatever its time; lists that don't end are skipped."""
    for part in re.finditer(rb"[^\0]+", marks):
        if part[0].endswith(_END):
            pieces = part[0].split(_END)  # the last one is empty
            for place, piece in enumerate(pieces[:-2]):
                if match := _TIMES.search(piece[-_TIMES_BYTES:]):
                    onset, duration = float(match[1]), float(match[2] or 0)
                    yield from ((onset, duration, text) for text in pieces[place + 1 : -1] if text)
                    break


def gather_annotations(
    records: Iterable[bytes], begin: float, labels: set[str], path: Path
) -> tuple[list[Annotation], list[str]]:
    """All annotations, sorted and in seconds from `begin`, and notes about them.

    An annotation of some channels is written once for each of these `labels`; here it is one.
    """
    found: list[Mark] = []
    beyond = 0
    for marks in records:
        if marks.count(_END) > 2 * (MOST_ANNOTATIONS + 1):  # before so many are taken apart
            raise _too_many(path)
        for onset, duration, text in scan_marks(marks):
            if max(abs(onset - begin), duration) > LATEST:
                beyond += 1
            else:
                found.append((onset - begin, duration, text))
        if len(found) > MOST_ANNOTATIONS:
            raise _too_many(path)
    encoding, notes = "utf-8", []
    if beyond:
        notes.append(f"{beyond} annotations left out: their times lie more than {LATEST:g} s from the beginning")
    try:
        for _, _, text in found:
            text.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"
        notes.append("annotations are not UTF-8: read as Latin-1")
    several: dict[Annotation, None] = {}
    single: list[Annotation] = []
    for onset, duration, raw in found:
        words, _, label = (whole := raw.decode(encoding)).partition("@@")
        if label in labels:
            several[onset, duration, words] = None
        else:
            single.append((onset, duration, whole))
    return sorted([*single, *several]), notes


def _too_many(path: Path) -> DataError:
    return DataError(f"{path}: holds more than {MOST_ANNOTATIONS:,} annotations; remove those that are none")
