"""Recordings of any format, opened lazily: EDF and BDF by `zipbrain.signal.edf`, FIF, EEGLAB and BrainVision by MNE."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain._lazy import import_extra
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.edf import open_edf
from zipbrain.signal.plausibility import look_over
from zipbrain.signal.recording import (
    FILE_KINDS,
    MICROVOLTS,
    Array,
    Recording,
    check_file,
    check_rate,
    check_units,
    file_kind,
)

_VOLTAGES: Final = ("eeg", "eog", "ecg", "emg", "seeg", "ecog", "dbs", "bio")


class MNERecording(Recording):
    """A recording that MNE reads. Whatever MNE warns about is a note; there are no gaps."""

    def __init__(self, path: Path, raw: Any, scales: Sequence[float], notes: list[str]) -> None:
        self.path, self.notes, self.gaps = path, notes, []
        self.sfreq, self.n_times = float(raw.info["sfreq"]), int(raw.n_times)
        found = raw.annotations
        self._annotations = [
            (float(onset - raw.first_time), float(duration), str(description))
            for onset, duration, description in zip(found.onset, found.duration, found.description, strict=True)
        ]
        channels = list(zip(map(str, raw.ch_names), raw.get_channel_types(), strict=True))
        rows = [row for row, (_, kind) in enumerate(channels) if kind in _VOLTAGES]
        self.ch_names = [channels[row][0] for row in rows]
        self.left_out = {name: f"it is no voltage ({kind})" for name, kind in channels if kind not in _VOLTAGES}
        self._raw, self._rows, self._scales = raw, np.array(rows, dtype=int), np.array(scales)[rows]

    @property
    def annotations(self) -> list[tuple[float, float, str]]:
        """Onset and duration in seconds from the first sample, and description."""
        return self._annotations

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        def load() -> Any:
            return self._raw.get_data(picks=self._rows[rows], start=start, stop=stop, verbose="WARNING")

        x = _call_mne(self.path, load, self.notes)
        x *= self._scales[rows, np.newaxis]
        return np.asarray(x, dtype=np.float64)


def open_recording(
    path: str | Path, *, format: str | None = None, units: str | None = None, check: bool = True
) -> Recording:
    """Open a recording without loading it, as a `Recording`; one with gaps (EDF+D) is refused.

    Parameters
    ----------
    path : str or Path
        An EDF (also named .rec), BDF, FIF, EEGLAB .set or BrainVision .vhdr file.
    format : {"edf", "bdf", "fif", "set", "vhdr"}, optional
        Known by the file's name if not given; between EDF and BDF the content decides.
    units, check
        As for `zipbrain.edge.open_edf`.

    """
    path = Path(path)
    if format not in (None, *FILE_KINDS.values()):
        raise OptionError("format", format, f"known are {', '.join(dict.fromkeys(FILE_KINDS.values()))}")
    check_units(units)
    check_file(path)
    kind = format or file_kind(path)
    if kind is None:
        known = "pass format='edf', 'bdf', 'fif', 'set' or 'vhdr'"
        beside = dict.fromkeys((".eeg", ".vmrk"), "name the .vhdr file beside it")
        todo = (beside | dict.fromkeys((".gz", ".zip"), "unpack it")).get(path.suffix.lower(), known)
        raise DataError(f"{path}: the format of '{path.suffix}' files is unknown; {todo}")
    if kind not in ("edf", "bdf"):
        recording = _open_with_mne(path, kind, units)
        check_rate(path, recording.sfreq)
        look_over(recording, amplitudes=check)
        return recording
    found = open_edf(path, units=units, check=check)
    if found.gaps:
        start, stop = (place / found.sfreq for place in found.gaps[0])
        gaps = f"{len(found.gaps)} gaps, the first of {stop - start:g} s after {start:g} s"
        raise DataError(f"{path}: is discontinuous (EDF+D) with {gaps}; split it there into continuous files")
    return found


def _open_with_mne(path: Path, kind: str, units: str | None) -> MNERecording:
    mne = import_extra("mne", "mne", "train", "reading a recording that is neither EDF nor BDF")
    notes: list[str] = []
    readers = {"fif": mne.io.read_raw_fif, "set": mne.io.read_raw_eeglab, "vhdr": mne.io.read_raw_brainvision}
    raw = _call_mne(path, lambda: readers[kind](path, preload=False, verbose="WARNING"), notes)
    scales = [1e6] * len(raw.ch_names)
    if units is not None:
        # What MNE took the numbers for: BrainVision says it for every channel; EEGLAB says nothing, so it is uV.
        declared = raw._orig_units if kind == "vhdr" else dict.fromkeys(raw.ch_names, "uV" if kind == "set" else "V")
        taken = [MICROVOLTS.get(declared.get(name, "V").lower(), 1e6) for name in raw.ch_names]
        scales = [1e6 * MICROVOLTS[units.lower()] / micro for micro in taken]
    return MNERecording(path, raw, scales, notes)


def _call_mne(path: Path, call: Callable[[], Any], notes: list[str]) -> Any:
    """Call MNE, keep its warnings as notes, and turn whatever it raises into a `DataError`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"{path}: MNE can't read it ({words}); check the file") from error
    found = (" ".join(str(warning.message).split()) for warning in caught)
    notes += [note for note in dict.fromkeys(found) if note not in notes]
    return result
