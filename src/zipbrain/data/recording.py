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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.signal.edf_header import ANNOTATIONS, MICRO, Annotation, Header
from zipbrain.signal.recording import (
    Array,
    BaseRecording,
    check_file,
    check_units,
    look_over,
    no_signal,
)

BESIDE: Final = {".vhdr": (".eeg", ".vmrk")}  # what belongs to a file and is watched with it

_SUFFIXES: Final = {
    ".edf": "edf", ".rec": "edf", ".bdf": "bdf", ".fif": "fif", ".fif.gz": "fif", ".set": "set", ".vhdr": "vhdr",
}  # fmt: skip
_MNE_MICRO: Final = {"μV": 1.0, "µV": 1.0, "\x83\xcaV": 1.0, "uV": 1.0, "mV": 1e3}  # MNE takes all others as volts
_VOLTAGES: Final = ("eeg", "eog", "ecg", "emg", "seeg", "ecog", "dbs", "bio")


class Recording(BaseRecording):
    """A recording on disk, read through MNE; nothing but its header is in memory.

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
    notes : list of str
        What was repaired, left out or looks odd; reading may add to it.
    gaps : list
        Empty: files with gaps are refused.
    """

    def __init__(
        self, path: Path, raw: Any, scales: Sequence[float], left_out: dict[str, str], notes: list[str]
    ) -> None:
        self.path, self.left_out, self.notes, self.gaps = path, left_out, notes, []
        self.sfreq, self.n_times = float(raw.info["sfreq"]), int(raw.n_times)
        self._annotations = [
            (float(onset - raw.first_time), float(duration), str(description))
            for onset, duration, description in zip(
                raw.annotations.onset, raw.annotations.duration, raw.annotations.description, strict=True
            )
        ]
        self.ch_names = []
        rows: list[int] = []
        for row, (name, kind) in enumerate(zip(raw.ch_names, raw.get_channel_types(), strict=True)):
            if kind in _VOLTAGES:
                self.ch_names.append(str(name))
                rows.append(row)
            else:
                left_out[str(name)] = f"it is no voltage ({kind})"
        self._raw, self._rows, self._scales = raw, np.array(rows, dtype=int), np.array(scales)[rows]

    @property
    def annotations(self) -> list[Annotation]:
        """Onset and duration in seconds from the first sample, and description."""
        return self._annotations

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        x = _call_mne(
            self.path,
            lambda: self._raw.get_data(picks=self._rows[rows], start=start, stop=stop, verbose="WARNING"),
            self.notes,
        )
        x *= self._scales[rows, np.newaxis]
        return np.asarray(x, dtype=np.float64)


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
    check_file(path)
    kind = format or next((k for end, k in _SUFFIXES.items() if path.name.lower().endswith(end)), None)
    if kind is None:
        known = "pass format='edf', 'bdf', 'fif', 'set' or 'vhdr'"
        todo = "name the .vhdr file beside it" if path.suffix.lower() in BESIDE[".vhdr"] else known
        raise DataError(f"{path}: the format of '{path.suffix}' files is unknown; {todo}")
    recording = _open_edf(path, units) if kind in ("edf", "bdf") else _open_other(path, kind, units)
    look_over(recording, amplitudes=check)
    return recording


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
    mne, header = _mne(), Header.read(path)
    header.refuse_gaps()
    left_out = header.unusable(any_unit=units is not None)
    notes = header.notes(left_out)
    if header.discontinuous:
        notes.append("marked as discontinuous, but without gaps")

    used = [signal for signal in header.signals if signal.label not in {*left_out, *ANNOTATIONS}]
    if not used:
        raise no_signal(path, left_out)

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
