"""A look at a few seconds of a recording: flat channels, gaps, and amplitudes that can't be microvolts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError

if TYPE_CHECKING:
    from zipbrain.signal.recording import Recording

PLAUSIBLE: Final = (0.1, 1e4)  # microvolts: the median deviation of EEG from its median, with a wide margin

_PLACES: Final = 5  # where amplitudes are looked at
_SECONDS: Final = 10  # that are looked at in each place
_VALUES: Final = 1 << 20  # of all channels that are looked at in each place, whatever the rate


def look_over(recording: Recording, *, amplitudes: bool) -> None:
    """Refuse a recording without signal, or (with `amplitudes`) whose amplitudes can't be microvolts in a few places.

    What was left out, and which channels are flat or have gaps there, is added to its notes.
    """
    if not recording.ch_names or not recording.n_times:
        raise no_signal(recording.path, recording.left_out)
    recording.notes += [f"channel {name} left out: {why}" for name, why in recording.left_out.items()]
    if not amplitudes:
        return
    most = min(recording.n_times, max(_VALUES // len(recording.ch_names), 1))
    length = min(max(int(_SECONDS * recording.sfreq), 1), most)
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


def _still(x: NDArray[np.float64], width: int) -> NDArray[np.bool_]:
    """Which samples of (C, n) lie in a stretch of `width` in which no channel changes."""
    still = np.zeros(x.shape[1], dtype=bool)
    for start in range(0, x.shape[1], width):
        part = x[:, start : start + width]
        still[start : start + width] = not np.nan_to_num(np.diff(part, axis=1)).any()
    return still


def no_signal(path: Path, left_out: dict[str, str]) -> DataError:
    """The refusal of a file without a single channel in volts."""
    reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    return DataError(f"{path}: holds no signal in volts ({reasons or 'no channels'}); use another file")
