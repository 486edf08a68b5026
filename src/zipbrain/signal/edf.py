"""EDF and BDF files read through numpy alone, in microvolts, block by block.

Refused with a `DataError`: a missing, empty or foreign file, a header without a usable record length or signal, records
that overlap, amplitudes that can't be microvolts. Left out and named in `left_out`: channels without a defined scale
(digital or physical minimum = maximum), channels that are no voltages, channels at another sampling rate than the EEG.
Repaired and named in `notes`: a wrong record count (the file's size decides), repeated channel names (-0, -1, .. are
appended). Records of a discontinuous file (EDF+D) are placed in time, and the gaps between them are NaN.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError
from zipbrain.signal.edf_header import ANNOTATIONS, Header, opened
from zipbrain.signal.plausibility import look_over, no_signal
from zipbrain.signal.recording import MICROVOLTS, Annotation, Array, Recording, check_file, check_rate, check_units

_TRIGGERS: Final = ("status", "trigger")  # what MNE takes for a trigger channel
_CHUNK: Final = 1 << 22  # bytes read at once
_LONGEST: Final = 366  # days
_GAPS: Final = 10  # times what was recorded that gaps may last in all, besides `_SPARE`
_SPARE: Final = 1_000_000  # samples


class EDFRecording(Recording):
    """An EDF or BDF file on disk, as `open_edf` opens it.

    Attributes
    ----------
    start : datetime or None
        When the first sample was taken, without a time zone; None where the header does not say it.
    limits : ndarray, shape (C, 2)
        The lowest and the highest value, in microvolts, that the file can hold in each channel.
    """

    def __init__(self, header: Header, used: Sequence[int], left_out: dict[str, str], units: str | None) -> None:
        signals = [header.signals[i] for i in used]
        self._header, self._samples = header, signals[0].samples if signals else 0
        self.sfreq = self._samples / header.record_seconds
        check_rate(header.path, self.sfreq, f", as a record of {header.record_seconds:g} s has {self._samples} samples")
        self.path, self.left_out, self.notes = header.path, left_out, header.notes(left_out)
        self.ch_names = _numbered([signal.label for signal in signals])
        before = np.cumsum([0, *(signal.samples for signal in header.signals)])
        self._offsets = before[list(used)]  # of a channel in a record, in samples
        self._record_samples = int(before[-1])
        physical = np.array([signal.physical for signal in signals]).reshape(-1, 2)  # (C, 2)
        digital = np.array([signal.digital for signal in signals]).reshape(-1, 2)
        self._gains = (physical[:, 1] - physical[:, 0]) / (digital[:, 1] - digital[:, 0])  # to the file's unit
        self._shifts = physical[:, 0] - digital[:, 0] * self._gains
        self._micro = np.array([MICROVOLTS[(units or signal.unit).lower()] for signal in signals])
        self.limits = np.sort(self._in_microvolts(digital, np.arange(len(signals))), axis=1)
        bare = [signal.label for signal in signals if not signal.unit and units is None]
        self.notes += [f"channel {label} has no unit: taken as volts" for label in bare]
        self._runs = self._place()
        self.n_times = self._runs[-1][1]
        self.gaps = [(one[1], two[0]) for one, two in zip(self._runs, self._runs[1:], strict=False) if one[1] < two[0]]
        if header.discontinuous:
            missing = sum(stop - start for start, stop in self.gaps) / self.sfreq if self.gaps else 0
            found = f"is discontinuous: {len(self.gaps)} gaps, {missing:g} s in all, are not a number"
            self.notes.append(found if self.gaps else "marked as discontinuous, but without gaps")
        if header.start is None:
            self.notes.append("its header has no valid date and time")

    def _place(self) -> list[tuple[int, int, int]]:
        """Put the records in time: first sample, last sample + 1 and first record of each unbroken run."""
        header = self._header
        recorded = header.found * header.record_seconds
        if not header.discontinuous:
            if (days := recorded / 86_400) > _LONGEST:
                raise DataError(f"{self.path}: would last {days:.0f} days; correct the record length in its header")
            return [(0, header.found * self._samples, 0)]
        stamps = header.stamps()
        breaks = header.gaps(stamps)
        for record, length in breaks:
            if length < 0:
                off = f"record {record} begins {-length:g} s before the one before it ends"
                raise DataError(f"{self.path}: {off}; repair its time stamps")
        days = (stamps[-1] - stamps[0]) / 86_400
        if days > _LONGEST:
            raise DataError(f"{self.path}: its time stamps span {days:.0f} days; repair them")
        if (missing := sum(length for _, length in breaks)) > _GAPS * recorded + _SPARE / self.sfreq:
            words = f"its gaps last {missing:.0f} s in all, what was recorded {recorded:g} s"
            raise DataError(f"{self.path}: {words}; repair its time stamps, or split it there")
        firsts = [0, *(record for record, _ in breaks)]
        runs, stop = [], 0
        for record, after in zip(firsts, [*firsts[1:], header.found], strict=True):
            start = max(round((stamps[record] - stamps[0]) * self.sfreq), stop)
            stop = start + (after - record) * self._samples
            runs.append((start, stop, record))
        return runs

    @cached_property
    def start(self) -> datetime | None:
        """When the first sample was taken."""
        return self._header.start and self._header.start + timedelta(seconds=self._header.begin())

    @cached_property
    def annotations(self) -> list[Annotation]:
        """Onset and duration in seconds from the first sample, and description."""
        annotations, notes = self._header.annotations()
        self.notes += notes
        return annotations

    def _in_microvolts(self, digital: NDArray[Any], rows: NDArray[np.intp]) -> Array:
        """(C, n) -> (C, n); the order of the operations is MNE's."""
        x = digital * self._gains[rows, np.newaxis]
        x += self._shifts[rows, np.newaxis]
        x *= self._micro[rows, np.newaxis]
        return np.asarray(x, dtype=np.float64)

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        x = np.full((rows.size, stop - start), np.nan)
        before = bisect_right(self._runs, start, key=lambda run: run[0]) - 1
        with opened(self.path) as file:
            for first, last, record in self._runs[before:]:
                if first >= stop:
                    break
                begin, end = max(start, first), min(stop, last)
                if begin < end:
                    base = first - record * self._samples  # where record 0 would begin
                    self._fill(file, x[:, begin - start : end - start], begin - base, rows)
        return x

    def _fill(self, file: IO[bytes], x: Array, first: int, rows: NDArray[np.intp]) -> None:
        """Read the samples from `first` on, as if there were no gaps."""
        together = _CHUNK // self._header.record_bytes  # records
        done = 0
        while done < x.shape[1]:
            record, skip = divmod(first + done, self._samples)
            left = x.shape[1] - done
            if together:
                count = min(together, -(-(skip + left) // self._samples))
                digital = self._records(file, record, count, rows)[:, skip : skip + left]
            else:  # a whole recording may be one record: only what is needed of it is read
                digital = self._inside(file, record, skip, min(left, self._samples - skip), rows)
            x[:, done : done + digital.shape[1]] = self._in_microvolts(digital, rows)
            done += digital.shape[1]

    def _records(self, file: IO[bytes], record: int, count: int, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Whole records -> (C, count * samples of a record) whole numbers."""
        header = self._header
        raw = self._bytes(file, header.size + record * header.record_bytes, count * header.record_bytes)
        records = raw.reshape(count, self._record_samples, header.sample_bytes)
        parts = np.stack([records[:, begin : begin + self._samples] for begin in self._offsets[rows]])
        return _whole_numbers(parts.reshape(rows.size, -1, header.sample_bytes))

    def _inside(self, file: IO[bytes], record: int, skip: int, count: int, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Samples of one record, read channel by channel -> (C, count) whole numbers."""
        header, size = self._header, self._header.sample_bytes
        starts = header.size + record * header.record_bytes + size * (self._offsets[rows] + skip)
        parts = [self._bytes(file, int(start), size * count).reshape(count, size) for start in starts]
        return _whole_numbers(np.stack(parts))

    def _bytes(self, file: IO[bytes], start: int, count: int) -> NDArray[np.uint8]:
        file.seek(start)
        raw = file.read(count)
        if len(raw) < count:
            raise DataError(f"{self.path}: became shorter while it was read; open it again")
        return np.frombuffer(raw, np.uint8)


def open_edf(path: str | Path, *, units: str | None = None, check: bool = True) -> EDFRecording:
    """Open an EDF, EDF+ or BDF file without loading it, as an `EDFRecording`.

    Parameters
    ----------
    path : str or Path
        Of any name; the content decides between EDF and BDF.
    units : {"nV", "uV", "mV", "V"}, optional
        What the file's numbers are, where it is known that its header is wrong.
    check : bool
        Look at ten seconds in five places and refuse amplitudes that can't be microvolts: the median deviation from the
        median, of the median channel, must lie in 0.1 to 2,000 uV. Seconds in which all channels are flat don't count.
        A channel outside of that and 200 times off the others is noted, and refused where a model needs it.

    """
    path = Path(path)
    check_units(units)
    check_file(path)
    header = Header.read(path)
    left_out = header.unusable(any_unit=units is not None)
    triggers = {s.label for s in header.signals if s.label.lower() in _TRIGGERS}
    left_out |= dict.fromkeys(triggers - left_out.keys(), "it is no voltage (stim)")
    used = [i for i, signal in enumerate(header.signals) if signal.label not in {*left_out, *ANNOTATIONS}]
    if not used:
        raise no_signal(path, left_out)
    recording = EDFRecording(header, used, left_out, units)
    look_over(recording, amplitudes=check)
    return recording


def read_annotations(path: str | Path) -> tuple[datetime | None, list[Annotation], list[str]]:
    """When an EDF+ or BDF+ file starts, its annotations in seconds from there, and notes about them.

    The file may hold nothing else, as the hypnograms of Sleep-EDF do.
    """
    path = Path(path)
    check_file(path)
    header = Header.read(path, needs_rate=False)
    if not any(signal.label in ANNOTATIONS for signal in header.signals):
        raise DataError(f"{path}: has no signal of annotations, so it is no EDF+ or BDF+; use another file")
    annotations, notes = header.annotations()
    return header.start and header.start + timedelta(seconds=header.begin()), annotations, notes


def _numbered(labels: list[str]) -> list[str]:
    """Number labels that are there several times, as MNE does: C3-0, C3-1."""
    count, before = Counter(labels), Counter[str]()
    names = []
    for label in labels:
        names.append(f"{label}-{before[label]}" if count[label] > 1 else label)
        before[label] += 1
    return names


def _whole_numbers(parts: NDArray[np.uint8]) -> NDArray[Any]:
    """Bytes (C, n, 2 or 3) of little-endian numbers with a sign -> (C, n)"""
    if parts.shape[2] == 2:
        return parts.view("<i2")[..., 0]
    wide = np.zeros((*parts.shape[:2], 4), np.uint8)
    wide[..., 1:] = parts
    return wide.view("<i4")[..., 0] >> 8
