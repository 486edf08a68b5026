"""EDF+: annotations in a file without signals, as hypnograms and event lists are exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from zipbrain.edge.formats.base import MARK, Format, rows
from zipbrain.edge.prediction import NO_DECISION, Prediction
from zipbrain.edge.sleep_stages import EDF_TEXTS, UNDECIDED, sleep_stages
from zipbrain.signal.edf_writing import annotation_bytes, annotation_signal, header_bytes, stamp_bytes

_RECORD: Final = 8192  # bytes of a record; EDF asks for at most 61,440


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
    stamp = stamp_bytes(0)
    records = [stamp]
    for onset, duration, text in annotations:
        entry = annotation_bytes(onset, duration, text)
        if len(records[-1]) + len(entry) > _RECORD:
            records.append(stamp)
        records[-1] += entry
    size = _RECORD if len(records) > 1 else len(records[0]) + len(records[0]) % 2
    header = header_bytes([annotation_signal(size)], len(records), 0, start)
    return header + b"".join(record.ljust(size, b"\0") for record in records)
