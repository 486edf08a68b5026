"""One EDF+ file that grows record by record: every record is whole in the file before the next one begins."""

from __future__ import annotations

import os
from collections import deque
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError
from zipbrain.files import lock_folder
from zipbrain.live.outputs.base import SessionFacts
from zipbrain.live.outputs.lines import new_file
from zipbrain.signal.edf_header import SignalHeader
from zipbrain.signal.edf_writing import (
    UNKNOWN,
    annotation_bytes,
    annotation_signal,
    header_bytes,
    spell_number,
    stamp_bytes,
)

GAINS: Final = (0.1, 1.0, 10.0, 100.0)  # microvolts a step; 0.1 reaches 3.3 mV

_LARGEST: Final = 32767  # of a digital value
_MARKS: Final = 1024  # bytes of annotations in a record
_MOST_TEXT: Final = 200  # characters of an annotation
_LABEL: Final = 16  # characters of a channel's name
_RECORD_COUNT: Final = 236  # place of the number of records in the header, and its bytes
_RECORD_COUNT_BYTES: Final = 8

Array = NDArray[np.float64]


class Mark(NamedTuple):
    """An annotation in stream time."""

    onset: float
    duration: float | None
    text: str


class EDFFile:
    """A new file with a fixed range in every channel, for one user alone, locked while it is written.

    Parameters
    ----------
    path : Path
        A file that is not there yet; OSError or DataError if it can't be made.
    facts : SessionFacts
    start : datetime
        When its first sample was taken.
    onset : float
        That moment in stream time.
    gains : ndarray, shape (C,)
        Microvolts a step.
    """

    def __init__(self, path: Path, facts: SessionFacts, start: datetime, onset: float, gains: Array) -> None:
        self.path, self.records = path, 0
        self._start, self._onset, self._gains = start, onset, gains[:, np.newaxis]
        self._samples = record_samples(facts.sfreq)
        self._record_s = self._samples / facts.sfreq
        labels, (low, high) = _labels(facts.ch_names), (-_LARGEST - 1, _LARGEST)
        signals = [
            SignalHeader(name, "uV", (gain * low, gain * high), (low, high), self._samples)
            for name, gain in zip(labels, gains, strict=True)
        ]
        header = header_bytes([*signals, annotation_signal(_MARKS)], UNKNOWN, self._record_s, start)
        self._header, self._record = len(header), 2 * self._samples * len(signals) + _MARKS
        self._handle = new_file(path)
        self._stack = ExitStack()
        self._stack.callback(os.close, self._handle)
        try:
            self._stack.enter_context(lock_folder(path, DataError(f"{path}: another process uses it")))
            self._put(header, 0)
        except BaseException:
            self.close()
            raise

    def digitise(self, block: Array) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Samples as the file holds them, 0 for NaN, and how many of each channel are beyond its range."""
        steps = np.rint(np.nan_to_num(block / self._gains, nan=0.0, posinf=np.inf, neginf=-np.inf))
        beyond = np.abs(steps) > _LARGEST
        return np.clip(steps, -_LARGEST, _LARGEST).astype("<i2"), beyond.sum(axis=1)

    def write(self, digital: NDArray[np.int16], marks: deque[Mark]) -> None:
        """Append a record with as many marks as fit, which leave the queue; OSError if the disk does not take it."""
        text = stamp_bytes(self.records * self._record_s)
        if not self.records:  # the header counts to the second, so that annotations stay where they are in any reader
            text += annotation_bytes(0, None, f"first sample at {self._start.isoformat()}")
        taken = 0
        for mark in marks:
            entry = annotation_bytes(mark.onset - self._onset, mark.duration, mark.text[:_MOST_TEXT])
            if len(text) + len(entry) > _MARKS:
                break
            text, taken = text + entry, taken + 1
        self._put(digital.tobytes() + text.ljust(_MARKS, b"\0"), self._header + self.records * self._record)
        self.records += 1
        for _ in range(taken):
            marks.popleft()

    def close(self) -> None:
        """Write the number of records, and remove the file if it has none."""
        with self._stack, suppress(OSError):
            if not self.records:
                self.path.unlink()
                return
            os.ftruncate(self._handle, self._header + self.records * self._record)
            count = str(self.records).ljust(_RECORD_COUNT_BYTES).encode()
            os.pwrite(self._handle, count, _RECORD_COUNT)

    def _put(self, content: bytes, place: int) -> None:
        while content:
            written = os.pwrite(self._handle, content, place)
            content, place = content[written:], place + written


def record_samples(sfreq: float) -> int:
    """Samples of a record of about a second whose length in seconds the header can say exactly, if there is one."""
    second = max(round(sfreq), 1)
    lengths = range(second, 2 * second + 1)
    return next((n for n in lengths if abs(float(spell_number(n / sfreq)) * sfreq / n - 1) < 1e-12), second)


def choose_gains(block: Array) -> Array:
    """Microvolts a step for each channel, so that twice its largest value fits."""
    peaks = np.nan_to_num(np.abs(block)).max(axis=1, initial=0.0)
    places = np.searchsorted(_LARGEST * np.array(GAINS), 2 * peaks)
    chosen: Array = np.array(GAINS)[np.minimum(places, len(GAINS) - 1)]
    return chosen


def _labels(names: tuple[str, ...]) -> list[str]:
    """Names as the header can hold them, each once."""
    labels: list[str] = []
    for name in names:
        label, number = "".join(c if " " <= c <= "~" else "?" for c in name)[:_LABEL], 1
        while label in labels:
            number += 1
            label = f"{label[: _LABEL - 4]}-{number}"
        labels.append(label)
    return labels
