"""EDF+: annotations in a file without signals, as hypnograms and event lists are exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from zipbrain.edge.formats.base import MARK, NO_DECISION, Format, rows, spell_seconds
from zipbrain.edge.prediction import Prediction
from zipbrain.edge.sleep_stages import EDF_TEXTS, UNDECIDED, sleep_stages
from zipbrain.signal.edf_header import MONTHS
from zipbrain.text import readable

_RECORD: Final = 8192  # bytes of a record; EDF asks for at most 61,440
_MAIN: Final = (8, 80, 80, 8, 8, 8, 44, 8, 8, 4)  # bytes of the header's fields
_SIGNAL: Final = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)  # bytes of a signal's fields
_YEARS: Final = range(1985, 2085)  # that two digits can say
_STAMP: Final = b"+0\x14\x14\x00"  # every record begins with the time of its start
_FORBIDDEN: Final = str.maketrans(dict.fromkeys([*map(chr, range(32)), "\x7f"], " "))


class EDFAnnotations(Format):
    """One annotation per window; sleep stages by the texts that EDF+ has for them."""

    name = "edf"

    def file_names(self, stem: str) -> dict[str, str]:
        return {"edf": f"{stem}{MARK}.edf"}

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        stages = sleep_stages(prediction.classes)
        texts = prediction.classes if stages is None else tuple(EDF_TEXTS[stage] for stage in stages)
        named = dict(zip(prediction.classes, texts, strict=True))

        def annotations() -> Iterable[tuple[float, float, str]]:
            for start, _, label, flag in rows(prediction):
                undecided = f"{NO_DECISION}: {flag}" if stages is None else UNDECIDED[1]
                yield start, prediction.window_s, undecided if flag else named[label]

        return {"edf": annotations_file(annotations(), prediction.start)}


def annotations_file(annotations: Iterable[tuple[float, float, str]], start: datetime | None = None) -> bytes:
    """Write annotations (onset and duration in seconds, text) as the bytes of an EDF+ file.

    The file says nothing about the patient. Records have the length 0, as EDF+ wants it where there are no signals.
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
    words = readable(text).translate(_FORBIDDEN).strip()
    while len(words.encode()) > 1000:  # a record must hold it
        words = words[: len(words) // 2]
    sign = "" if onset < 0 else "+"
    return f"{sign}{spell_seconds(onset)}\x15{spell_seconds(duration)}\x14{words}\x14\0".encode()


def _header(records: int, samples: int, start: datetime | None) -> bytes:
    known = start if start is not None and start.year in _YEARS else None
    when = known or datetime(1985, 1, 1)
    date = f"{when.day:02d}-{MONTHS[when.month - 1]}-{when.year}" if known else "X"
    main = ["0", "X X X X", f"Startdate {date} X zipbrain X", f"{when:%d.%m.%y}", f"{when:%H.%M.%S}"]
    main += ["512", "EDF+C", str(records), "0", "1"]
    signal = ["EDF Annotations", "", "", "-1", "1", "-32768", "32767", "", str(samples), ""]
    fields = zip((*_MAIN, *_SIGNAL), (*main, *signal), strict=True)
    return b"".join(text.ljust(width).encode("ascii") for width, text in fields)
