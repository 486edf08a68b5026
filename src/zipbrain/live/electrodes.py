"""The state of every electrode of a stream: good, flat, saturated, missing or noisy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from zipbrain.signal.plausibility import APART, PLAUSIBLE
from zipbrain.signal.quality import SATURATED
from zipbrain.signal.recording import Array

State = Literal["good", "flat", "saturated", "missing", "noisy"]

_LOOK_S: Final = 2.0  # newest seconds that are judged


class Electrodes:
    """Watches the last two seconds of every channel.

    Parameters
    ----------
    ch_names : sequence of str
    sfreq : float
        Hz.
    limits : ndarray (C, 2), optional
        The lowest and the highest value that a channel can have, in microvolts.
    """

    def __init__(self, ch_names: Sequence[str], sfreq: float, limits: Array | None = None) -> None:
        self._names, self._limits = tuple(ch_names), None if limits is None else np.asarray(limits, dtype=np.float64)
        self._length = max(4, round(_LOOK_S * sfreq))
        self._kept = np.empty((len(self._names), 0))

    def see(self, samples: Array) -> None:
        """Take the next samples (C, n); NaN where they are missing."""
        joined = samples if samples.shape[1] >= self._length else np.concatenate((self._kept, samples), axis=1)
        self._kept = joined[:, -self._length :].copy()

    def states(self) -> dict[str, State]:
        """The state of every channel by name; all are good before there are samples."""
        x = self._kept
        if x.shape[1] < 2:
            return dict.fromkeys(self._names, "good")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all NaN
            sizes = np.nanmedian(np.abs(x - np.nanmedian(x, axis=1, keepdims=True)), axis=1)
            others = float(np.nanmedian(sizes[sizes > 0])) if (sizes > 0).any() else 0.0
        found: dict[str, State] = {}
        for row, name in enumerate(self._names):
            values = x[row][np.isfinite(x[row])]
            if 2 * values.size < x.shape[1]:
                found[name] = "missing"
            elif self._is_saturated(row, values):
                found[name] = "saturated"
            elif not np.ptp(values):
                found[name] = "flat"
            else:
                found[name] = "noisy" if sizes[row] > max(PLAUSIBLE[1], APART * others) else "good"
        return found

    def _is_saturated(self, row: int, values: Array) -> bool:
        if self._limits is None:
            return False
        low, high = self._limits[row]
        near = 1e-9 * (high - low)
        return bool(np.mean((values <= low + near) | (values >= high - near)) >= SATURATED)
