"""Recordings read in microvolts, block by block: what all have in common, and EDF and BDF files through numpy alone.

`zipbrain.data.open_recording` reads more formats, through MNE. What is refused, left out or repaired in an EDF file is
the same there and here, but for gaps (EDF+D): here the records are placed in time and the gaps between them are NaN.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import TWINS, electrode
from zipbrain.edge.edf import ANNOTATIONS, MICRO, Annotation, Header, Signal, opened
from zipbrain.edge.signal import Processing
from zipbrain.errors import DataError, OptionError

Array = NDArray[np.float64]

PLAUSIBLE: Final = (0.1, 1e4)  # microvolts: the median deviation of EEG from its median, with a wide margin
UNITS: Final = ("nV", "uV", "mV", "V")

_PLACES, _SECONDS = 5, 10  # where and for how long amplitudes are looked at
_TRIGGERS: Final = ("status", "trigger")  # what MNE takes for a trigger channel
_CHUNK: Final = 1 << 22  # bytes read at once
_LONGEST: Final = 366  # days


class BaseRecording(ABC):
    """A recording on disk; nothing but its header is in memory.

    Attributes
    ----------
    path : Path
    ch_names : list of str
        Channels that can be read in microvolts, named and ordered as in the file.
    left_out : dict of str to str
        The file's other channels, and why they can't be read.
    sfreq : float
        Sampling rate in Hz.
    n_times : int
        Samples per channel.
    annotations : list of (onset, duration, description)
        In seconds from the first sample.
    notes : list of str
        What was repaired, left out or looks odd; reading may add to it.
    gaps : list of (int, int)
        Samples that were not recorded, from the first to the one after the last; they are NaN.
    """

    path: Path
    ch_names: list[str]
    left_out: dict[str, str]
    sfreq: float
    n_times: int
    notes: list[str]
    gaps: list[tuple[int, int]]

    @property
    @abstractmethod
    def annotations(self) -> list[Annotation]:
        """Onset and duration in seconds from the first sample, and description."""

    @abstractmethod
    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        """Read samples, at least one of at least one channel."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.path)!r}, {len(self.ch_names)} channels, {self.sfreq:g} Hz, "
            f"{self.duration:g} s, {len(self.notes)} notes)"
        )

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.n_times / self.sfreq

    def find(self, names: Sequence[str]) -> list[int]:
        """Rows of electrodes by name, in any spelling (``"EEG FP1-REF"`` is FP1, T3 is T7 where only that is there).

        Parameters
        ----------
        names : sequence of str

        Returns
        -------
        picks : list of int
        """
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.ch_names):
            rows.setdefault(electrode(name), []).append(row)
        picks, missing = [], []
        for name in names:
            bare = electrode(name)
            found = rows.get(bare) or rows.get(TWINS.get(bare, ""), [])
            if len(found) > 1:
                several = ", ".join(self.ch_names[row] for row in found)
                raise DataError(
                    f"{self.path}: {name} could be any of {several}: give their indices instead of the name"
                )
            picks += found
            if not found:
                reason = next((why for other, why in self.left_out.items() if electrode(other) == bare), "")
                missing.append(f"{name} ({reason})" if reason else name)
        if missing:
            raise DataError(
                f"{self.path}: channels {', '.join(missing)} can't be read: it has {', '.join(self.ch_names)}; choose "
                "among these or skip the file"
            )
        return picks

    def read(self, start: int, stop: int, picks: Sequence[int] | None = None) -> Array:
        """Read samples.

        Parameters
        ----------
        start, stop : int
            First sample, and the one after the last.
        picks : sequence of int, optional
            Rows of `ch_names`, in the order wanted; all of them by default.

        Returns
        -------
        x : ndarray of float64, shape (C, stop - start)
            In microvolts; NaN where the file holds NaN or nothing.
        """
        if not 0 <= start <= stop <= self.n_times:
            raise OptionError("start, stop", (start, stop), f"{self.path.name} has the samples 0 to {self.n_times}")
        chosen = np.arange(len(self.ch_names)) if picks is None else np.asarray(picks, dtype=np.intp)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self.ch_names):
            raise OptionError("picks", list(chosen), f"{self.path.name} has {len(self.ch_names)} channels, from 0")
        if not chosen.size or start == stop:
            return np.empty((chosen.size, stop - start))
        return self._read(start, stop, chosen)

    def process(
        self,
        processing: Processing,
        picks: Sequence[int] | None = None,
        montage: NDArray[Any] | None = None,
        *,
        block: int = 1 << 17,
    ) -> Iterator[Array]:
        """Filter and resample block by block; see `Processing.blocks`.

        Parameters
        ----------
        processing : Processing
            Designed for this recording's rate.
        picks : sequence of int, optional
            Rows of `ch_names`.
        montage : ndarray, shape (rows, C), optional
            What each row of the result is made of, such as 1 and -1 for a bipolar one. Channels with the weight 0 don't
            count, not even if they hold NaN.
        block : int
            Samples per read.

        Yields
        ------
        y : ndarray of float64, shape (rows or C, m)
        """
        if processing.sfreq_in != self.sfreq:
            raise OptionError("processing", f"{processing.sfreq_in:g} Hz", f"{self.path.name} has {self.sfreq:g} Hz")
        count = len(self.ch_names) if picks is None else len(picks)
        if montage is not None and (montage.ndim != 2 or montage.shape[1] != count):
            raise OptionError("montage", f"shape {montage.shape}", f"it needs one column for each of {count} channels")

        def read(start: int, stop: int) -> Array:
            x = self.read(start, stop, picks)
            if montage is None:
                return x
            y = np.zeros((montage.shape[0], x.shape[1]))
            for row, weights in zip(y, montage, strict=True):
                for channel in np.flatnonzero(weights):
                    row += weights[channel] * x[channel]
            return y

        return processing.blocks(read, self.n_times, block=block)


class EDFRecording(BaseRecording):
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
        self.path, self.left_out, self.notes = header.path, left_out, header.notes(left_out)
        self.ch_names = _numbered([signal.label for signal in signals])
        self._header, self._samples = header, signals[0].samples if signals else 0
        self.sfreq = self._samples / header.record_seconds
        before = np.cumsum([0, *(signal.samples for signal in header.signals)])
        self._offsets = before[list(used)]  # of a channel in a record, in samples
        self._record_samples = int(before[-1])
        scales = [_scale(signal, units) for signal in signals]
        self._gains, self._shifts, self._micro = np.array(scales).reshape(len(scales), 3).T
        digital = np.array([signal.digital for signal in signals]).reshape(len(scales), 2)
        self.limits = np.sort(self._in_microvolts(digital, np.arange(len(scales))), axis=1)
        self.notes += [
            f"channel {signal.label} has no unit: taken as volts"
            for signal in signals
            if not signal.unit and units is None
        ]
        self._runs = self._place()
        self.n_times = self._runs[-1][1]
        self.gaps = [(one[1], two[0]) for one, two in zip(self._runs, self._runs[1:], strict=False) if one[1] < two[0]]
        if header.discontinuous:
            missing = sum(stop - start for start, stop in self.gaps) / self.sfreq if self.gaps else 0
            self.notes.append(
                f"is discontinuous: {len(self.gaps)} gaps, {missing:g} s in all, are not a number"
                if self.gaps
                else "marked as discontinuous, but without gaps"
            )
        if header.start is None:
            self.notes.append("its header has no valid date and time")

    def _place(self) -> list[tuple[int, int, int]]:
        """Put the records in time: first sample, last sample + 1 and first record of each unbroken run."""
        header = self._header
        stamps = header.stamps()
        runs = []
        breaks = header.gaps(stamps)
        firsts = [0, *(record for record, _ in breaks)]
        for record, length in breaks:
            if length < 0:
                raise DataError(
                    f"{self.path}: record {record} begins {-length:g} s before the one before it ends; repair its time "
                    "stamps"
                )
        if stamps[-1] - stamps[0] > _LONGEST * 86_400:
            days = (stamps[-1] - stamps[0]) / 86_400
            raise DataError(f"{self.path}: its time stamps span {days:.0f} days; repair them")
        stop = 0
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
        with opened(self.path) as file:
            for first, last, record in self._runs:
                begin, end = max(start, first), min(stop, last)
                if begin < end:
                    base = first - record * self._samples  # where record 0 would begin
                    self._fill(file, x[:, begin - start : end - start], begin - base, rows)
        return x

    def _fill(self, file: IO[bytes], x: Array, first: int, rows: NDArray[np.intp]) -> None:
        """Read the samples from `first` on, as if there were no gaps."""
        header, samples = self._header, self._samples
        together = max(_CHUNK // header.record_bytes, 1)
        done = 0
        while done < x.shape[1]:
            record, skip = divmod(first + done, samples)
            count = min(together, -(-(skip + x.shape[1] - done) // samples))
            file.seek(header.size + record * header.record_bytes)
            raw = file.read(count * header.record_bytes)
            if len(raw) < count * header.record_bytes:
                raise DataError(f"{self.path}: became shorter while it was read; open it again")
            digital = self._digital(raw, rows)[:, skip : skip + x.shape[1] - done]
            x[:, done : done + digital.shape[1]] = self._in_microvolts(digital, rows)
            done += digital.shape[1]

    def _digital(self, raw: bytes, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Bytes of whole records -> (C, n) whole numbers."""
        size = self._header.sample_bytes
        records = np.frombuffer(raw, np.uint8).reshape(-1, self._record_samples, size)
        parts = np.stack([records[:, begin : begin + self._samples] for begin in self._offsets[rows]])
        parts = parts.reshape(rows.size, -1, size)
        if size == 2:
            return parts.view("<i2")[..., 0]
        wide = np.zeros((*parts.shape[:2], 4), np.uint8)
        wide[..., 1:] = parts
        return wide.view("<i4")[..., 0] >> 8  # with its sign


def open_edf(path: str | Path, *, units: str | None = None, check: bool = True) -> EDFRecording:
    """Open an EDF, EDF+ or BDF file without loading it.

    Parameters
    ----------
    path : str or Path
        Of any name; the content decides between EDF and BDF.
    units : {"nV", "uV", "mV", "V"}, optional
        What the file's numbers are, where it is known that its header is wrong.
    check : bool
        Look at ten seconds in five places and refuse amplitudes that can't be microvolts: the median deviation from the
        median, of the median channel, must lie in 0.1 to 10,000 uV. Seconds in which all channels are flat don't count.

    Returns
    -------
    recording : EDFRecording
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


def check_units(units: str | None) -> None:
    """Refuse what is no unit of voltage."""
    if units is not None and units.lower() not in map(str.lower, UNITS):
        raise OptionError("units", units, f"it must be one of {', '.join(UNITS)}")


def check_file(path: Path) -> None:
    """Refuse what is no file, and an empty one."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give the path of a recording")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty (0 bytes); copy or download it again")


def no_signal(path: Path, left_out: dict[str, str]) -> DataError:
    """The refusal of a file without a single channel in volts."""
    reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    return DataError(f"{path}: holds no signal in volts ({reasons or 'no channels'}); use another file")


def look_over(recording: BaseRecording, *, amplitudes: bool) -> None:
    """Refuse a recording without signal, note what was left out, and look at amplitudes in a few places."""
    if not recording.ch_names or not recording.n_times:
        raise no_signal(recording.path, recording.left_out)
    recording.notes += [f"channel {name} left out: {why}" for name, why in recording.left_out.items()]
    if amplitudes:
        _look(recording)


def _look(recording: BaseRecording) -> None:
    """Note flat channels and gaps in a few places, and refuse amplitudes that can't be microvolts."""
    length = min(max(int(_SECONDS * recording.sfreq), 1), recording.n_times)
    starts = sorted({int(start) for start in np.linspace(0, recording.n_times - length, _PLACES)})
    where = f"where it was looked at ({len(starts)} x {length / recording.sfreq:.0f} s)"
    parts, still = [], []
    for start in starts:
        x = recording.read(start, start + length)
        x[~np.isfinite(x)] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all NaN
            parts.append(np.abs(x - np.nanmedian(x, axis=1, keepdims=True)))
        still.append(_still(x, max(int(recording.sfreq), 2)))
    deviations = np.concatenate(parts, axis=1)
    holes = np.isnan(deviations).mean(axis=1)
    names = recording.ch_names
    if not recording.gaps:  # else it is known already
        recording.notes += [
            f"channel {name} is not a number in {share:.0%} of the samples {where}"
            for name, share in zip(names, holes, strict=True)
            if share
        ]
    flat = np.nan_to_num(deviations).max(axis=1) == 0
    recording.notes += [f"channel {names[row]} is flat {where}" for row in np.flatnonzero(flat & (holes < 1))]
    alive = deviations[~flat][:, ~np.concatenate(still)]
    alive = alive[np.isfinite(alive).any(axis=1)]
    if not alive.size:
        return
    typical = float(np.median(np.nanmedian(alive, axis=1)))
    if not PLAUSIBLE[0] <= typical <= PLAUSIBLE[1]:
        raise DataError(
            f"{recording.path}: a typical deviation of {typical:.3g} uV is no EEG, which has {PLAUSIBLE[0]:g} to "
            f"{PLAUSIBLE[1]:g} uV, so its unit seems wrong; pass units='V', 'mV' or 'uV' (--units) for what its "
            "numbers really are, or check=False (--no-check) to take them as they are"
        )


def _still(x: Array, width: int) -> NDArray[np.bool_]:
    """Which samples of (C, n) lie in a stretch of `width` in which no channel changes."""
    still = np.zeros(x.shape[1], dtype=bool)
    for start in range(0, x.shape[1], width):
        part = x[:, start : start + width]
        still[start : start + width] = not np.nan_to_num(np.diff(part, axis=1)).any()
    return still


def _scale(signal: Signal, units: str | None) -> tuple[float, float, float]:
    """Gain and shift from whole numbers to the file's unit, and microvolts in that."""
    gain = (signal.physical[1] - signal.physical[0]) / (signal.digital[1] - signal.digital[0])
    return gain, signal.physical[0] - signal.digital[0] * gain, MICRO[(units or signal.unit).lower()]


def _numbered(labels: list[str]) -> list[str]:
    """Number labels that are there several times, as MNE does: C3-0, C3-1."""
    counts, seen = Counter(labels), Counter[str]()
    names = []
    for label in labels:
        names.append(f"{label}-{seen[label]}" if counts[label] > 1 else label)
        seen[label] += 1
    return names
