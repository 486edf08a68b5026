"""Cut a recording into windows: derive channels, filter, resample, cut, resample again, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.data.conventions import Convention
from zipbrain.data.montage import Derivation

if TYPE_CHECKING:
    from zipbrain.data.recording import Recording

_TOGETHER = 64  # windows per chunk
_NOT_FINITE = "windows left out: NaN or infinite values"
_PAST_END = "windows left out: past the end of the recording"

Signal = NDArray[np.float64]


@dataclass
class Plan:
    """The windows to cut from one recording.

    Attributes
    ----------
    starts : list of float
        In seconds from the first sample; a window begins at the first sample not before it.
    labels : list of int
        One per window.
    problems : Counter
        What was wrong with the labels, in words, and how often.
    wrap : bool
        Samples before the first and after the last are taken from the other end.
    """

    starts: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    wrap: bool = False

    def add(self, start: float, label: int) -> None:
        """One more window."""
        self.starts.append(float(start))
        self.labels.append(int(label))


def regular(start: float, stop: float, convention: Convention) -> list[float]:
    """Starts of the windows that fit between two times, `hop_s` apart."""
    room = stop - start - convention.window_s + 1e-6
    return [start + i * convention.hop_s for i in range(int(room / convention.hop_s) + 1)] if room >= 0 else []


class Cutter:
    """Cuts the planned windows out of one recording.

    Parameters
    ----------
    recording : Recording
    derivation : Derivation
        How its rows become channels.
    convention : Convention
    plan : Plan
        Its problems are added to.

    Attributes
    ----------
    labels, starts : list
        Of the windows that were yielded so far.
    notes : tuple of str
        What the filter left out.
    """

    def __init__(self, recording: Recording, derivation: Derivation, convention: Convention, plan: Plan) -> None:
        from zipbrain.data.signal import Processing

        self._recording, self._derivation, self._convention, self._plan = recording, derivation, convention, plan
        own = convention.filter_windows or convention.cut_sfreq is None
        self._rate = recording.sfreq if own else float(convention.cut_sfreq or 0)
        self._length = round(convention.window_s * self._rate)
        self._processing = Processing.design(
            recording.sfreq, self._rate, convention.band, convention.notch, convention.resampling
        )
        self.notes = self._processing.notes
        self.labels: list[int] = []
        self.starts: list[float] = []

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the windows, (m, C, T) microvolts each; afterwards `labels` and `starts` say what they are."""
        plan, total = self._plan, self._processing.n_out(self._recording.n_times)
        firsts = [int(np.ceil(round(start * self._rate, 6))) for start in plan.starts]
        inside = [i for i, first in enumerate(firsts) if plan.wrap or 0 <= first <= total - self._length]
        if len(inside) < len(firsts):
            plan.problems[_PAST_END] += len(firsts) - len(inside)
        if not plan.wrap:
            inside.sort(key=firsts.__getitem__)  # a recording is read once, from the front
        wanted = [firsts[i] for i in inside]
        if self._convention.filter_windows:
            cuts = self._one_by_one(wanted)
        elif plan.wrap:
            cuts = self._around(wanted)
        else:
            cuts = self._in_passing(wanted)
        pairs = zip(inside, cuts, strict=True)
        while group := list(islice(pairs, _TOGETHER)):
            windows = self._finish(np.stack([cut for _, cut in group]))
            good = np.array([np.isfinite(window).all() for window in windows])
            if not good.all():
                plan.problems[_NOT_FINITE] += int((~good).sum())
            kept = [i for (i, _), fine in zip(group, good, strict=True) if fine]
            self.labels += [plan.labels[i] for i in kept]
            self.starts += [plan.starts[i] for i in kept]
            if kept:
                yield windows[good]

    def _read(self, start: int, stop: int) -> Signal:
        return self._derivation.apply(self._recording.read(start, stop, list(self._derivation.picks)))

    def _in_passing(self, firsts: Sequence[int]) -> Iterator[Signal]:
        """Windows in the order of time, while the processed signal streams by."""
        if not firsts:
            return
        n_times = self._recording.n_times
        if self._processing.resampling == "fft":
            blocks = iter([self._processing.whole(self._read(0, n_times))])
        else:
            blocks = self._processing.blocks(self._read, n_times)
        begin, kept = 0, next(blocks)
        for first in firsts:
            while begin + kept.shape[1] < first + self._length:
                old = min(first - begin, kept.shape[1])
                begin, kept = begin + old, np.concatenate((kept[:, old:], next(blocks)), axis=1)
            yield kept[:, first - begin : first - begin + self._length]

    def _around(self, firsts: Sequence[int]) -> Iterator[Signal]:
        """Windows of a recording whose end joins its beginning."""
        whole = self._processing.whole(self._read(0, self._recording.n_times))
        for first in firsts:
            yield whole.take(np.arange(first, first + self._length), axis=1, mode="wrap")

    def _one_by_one(self, firsts: Sequence[int]) -> Iterator[Signal]:
        """Windows that are filtered each on its own; one with a NaN in any row, used or not, is NaN."""
        for first in firsts:
            rows = self._recording.read(first, first + self._length, None)
            cut = self._processing.whole(self._derivation.apply(rows[list(self._derivation.picks)]))
            yield cut if np.isfinite(rows).all() else np.full_like(cut, np.nan)

    def _finish(self, cuts: NDArray[Any]) -> NDArray[np.float32]:
        """(m, C, samples at the rate of the cut) -> (m, C, T)"""
        n_times = self._convention.n_times
        if self._convention.window_resampling == "nearest":
            # As torch.nn.functional.interpolate(mode="nearest") chooses them.
            cuts = cuts[..., np.arange(n_times) * self._length // n_times]
        elif self._length != n_times:
            from scipy.signal import resample

            cuts = resample(cuts, n_times, axis=-1)
        return cuts.astype(np.float32)
