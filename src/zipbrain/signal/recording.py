"""Recordings read in microvolts, block by block: what all of them have in common, whatever reads the file.

EDF and BDF files are read by `zipbrain.signal.edf`, more formats by `zipbrain.data.open_recording`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import SYNONYMS, electrode
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Channel
from zipbrain.signal.montage import Derivation, derive
from zipbrain.signal.plausibility import Amplitudes

Array = NDArray[np.float64]

Annotation = tuple[float, float, str]  # onset and duration in seconds, description

FILE_KINDS: Final = {
    ".edf": "edf",
    ".rec": "edf",
    ".bdf": "bdf",
    ".fif": "fif",
    ".fif.gz": "fif",
    ".set": "set",
    ".vhdr": "vhdr",
}  # what a file is, by the end of its name
COMPANIONS: Final = {".vhdr": (".eeg", ".vmrk"), ".set": (".fdt",)}  # endings of files that hold a part of a recording
PACKED: Final = (b"\x1f\x8b", b"PK\x03\x04")  # how .gz and .zip files begin
UNITS: Final = ("nV", "uV", "mV", "V")
RATES: Final = (1.0, 1e5)  # Hz: what is sampled slower or faster is no EEG, and would cost time without end
# Microvolts in a unit, in lower case; a signal without unit is in volts, as MNE takes it.
MICROVOLTS: Final = {"nv": 1e-3, "uv": 1.0, "µv": 1.0, "μv": 1.0, "\x83\xcav": 1.0, "mv": 1e3, "v": 1e6, "": 1e6}


class Recording(ABC):
    """A recording on disk; nothing but its header is in memory.

    Attributes
    ----------
    path : Path
    ch_names : list of str
        Channels that can be read in microvolts, named and ordered as in the file.
    left_out : dict of str to str
        The file's other channels, and why they can't be read.
    sfreq, n_times
        Sampling rate in Hz, and samples per channel.
    annotations : list of (onset, duration, description)
        In seconds from the first sample.
    notes : list of str
        What was repaired, left out or looks odd; reading may add to it.
    gaps : list of (int, int)
        Samples that were not recorded, from the first to the one after the last; they are NaN.
    amplitudes : Amplitudes or None
        What they were judged by; None if they were taken as they are.
    """

    path: Path
    ch_names: list[str]
    left_out: dict[str, str]
    sfreq: float
    n_times: int
    notes: list[str]
    gaps: list[tuple[int, int]]
    amplitudes: Amplitudes | None = None

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
        """Rows of electrodes by name, in any spelling (``"EEG FP1-REF"`` is FP1, T3 is T7 where only that is there)."""
        found = self.derive(names)
        return [found.picks[place] for place in found.plus if place is not None]

    def derive(self, montage: Sequence[Channel]) -> Derivation:
        """Which rows make the channels of a montage; a missing one is refused with the reason, where that is known."""
        try:
            return derive(montage, self.ch_names)
        except DataError as error:
            pairs = [(entry,) if isinstance(entry, str) else entry for entry in montage]
            wanted = {electrode(name) for pair in pairs for name in (*pair, "-".join(pair))}
            wanted |= {SYNONYMS[name] for name in wanted if name in SYNONYMS}
            reasons = [f"{name}: {why}" for name, why in self.left_out.items() if electrode(name) in wanted]
            why = f"left out were {'; '.join(reasons)}" if reasons else ""
            advice = why or "if they have other names there, give these (--rename)"
            raise DataError(f"{self.path}: {error}; {advice}") from None

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


def file_kind(path: Path) -> str | None:
    """What a file is by the end of its name, or None."""
    return next((kind for end, kind in FILE_KINDS.items() if path.name.lower().endswith(end)), None)


def check_units(units: str | None) -> None:
    """Refuse what is no unit of voltage."""
    if units is not None and units.lower() not in map(str.lower, UNITS):
        raise OptionError("units", units, f"it must be one of {', '.join(UNITS)}")


def check_rate(path: Path, sfreq: float, why: str = "") -> None:
    """Refuse a sampling rate that no EEG has; `why` says where it comes from."""
    if not RATES[0] <= sfreq <= RATES[1]:
        words = f"is sampled at {sfreq:g} Hz{why}, but EEG at {RATES[0]:g} to {RATES[1]:,.0f} Hz"
        raise DataError(f"{path}: {words}; correct its header")


def check_file(path: Path) -> None:
    """Refuse what is no file, and an empty one."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:  # not there, no permission, a name that is too long or holds a zero
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        words = "no such file" if missing else f"can't be read ({getattr(error, 'strerror', None) or error})"
        raise DataError(f"{path}: {words}; give the path of a recording") from None
    if not S_ISREG(state.st_mode):
        words = "is a folder" if S_ISDIR(state.st_mode) else "is no file"
        raise DataError(f"{path}: {words}; give the path of a recording")
    if not state.st_size:
        raise DataError(f"{path}: is empty (0 bytes); copy or download it again")
