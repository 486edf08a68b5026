"""Amplitudes and rates that can be EEG: one judgement for recordings, arrays and epochs, channel by channel."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError, OptionError

if TYPE_CHECKING:
    from zipbrain.signal.convention import Convention
    from zipbrain.signal.recording import Recording

PLAUSIBLE: Final = (0.1, 2e3)  # microvolts: the median deviation of EEG from its median, with a wide margin
SCALED: Final = (1e-3, 1e5)  # microvolts: an array within may have been scaled on purpose, volts lie far below
APART: Final = 200  # times more or less than the other channels: another unit is a thousand times off
HELD: Final = 0.4  # share of the model's frequencies that a recording's rate must hold: 100 Hz do for 0 to 100 Hz
CALL_UNITS: Final = "say what they are with units='V', 'mV' or 'uV'"  # advice for numbers in another unit

_PLACES: Final = 5  # of a recording in which amplitudes are looked at
_SECONDS: Final = 10  # that are looked at in each place
_VALUES: Final = 1 << 20  # of all channels that are looked at in each place, whatever the rate
_WINDOWS: Final = 32  # of an array that are looked at
_MOST: Final = 0.75  # of the places in which a channel must be off: an artefact is in fewer
_LEVELS: Final = 16  # values that a channel takes at least, else it shows the steps of a dead electrode's converter
_SAMPLES: Final = 256  # of each place that is judged while a signal goes by: enough for an order of magnitude
_DECIMALS: Final = 9  # of a microvolt: what a filter leaves of a constant channel is less
_NAMED: Final = 8  # channels that a sentence names

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Amplitudes:
    """Typical deviations from the median, in microvolts.

    Attributes
    ----------
    holes : ndarray (C,)
        Share of the samples that are not a number.
    flat : ndarray (C,) of bool
    typical : float
        Of the median channel that is not flat, or of `others` if they are half of these; NaN if there is none.
    others : float
        Of the median channel within `PLAUSIBLE`.
    odd : dict of int to float
        Channels beyond `PLAUSIBLE` and, nearly all the time, `APART` from the others.
    """

    holes: Array
    flat: NDArray[np.bool_]
    typical: float = np.nan
    others: float = np.nan
    odd: dict[int, float] = field(default_factory=dict)

    @property
    def is_plausible(self) -> bool:
        """True if the median channel can be EEG, or there is nothing to judge by."""
        return bool(np.isnan(self.typical) or PLAUSIBLE[0] <= self.typical <= PLAUSIBLE[1])

    def describe_odd(self, names: Sequence[str], rows: Sequence[int]) -> str:
        """``channel F3: a typical deviation of 0.005 uV, where the other channels have 5 uV``"""
        found = ", ".join(names[row] for row in rows[:_NAMED])
        found += f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        low, high = (f"{bound([self.odd[row] for row in rows]):.3g}" for bound in (min, max))
        size = low if low == high else f"{low} to {high}"
        several = "s" * (len(rows) > 1)
        words = f"channel{several} {found}: {'a ' * (not several)}typical deviation{several} of {size} uV"
        return f"{words}, where the other channels have {self.others:.3g} uV"


def measure_amplitudes(places: Iterable[Array], width: int) -> Amplitudes:
    """Judge signals (C, n) in microvolts from several places; `width` samples in which nothing changes don't count."""
    parts, still = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN
        for place in places:
            x = np.where(np.isfinite(place), place, np.nan)
            parts.append(np.abs(x - np.nanmedian(x, axis=1, keepdims=True)))
            still.append(_still(x, width))
        whole = np.concatenate(parts, axis=1)
        holes, flat = np.isnan(whole).mean(axis=1), np.nan_to_num(whole).max(axis=1) == 0
        moving = [part[:, ~quiet] for part, quiet in zip(parts, still, strict=True) if not quiet.all()]
        if not moving:
            return Amplitudes(holes, flat)
        pooled = np.nanmedian(np.concatenate(moving, axis=1), axis=1)
        alive = pooled[~flat & np.isfinite(pooled)]
        if not alive.size:
            return Amplitudes(holes, flat)
        usual = ~flat & (pooled >= PLAUSIBLE[0]) & (pooled <= PLAUSIBLE[1])
        rest = np.flatnonzero(~flat & ~usual)
        far = _far_apart(moving, usual, rest) if usual.any() and rest.size else rest[:0]
        others = float(np.median(pooled[usual])) if usual.any() else np.nan
    typical = others if 2 * usual.sum() >= alive.size else float(np.median(alive))
    return Amplitudes(holes, flat, typical, others, {int(row): float(pooled[row]) for row in far})


def _far_apart(parts: Sequence[Array], usual: NDArray[np.bool_], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of some rows that deviate, in most places, `APART` times more or less than the usual ones."""
    each = np.stack([np.nanmedian(part[rows], axis=1) for part in parts])  # (places, rows)
    others = np.stack([np.nanmedian(np.nanmedian(part[usual], axis=1)) for part in parts])
    lower, upper = np.nanquantile(each / others[:, np.newaxis], (1 - _MOST, _MOST), axis=0)
    levels = np.array([max(np.unique(part[row]).size for part in parts) for row in rows])
    far: NDArray[np.bool_] = (lower >= APART) | ((upper <= 1 / APART) & (levels >= _LEVELS))
    return rows[far]


def look_over(recording: Recording, *, amplitudes: bool) -> None:
    """Refuse a recording without signal, or (with `amplitudes`) whose amplitudes can't be microvolts in a few places.

    What was left out, and which channels are flat, have gaps or are in another unit there, is added to its notes.
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
    found = measure_amplitudes(
        [recording.read(start, start + length) for start in starts], max(int(recording.sfreq), 2)
    )
    names = recording.ch_names
    if not recording.gaps:  # else it is known already
        recording.notes += [
            f"channel {name} is not a number in {share:.0%} of the samples {where}"
            for name, share in zip(names, found.holes, strict=True)
            if share
        ]
    still = np.flatnonzero(found.flat & (found.holes < 1))
    recording.notes += [f"channel {names[row]} is flat {where}" for row in still]
    recording.amplitudes = found
    if not found.is_plausible:
        check_channels(recording, list(found.odd))
        raise wrong_unit(recording.path, found.typical)
    if found.odd:
        recording.notes.append(f"{found.describe_odd(names, list(found.odd))}: the unit seems wrong")


class AmplitudeWatch:
    """Judges amplitudes while a recording or a stream goes by, in places of ten seconds.

    The first place in which a channel moves is refused if its median channel can't be EEG. From then on the last five
    places are judged together: `implausible` says what is wrong with them, and the first time that is noted.

    Attributes
    ----------
    implausible : str
        What is wrong at the moment; "" if nothing is.
    notes : list of str
    """

    def __init__(self, name: str | Path, ch_names: Sequence[str], sfreq: float) -> None:
        self._name, self._ch_names, self._sfreq = name, list(ch_names), sfreq
        self._length = max(1, int(_SECONDS * sfreq))  # samples of a place
        self._step = max(1, self._length // _SAMPLES)
        self._parts, self._begin, self._end = list[Array](), 0, 0  # of a place that is not full
        self._places = deque[Array](maxlen=_PLACES)
        self._fine = deque[bool](maxlen=_PLACES)  # whether all channels of these are plausible
        self._is_judged = False
        self.implausible, self.notes = "", list[str]()

    def see(self, start: int, rows: Array) -> None:
        """Take microvolts (C, n) from sample `start` on; what was seen before counts once."""
        if start > self._end:
            self._parts, self._begin, self._end = [], start, start
        new = rows[:, self._end - start :]
        while new.shape[1]:
            inside = self._end - self._begin
            part = new[:, : self._length - inside]
            self._parts.append(part[:, -inside % self._step :: self._step].copy())
            self._end, new = self._end + part.shape[1], new[:, part.shape[1] :]
            if self._end - self._begin == self._length:
                self._begin = self._end
                self._judge(np.concatenate(self._parts, axis=1).round(_DECIMALS))
                self._parts = []

    def _judge(self, place: Array) -> None:
        width = max(round(self._sfreq / self._step), 2)
        if not self._is_judged:
            first = measure_amplitudes([place], width)
            self._is_judged = bool(np.isfinite(first.typical))
            if not first.is_plausible:
                raise wrong_unit(self._name, first.typical)
        self._places.append(place)
        self._fine.append(_is_fine(place))
        if all(self._fine):  # then the places together are, too
            self.implausible = ""
            return
        found = measure_amplitudes(self._places, width)
        words = "" if found.is_plausible else f"a typical deviation of {found.typical:.3g} uV is no EEG"
        if not words and found.odd and len(self._places) == _PLACES:
            words = f"{found.describe_odd(self._ch_names, list(found.odd))}: the unit seems wrong"
        if words and not self.notes:
            since = (self._begin - self._length * len(self._places)) / self._sfreq
            self.notes.append(f"from {since:g} s to {self._begin / self._sfreq:g} s: {words}")
        self.implausible = words


def _is_fine(place: Array) -> bool:
    """True if all channels (C, n) are plausible and no sample is missing."""
    size = np.median(np.abs(place - np.median(place, axis=1, keepdims=True)), axis=1)
    return bool(np.all((size >= PLAUSIBLE[0]) & (size <= PLAUSIBLE[1])))  # NaN is neither


def wrong_unit(name: str | Path, typical: float) -> DataError:
    """The refusal of amplitudes that can't be microvolts."""
    return DataError(
        f"{name}: a typical deviation of {typical:.3g} uV is no EEG, which has {PLAUSIBLE[0]:g} to "
        f"{PLAUSIBLE[1]:g} uV, so its unit seems wrong; pass units='V', 'mV' or 'uV' (--units) for what its "
        "numbers really are, or check=False (--no-check) to take them as they are"
    )


def check_channels(recording: Recording, rows: Sequence[int]) -> None:
    """Refuse a recording some of whose channels that are needed seem to be in another unit than the others."""
    found: Amplitudes | None = getattr(recording, "amplitudes", None)
    if found is None or not (odd := [row for row in rows if row in found.odd]):
        return
    todo = "correct the unit or the physical range in its header, or pass check=False (--no-check) to take it as it is"
    words = found.describe_odd(recording.ch_names, odd)
    raise DataError(f"{recording.path}: {words}, so the unit seems wrong; {todo}")


def check_rate(name: str | Path, sfreq: float, convention: Convention) -> None:
    """Refuse a recording whose rate holds less than `HELD` of the frequencies that the model reads."""
    low, high = convention.band or (None, None)
    top = min(high or np.inf, convention.sfreq / 2)
    if sfreq / 2 < HELD * top:
        held = f"its {sfreq:g} Hz hold frequencies up to {sfreq / 2:g} Hz"
        wanted = f"less than {100 * HELD:g} % of the {low or 0:g} to {top:g} Hz that the model reads"
        raise DataError(f"{name}: {held}, {wanted}; use a recording of {2 * top:g} Hz or more")


def check_array(
    x: NDArray[Any], ch_names: Sequence[str], width: int, microvolts: float, advice: str = CALL_UNITS
) -> None:
    """Refuse windows (n, C, T) that can't be EEG in units of so many microvolts; warn if they seem to be scaled.

    `width` samples in which nothing changes don't count. `advice` says how the unit is put right.
    """
    if not x.size:
        return
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _WINDOWS)).astype(np.intp))
    _check_finite(x, rows if isinstance(x, np.memmap) else np.arange(len(x)))  # what is on disk is not read twice
    places = [np.round(np.asarray(x[row], dtype=np.float64) * microvolts, _DECIMALS) for row in rows]
    found = measure_amplitudes(places, width)
    if found.odd:
        words = found.describe_odd(ch_names, list(found.odd))
        raise OptionError("x", words, "all channels must be in one unit: convert them, or pass check=False")
    todo = f"{advice}, or pass check=False to take the numbers as they are"
    if not found.is_plausible:
        size, eeg = "a typical deviation of {:{}} uV", f"EEG has {PLAUSIBLE[0]:g} to {PLAUSIBLE[1]:g} uV"
        if not SCALED[0] <= found.typical <= SCALED[1]:
            raise OptionError("x", size.format(found.typical, ".3g"), f"{eeg}: {todo}")
        # One digit: windows of one array are warned of once.
        warnings.warn(f"x: {size.format(found.typical, '.1g')}, but {eeg}: {todo}", stacklevel=3)


def _check_finite(x: NDArray[Any], rows: NDArray[np.intp]) -> None:
    """Refuse an array without one finite window among these rows; warn of some that are not."""
    broken = sum(not np.isfinite(x[row]).all() for row in rows)
    if not broken:
        return
    words = f"NaN or infinity in {broken} of {len(rows)} windows"
    if broken == len(rows):
        raise OptionError("x", words, "none could be used: repair them, or pass check=False")
    warnings.warn(f"x: {words}: leave them out before training", stacklevel=4)


def _still(x: Array, width: int) -> NDArray[np.bool_]:
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
