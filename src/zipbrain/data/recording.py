"""Recordings opened lazily through MNE, in microvolts, with nothing repaired silently.

Formats are EDF, BDF, FIF, EEGLAB (.set) and BrainVision (.vhdr).

What is refused with a `DataError`: a missing, empty or foreign file, a header without a usable record length or signal,
a file with gaps (EDF+D), amplitudes that can't be microvolts. What is left out and named in `Recording.left_out`:
channels without a defined scale (digital or physical minimum = maximum), channels that are no voltages, channels at
another sampling rate than most. What is repaired and named in `Recording.notes`: a wrong record count (the file's size
decides), repeated channel names (MNE appends -0, -1, ..), whatever else MNE warns about; also flat channels and samples
that are not numbers.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import TWINS, electrode
from zipbrain.data.edf import ANNOTATIONS, MICRO, Header
from zipbrain.data.signal import Processing
from zipbrain.errors import DataError, MissingExtra, OptionError

Array = NDArray[np.float64]

PLAUSIBLE: Final = (0.1, 1e4)  # microvolts: the median deviation of EEG from its median, with a wide margin

UNITS: Final = ("nV", "uV", "mV", "V")
BESIDE: Final = {".vhdr": (".eeg", ".vmrk")}  # what belongs to a file and is watched with it

_SUFFIXES: Final = {
    ".edf": "edf", ".rec": "edf", ".bdf": "bdf", ".fif": "fif", ".fif.gz": "fif", ".set": "set", ".vhdr": "vhdr",
}  # fmt: skip
_MNE_MICRO: Final = {"μV": 1.0, "µV": 1.0, "\x83\xcaV": 1.0, "uV": 1.0, "mV": 1e3}  # MNE takes all others as volts
_VOLTAGES: Final = ("eeg", "eog", "ecg", "emg", "seeg", "ecog", "dbs", "bio")
_PLACES, _SECONDS = 5, 10  # where and for how long amplitudes are looked at


class Recording:
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
    """

    def __init__(
        self, path: Path, raw: Any, scales: Sequence[float], left_out: dict[str, str], notes: list[str]
    ) -> None:
        self.path, self.left_out, self.notes = path, left_out, notes
        self.sfreq, self.n_times = float(raw.info["sfreq"]), int(raw.n_times)
        self.annotations = [
            (float(onset - raw.first_time), float(duration), str(description))
            for onset, duration, description in zip(
                raw.annotations.onset, raw.annotations.duration, raw.annotations.description, strict=True
            )
        ]
        self.ch_names: list[str] = []
        rows: list[int] = []
        for row, (name, kind) in enumerate(zip(raw.ch_names, raw.get_channel_types(), strict=True)):
            if kind in _VOLTAGES:
                self.ch_names.append(str(name))
                rows.append(row)
            else:
                left_out[str(name)] = f"it is no voltage ({kind})"
        self._raw, self._rows, self._scales = raw, np.array(rows, dtype=int), np.array(scales)[rows]

    def __repr__(self) -> str:
        return (
            f"Recording({str(self.path)!r}, {len(self.ch_names)} channels, {self.sfreq:g} Hz, {self.duration:g} s, "
            f"{len(self.annotations)} annotations, {len(self.notes)} notes)"
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
            In microvolts; NaN where the file holds NaN.
        """
        if not 0 <= start <= stop <= self.n_times:
            raise OptionError("start, stop", (start, stop), f"{self.path.name} has the samples 0 to {self.n_times}")
        chosen = np.arange(len(self.ch_names)) if picks is None else np.asarray(picks, dtype=int)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self.ch_names):
            raise OptionError("picks", list(chosen), f"{self.path.name} has {len(self.ch_names)} channels, from 0")
        if not chosen.size or start == stop:
            return np.empty((chosen.size, stop - start))
        x = _call_mne(
            self.path,
            lambda: self._raw.get_data(picks=self._rows[chosen], start=start, stop=stop, verbose="WARNING"),
            self.notes,
        )
        x *= self._scales[chosen, np.newaxis]
        return np.asarray(x, dtype=np.float64)

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


def open_recording(
    path: str | Path, *, format: str | None = None, units: str | None = None, check: bool = True
) -> Recording:
    """Open a recording without loading it.

    Parameters
    ----------
    path : str or Path
        An EDF (also named .rec), BDF, FIF, EEGLAB .set or BrainVision .vhdr file.
    format : {"edf", "bdf", "fif", "set", "vhdr"}, optional
        Told by the file's name if not given; between EDF and BDF the content decides.
    units : {"nV", "uV", "mV", "V"}, optional
        What the file's numbers are, where it is known that its header is wrong.
    check : bool
        Look at ten seconds in five places and refuse amplitudes that can't be microvolts: the median deviation from the
        median, of the median channel, must lie in 0.1 to 10,000 uV. Seconds in which all channels are flat don't count.

    Returns
    -------
    recording : Recording
    """
    path = Path(path)
    if format not in (None, *_SUFFIXES.values()):
        raise OptionError("format", format, f"known are {', '.join(dict.fromkeys(_SUFFIXES.values()))}")
    check_units(units)
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give the path of a recording")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty (0 bytes); copy or download it again")
    kind = format or next((k for end, k in _SUFFIXES.items() if path.name.lower().endswith(end)), None)
    if kind is None:
        known = "pass format='edf', 'bdf', 'fif', 'set' or 'vhdr'"
        todo = "name the .vhdr file beside it" if path.suffix.lower() in BESIDE[".vhdr"] else known
        raise DataError(f"{path}: the format of '{path.suffix}' files is unknown; {todo}")
    recording = _open_edf(path, units) if kind in ("edf", "bdf") else _open_other(path, kind, units)
    if not recording.ch_names or not recording.n_times:
        raise _no_signal(path, recording.left_out)
    recording.notes += [f"channel {name} left out: {why}" for name, why in recording.left_out.items()]
    if check:
        _look(recording)
    return recording


def check_units(units: str | None) -> None:
    """Refuse what is no unit of voltage."""
    if units is not None and units.lower() not in map(str.lower, UNITS):
        raise OptionError("units", units, f"it must be one of {', '.join(UNITS)}")


def _no_signal(path: Path, left_out: dict[str, str]) -> DataError:
    reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    return DataError(f"{path}: holds no signal in volts ({reasons or 'no channels'}); use another file")


def _open_other(path: Path, kind: str, units: str | None) -> Recording:
    mne, notes = _mne(), list[str]()
    readers = {"fif": mne.io.read_raw_fif, "set": mne.io.read_raw_eeglab, "vhdr": mne.io.read_raw_brainvision}
    raw = _call_mne(path, lambda: readers[kind](path, preload=False, verbose="WARNING"), notes)
    # What MNE took the numbers for: BrainVision says it for every channel; EEGLAB says nothing, so it is microvolts.
    declared = raw._orig_units if kind == "vhdr" else dict.fromkeys(raw.ch_names, "uV" if kind == "set" else "V")
    if units is None:
        return Recording(path, raw, [1e6] * len(raw.ch_names), {}, notes)
    real = MICRO[units.lower()]
    scales = [1e6 * real / MICRO.get(declared.get(name, "V").lower(), 1e6) for name in raw.ch_names]
    return Recording(path, raw, scales, {}, notes)


def _open_edf(path: Path, units: str | None) -> Recording:
    mne, header, notes = _mne(), Header.read(path), list[str]()
    left_out = header.unusable(any_unit=units is not None)
    notes += header.notes(left_out)

    used = [signal for signal in header.signals if signal.label not in {*left_out, *ANNOTATIONS}]
    if not used:
        raise _no_signal(path, left_out)

    def load(encoding: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="zipbrain-") as folder:
            link = Path(folder) / f"recording.{header.kind}"  # MNE goes by the name; the file itself stays where it is
            try:
                link.symlink_to(path.resolve())
            except OSError:  # no right to make symbolic links
                link.hardlink_to(path.resolve())
            reader = mne.io.read_raw_edf if header.kind == "edf" else mne.io.read_raw_bdf
            raw = reader(link, exclude=list(left_out), preload=False, encoding=encoding, verbose="WARNING")
            raw.filenames = [path.resolve()]
            return raw

    def load_any() -> Any:
        try:
            return load("utf8")
        except Exception as error:
            if not isinstance(error.__cause__, UnicodeDecodeError):
                raise
            notes.append("annotations are not UTF-8: read as Latin-1")
            return load("latin1")

    raw = _call_mne(path, load_any, notes)
    scales = [1e6 * MICRO[(units or signal.unit).lower()] / _MNE_MICRO.get(signal.unit, 1e6) for signal in used]
    notes += [
        f"channel {signal.label} has no unit: taken as volts" for signal in used if not signal.unit and units is None
    ]
    return Recording(path, raw, scales, left_out, notes)


def _look(recording: Recording) -> None:
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


def _mne() -> Any:
    try:
        import mne
    except ImportError:
        raise MissingExtra("mne", "data", "reading a recording") from None
    return mne


def _call_mne(path: Path, call: Callable[[], Any], notes: list[str]) -> Any:
    """Call MNE, keep its warnings as notes, and turn whatever it raises into a `DataError`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"{path}: MNE can't read it ({words}); check the file") from error
    for warning in caught:
        note = " ".join(str(warning.message).split())
        if note not in notes:
            notes.append(note)
    return result
