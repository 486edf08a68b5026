"""What is wrong with the electrodes of a window, from samples that are seen as they are read."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import electrode
from zipbrain.signal.montage import Derivation
from zipbrain.signal.recording import Array, Recording

Which = NDArray[np.bool_]

FLAT: Final = 0.5  # of a window without any change in one stretch: the channel is flat
SATURATED: Final = 0.05  # of a window at the limits of what the file can hold: the channel is saturated

_DECIMALS: Final = 6  # of a microvolt: a difference of two electrodes is off by rounding
# How EEGLAB, BrainVision and MNE mark samples before which something was cut out.
_SPLICE: Final = re.compile(r"\s*(boundary|(bad|edge) boundary|new segment)\b", re.IGNORECASE)


class Quality:
    """Watches the electrodes that a derivation needs.

    Parameters
    ----------
    ch_names : sequence of str
        All channels, as recorded.
    derivation : Derivation
    limits : ndarray (C, 2), optional
        The lowest and the highest value that each channel can have, in microvolts.
    gaps : sequence of (int, int)
        Samples that were not recorded, from the first to the one after the last.
    splices : sequence of int
        Samples before which something was cut out.

    """

    def __init__(
        self,
        ch_names: Sequence[str],
        derivation: Derivation,
        limits: Array | None = None,
        gaps: Sequence[tuple[int, int]] = (),
        splices: Sequence[int] = (),
    ) -> None:
        picks = list(derivation.picks)
        self._names = [electrode(ch_names[row]) for row in picks]
        self._limits = None if limits is None else np.asarray(limits)[picks, :, np.newaxis]  # (C, 2, 1)
        self._gaps = np.array(gaps, dtype=np.int64).reshape(-1, 2)
        self._splices = np.array(splices, dtype=np.int64)
        pairs = zip(derivation.plus, derivation.minus, strict=True)
        self._pairs = [(plus, minus) for plus, minus in pairs if plus is not None and minus is not None]
        self._kept = deque[Array]()  # samples from `_begin` on
        self._begin, self._end, self._oldest, self._reach = 0, 0, 0, 0

    @classmethod
    def of(cls, recording: Recording, derivation: Derivation) -> Quality:
        """With what a file says about limits, gaps and splices."""
        marks = [round(onset * recording.sfreq) for onset, _, text in recording.annotations if _SPLICE.match(text)]
        splices = [place for place in marks if 0 < place < recording.n_times]
        limits = getattr(recording, "limits", None)
        return cls(recording.ch_names, derivation, limits, recording.gaps, splices)

    def see(self, start: int, rows: Array) -> None:
        """Keep new samples, and the old ones from the last window on."""
        if start != self._end:
            self._kept.clear()
            self._begin = start
        self._kept.append(rows)
        self._end = start + rows.shape[1]
        while self._begin + self._kept[0].shape[1] <= min(self._oldest, self._end - 1):
            self._begin += self._kept.popleft().shape[1]

    def miss(self, start: int, stop: int) -> None:
        """Samples that were not recorded, from `start` to before `stop`."""
        near = self._gaps[:, 1] > self._oldest - self._reach
        self._gaps = np.concatenate((self._gaps[near], [(start, stop)]))

    def splice(self, place: int) -> None:
        """Something was cut out before the sample `place`."""
        near = self._splices > self._oldest - self._reach
        self._splices = np.append(self._splices[near], place)

    def flag(self, cut: Array, start: int, stop: int, reach: int, before: int | None = None) -> str:
        """Judge a window that was made of the samples from `start` to `stop` and of those within `reach` of it.

        `before` is how far it reaches back, if that is not as far as `reach`.
        """
        before = reach if before is None else before
        self._oldest, self._reach = start, before
        if ((self._splices > start - before) & (self._splices < stop + reach)).any():
            return "gap"
        if not np.isfinite(cut).all():
            near = (self._gaps[:, 0] < stop + reach) & (self._gaps[:, 1] > start - before)
            return "gap" if near.any() else "NaN"
        rows = self._between(start, stop)
        saturated = self._saturated(rows)
        flat = _still(rows) & ~saturated
        still = [name for name, is_flat in zip(self._names, flat, strict=True) if is_flat]
        limited = [name for name, is_limited in zip(self._names, saturated, strict=True) if is_limited]
        words = (("flat", still + self._alike(rows, flat | saturated)), ("saturated", limited))
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)

    def _between(self, start: int, stop: int) -> Array:
        """The kept samples of a window."""
        parts, first = [], self._begin
        for part in self._kept:
            if first < stop and first + part.shape[1] > start:
                parts.append(part[:, max(start - first, 0) : stop - first])
            first += part.shape[1]
        return np.concatenate(parts, axis=1)

    def _alike(self, rows: Array, known: Which) -> list[str]:
        """Differences that are flat though neither electrode is: both were recorded from one place."""
        pairs = [(plus, minus) for plus, minus in self._pairs if not (known[plus] or known[minus])]
        if not pairs:
            return []
        plus, minus = np.array(pairs).T
        still = _still(np.round(rows[plus] - rows[minus], _DECIMALS))
        return [f"{self._names[plus[i]]}-{self._names[minus[i]]}" for i in np.flatnonzero(still)]

    def _saturated(self, rows: Array) -> Which:
        if self._limits is None:
            return np.zeros(len(rows), dtype=bool)
        low, high = self._limits[:, 0], self._limits[:, 1]
        near = 1e-9 * (high - low)  # less than a step of 24 bits
        at_limit = (np.abs(rows - low) <= near) | (np.abs(rows - high) <= near)
        return np.asarray(at_limit.mean(axis=1) >= SATURATED)


def _still(rows: Array) -> Which:
    """Which rows of (C, n) don't change over half of their length, in one stretch."""
    longest = np.empty(len(rows), dtype=np.intp)
    for i, row in enumerate(rows):
        changes = np.flatnonzero(row[1:] != row[:-1])
        longest[i] = np.diff(changes, prepend=-1, append=row.size - 1).max()
    return np.asarray(longest >= FLAT * rows.shape[1])
