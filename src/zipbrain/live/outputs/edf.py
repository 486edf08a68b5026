"""EDF+: signals and alarms as they come, readable at any moment, in files of one unbroken stretch each."""

from __future__ import annotations

import shutil
from collections import deque
from datetime import timedelta
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError
from zipbrain.live.alarms import Event
from zipbrain.live.outputs.base import Output, SessionFacts
from zipbrain.live.outputs.edf_file import EDFFile, Mark, choose_gains, record_samples
from zipbrain.live.outputs.lines import make_folder, new_path

LONGEST_FILL_S: Final = 60.0  # a gap up to this length is filled with zeros and marked; a longer one ends the file
RESERVE: Final = 2**26  # bytes of the disk that signals leave to the journal and the decisions

_MOST_MARKS: Final = 1000  # marks that wait for a record
_MOST_EMPTY: Final = 5  # records without samples that the last marks may take

Array = NDArray[np.float64]


class EDFSignals(Output):
    """``signals_<start>.edf``: all channels of the stream with alarms and gaps as annotations.

    A gap is filled with zeros between the annotations ``BAD boundary`` and ``EDGE boundary``, at which neither MNE nor
    `predict` makes a window that crosses it. Where the disk has no room, signals are left out until there is some.

    Attributes
    ----------
    lost : int
        Samples per channel that the disk did not take.
    clipped : ndarray, shape (C,)
        Samples of each channel beyond the range that its file can hold.
    """

    name = "edf"

    def __init__(self, reserve: int = RESERVE) -> None:
        self.reserve, self.lost = reserve, 0
        self._file: EDFFile | None = None
        self._marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._begin = self._missing = 0  # number of the buffer's first sample; samples of a gap that follows the buffer
        self._remark, self._remark_s = "", 0.0

    def open(self, facts: SessionFacts) -> None:
        self._facts = facts
        make_folder(facts.folder)
        self._size = record_samples(facts.sfreq)
        self._buffer = np.empty((len(facts.ch_names), 0))
        self.clipped = np.zeros(len(facts.ch_names), dtype=np.int64)

    def samples(self, first: int, rows: Array) -> None:
        expected = self._begin + self._buffer.shape[1] + self._missing
        self._missing += max(first - expected, 0)
        rows = rows[:, max(expected - first, 0) :]  # samples that were written before
        is_gap: NDArray[np.bool_] = np.asarray(np.isnan(rows).all(axis=0))
        edges = [0, *(int(place) + 1 for place in np.flatnonzero(np.diff(is_gap))), is_gap.size]
        for begin, end in pairwise(edges):
            if begin < end and is_gap[begin]:
                self._missing += end - begin
            elif begin < end:
                self._bridge()
                self._buffer = np.concatenate((self._buffer, rows[:, begin:end]), axis=1)
                while self._buffer.shape[1] >= self._size:
                    self._write(self._buffer[:, : self._size])
                    self._buffer, self._begin = self._buffer[:, self._size :], self._begin + self._size

    def tell(self, event: Event) -> None:
        subject = f"{event.category} alarm {event.alarm}" if event.alarm else "alarms"
        words = f" ({event.words})" if event.words else ""
        self._marks.append(Mark(event.time_s, None, f"{subject}: {event.kind}{words}"))

    def close(self) -> None:
        self._end_stretch()

    def _seconds(self, sample: int) -> float:
        return sample / self._facts.sfreq

    def _bridge(self) -> None:
        """Fill the gap before the next sample, or begin another file after a long one."""
        missing, self._missing = self._missing, 0
        if not missing:
            return
        has_begun = self._file is not None or self._buffer.size > 0
        if not has_begun or self._seconds(missing) > LONGEST_FILL_S:
            self._end_stretch()
            self._begin += missing
            return
        stop = self._begin + self._buffer.shape[1]
        self._marks.append(Mark(self._seconds(stop), self._seconds(missing), "BAD boundary"))
        self._marks.append(Mark(self._seconds(stop + missing), None, "EDGE boundary"))
        self._buffer = np.concatenate((self._buffer, np.zeros((len(self._buffer), missing))), axis=1)

    def _end_stretch(self) -> None:
        """Write what is left, the rest of its record filled with zeros, and close the file."""
        stop = self._begin + self._buffer.shape[1]
        self._follow_remark("", self._seconds(stop))
        for _ in range(_MOST_EMPTY):
            if not self._buffer.size and not (self._marks and self._file):
                break
            used = self._buffer.shape[1]
            rest = self._size - used
            self._marks.append(Mark(self._seconds(self._begin + used), self._seconds(rest), "BAD boundary"))
            self._write(np.pad(self._buffer, ((0, 0), (0, rest))))
            self._buffer, self._begin = self._buffer[:, :0], self._begin + self._size
        self._buffer, self._begin = self._buffer[:, :0], stop
        self._close_file()

    def _write(self, block: Array) -> None:
        """Write a record, or count it as lost and say why."""
        while True:
            try:
                self._append(block)
                self.failure = ""
                return
            except (OSError, DataError) as error:
                self.failure = f"signals are not written: {getattr(error, 'strerror', None) or error}"
                was_used = self._file is not None and self._file.records > 0
                self._close_file()
            if not was_used:  # else the file may be as large as it can be, and another one goes on
                self.lost += block.shape[1]
                return

    def _append(self, block: Array) -> None:
        facts, onset = self._facts, self._seconds(self._begin)
        if shutil.disk_usage(facts.folder).free < self.reserve:
            raise OSError(f"less than {self.reserve / 2**20:.0f} MB are left, which decisions need")
        if self._file is None:
            start = facts.started + timedelta(seconds=onset)
            path = new_path(facts.folder, "signals", start, "edf")
            self._file = EDFFile(path, facts, start, onset, choose_gains(block))
        digital, beyond = self._file.digitise(block)
        self._follow_remark(self._describe(block, beyond), onset)
        self._file.write(digital, self._marks)
        self.clipped += beyond

    def _describe(self, block: Array, beyond: NDArray[np.int64]) -> str:
        """What is wrong with a record's channels."""
        names = np.array(self._facts.ch_names)
        found = (("no signal", np.isnan(block).any(axis=1)), ("clipped", beyond > 0))
        return "; ".join(f"{words}: {', '.join(names[which])}" for words, which in found if which.any())

    def _follow_remark(self, remark: str, onset: float) -> None:
        """Mark the stretch of what was wrong until now, when it changes."""
        if remark != self._remark:
            if self._remark:
                self._marks.append(Mark(self._remark_s, onset - self._remark_s, self._remark))
            self._remark, self._remark_s = remark, onset

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
