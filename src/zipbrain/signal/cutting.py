"""Cut a recording into windows: derive channels, filter, resample, cut, resample again, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import Derivation
from zipbrain.signal.plausibility import AmplitudeWatch, check_channels, check_rate
from zipbrain.signal.processing import Processing
from zipbrain.signal.quality import Quality
from zipbrain.signal.recording import Array, Recording
from zipbrain.signal.streams import fourier

_BLOCK: Final = 1 << 16  # samples read at once: four minutes at 256 Hz


@dataclass(frozen=True, eq=False)
class Batch:
    """Some windows of a recording, in the order of time.

    Attributes
    ----------
    starts : ndarray of float64, shape (m,)
        Seconds from the first sample.
    x : ndarray of float32, shape (m, C, T)
        Microvolts, not scaled.
    flags : tuple of str
        For every window "" if it is good, else why there is no decision: "NaN", "gap", "flat: F3, C4", "saturated: O1".
        The values of flat and saturated windows are as they are.
    """

    starts: NDArray[np.float64]
    x: NDArray[np.float32]
    flags: tuple[str, ...]


def windows(
    recording: Recording, convention: Convention, *, hop_s: float | None = None, batch: int = 64
) -> Iterator[Batch]:
    """Cut a recording into `Batch`es of windows from its beginning to its end, while it streams by.

    The windows are those that `zipbrain.data.prepare` cuts for training. A window gets a flag instead of a decision

    - "gap" or "NaN" where samples are missing, in the window or as near to it as the filter reaches; also where an
      annotation says that something was cut out (EEGLAB's boundary, BrainVision's New Segment);
    - "flat" where a needed electrode does not change over half of the window or more, before any filter;
    - "saturated" where it is at the limits of what the file can hold for 5 % of the window or more.

    Resampling, what the filter left out and amplitudes that can't be EEG somewhere are added to the recording's notes;
    a recording that begins with such amplitudes is refused, unless it was opened without that check.

    Parameters
    ----------
    recording : EDFRecording or zipbrain.data.Recording
    convention : Convention
    hop_s : float, optional
        Seconds from one window to the next; the convention's if not given.
    batch : int
        Windows per batch.

    """
    if hop_s is not None:
        convention = replace(convention, hop_s=float(hop_s))
    check_hop(convention.hop_s, convention)
    if batch < 1:
        raise OptionError("batch", batch, "it must be at least 1")
    if not convention.montage:
        raise OptionError("convention", convention.corpus, "its montage is empty: it must name the channels")
    derivation = recording.derive(convention.montage)
    quality = Quality.of(recording, derivation)
    watch = None
    if getattr(recording, "amplitudes", None) is not None:
        names = [recording.ch_names[row] for row in derivation.picks]
        watch = AmplitudeWatch(recording.path, names, recording.sfreq)

    def see(start: int, rows: Array) -> None:
        quality.see(start, rows)
        if watch is not None:
            watch.see(start, rows)
            recording.notes += [note for note in watch.notes if note not in recording.notes]

    try:
        cuts = Cuts(recording, derivation, convention, watch=see)
    except OptionError as error:  # of the filter or the resampler, which this recording's rate does not allow
        words = f"its {recording.sfreq:.10g} Hz can't become the model's windows ({error})"
        raise DataError(f"{recording.path}: {words}; resample it") from None
    starts = regular(0.0, recording.duration, convention)
    placed = [(start, first) for start in starts if (first := cuts.first(start)) <= cuts.total - cuts.length]
    if not placed:
        words = f"lasts {recording.duration:g} s, but a window {convention.window_s:g} s"
        raise DataError(f"{recording.path}: {words}; use a longer recording")
    said = (*derivation.notes, *cuts.layout.notes)
    recording.notes += [note for note in said if note not in recording.notes]
    return _batches(cuts, quality, placed, batch)


def check_hop(hop_s: float, convention: Convention) -> float:
    """Refuse what is no time from one window to the next: at least a sample of the model's."""
    if not (1 - 1e-9) / convention.sfreq <= hop_s < np.inf:
        raise OptionError("hop_s", hop_s, f"it is a number of seconds, at least {1 / convention.sfreq:g}")
    return float(hop_s)


def _batches(cuts: Cuts, quality: Quality, placed: Sequence[tuple[float, int]], batch: int) -> Iterator[Batch]:
    flags: list[str] = []

    def flagged() -> Iterator[Array]:
        # The samples a window was made of are at hand while it is the last that was cut.
        for (_, first), cut in zip(placed, cuts.cut([first for _, first in placed]), strict=True):
            flags.append(quality.flag(cut, *cuts.span(first), cuts.reach))
            yield cut

    done = 0
    for x in cuts.finished(flagged(), batch):
        some = slice(done, done + len(x))
        yield Batch(np.array([start for start, _ in placed[some]]), x, tuple(flags[some]))
        done = some.stop


def regular(start: float, stop: float, convention: Convention) -> list[float]:
    """Starts of the windows that fit between two times, `hop_s` apart."""
    return [start + i * convention.hop_s for i in range(fitting(stop - start, convention))]


def fitting(duration: float, convention: Convention) -> int:
    """How many windows, `hop_s` apart, fit into so many seconds."""
    last = duration - convention.window_s + 1e-6
    return int(last / convention.hop_s) + 1 if last >= 0 else 0


class Layout:
    """Where the windows of a convention lie in a signal of some sampling rate, and how the signal becomes them.

    Attributes
    ----------
    processing : Processing
        What happens before the cut.
    length : int
        Samples of a window at the rate of the cut.
    notes : list of str
        What the filter left out, and that the signal is resampled.
    """

    def __init__(self, sfreq: float, convention: Convention, *, is_causal: bool = False) -> None:
        self._sfreq, self._convention = sfreq, convention
        own = convention.filter_windows or convention.cut_sfreq is None
        self._rate = sfreq if own else float(convention.cut_sfreq or 0)
        self.processing = Processing.design(
            sfreq, self._rate, convention.band, convention.notch, convention.resampling, is_causal
        )
        self.length = round(convention.window_s * self._rate)
        self.notes = list(self.processing.notes)
        kernel = self.processing.filter
        if kernel is not None and kernel.is_causal:
            self.notes.append(f"filtered with minimum phase: delayed by some {1000 * kernel.delay_s:.0f} ms")
        if sfreq != convention.sfreq:
            self.notes.append(f"resampled from {sfreq:g} to {convention.sfreq:g} Hz")

    @property
    def reach(self) -> int:
        """Samples of the signal after it that a window may depend on, unless that is all of them."""
        return 0 if self._convention.filter_windows else self.processing.reach

    @property
    def before(self) -> int:
        """Samples of the signal before it that a window may depend on: as many, unless the filter is causal."""
        return 0 if self._convention.filter_windows else self.processing.before

    def first(self, start: float) -> int:
        """The first sample, at the rate of the cut, that is not before a time in seconds."""
        return int(np.ceil(round(start * self._rate, 6)))

    def span(self, first: int) -> tuple[int, int]:
        """The samples of the signal during which a window lasts; its end may lie a sample behind theirs."""
        ratio = self._sfreq / self._rate
        return int(first * ratio), int(np.ceil(round((first + self.length) * ratio, 6)))

    def finished(self, x: Array) -> NDArray[np.float32]:
        """Bring windows (m, C, length) to the model's rate: (m, C, T)."""
        n_times = self._convention.n_times
        if self._convention.window_resampling == "nearest":
            # As torch.nn.functional.interpolate(mode="nearest") chooses them.
            x = x[..., np.arange(n_times) * self.length // n_times]
        elif self.length != n_times:
            x = fourier(x, n_times)
        return x.astype(np.float32)


class Cuts:
    """Cuts windows out of one recording, whose rows become channels as the derivation says.

    `watch` is called as ``watch(start, rows)`` with the samples of the derivation's rows as they are read.
    """

    def __init__(
        self,
        recording: Recording,
        derivation: Derivation,
        convention: Convention,
        watch: Callable[[int, Array], None] | None = None,
    ) -> None:
        check_channels(recording, derivation.picks)
        check_rate(recording.path, recording.sfreq, convention)
        self._recording, self._derivation, self._convention, self._watch = recording, derivation, convention, watch
        self.layout = Layout(recording.sfreq, convention)
        self._processing, self.length, self.first = self.layout.processing, self.layout.length, self.layout.first
        self.total = self._processing.n_out(recording.n_times)  # samples of the recording at the rate of the cut
        # Samples of the recording before and after it that a processed sample may depend on.
        self.reach = recording.n_times if self._processing.needs_whole else self.layout.reach
        self.notes = self._processing.notes  # what the filter left out

    def span(self, first: int) -> tuple[int, int]:
        """The samples of the recording during which a window lasts."""
        start, stop = self.layout.span(first)
        return start, min(stop, self._recording.n_times)

    def cut(self, firsts: Sequence[int], *, wrap: bool = False) -> Iterator[Array]:
        """Yield windows (C, length) at the rate of the cut, from their first samples, which ascend.

        With `wrap` the end of the recording joins its beginning, and first samples may lie anywhere, in any order.
        """
        if self._convention.filter_windows:
            return self._one_by_one(firsts)
        return self._around(firsts) if wrap else self._in_passing(firsts)

    def finished(self, cuts: Iterator[Array], batch: int = 64) -> Iterator[NDArray[np.float32]]:
        """Gather windows and bring them to the model's rate: (m, C, T)."""
        while group := list(islice(cuts, batch)):
            yield self.layout.finished(np.stack(group))

    def _read(self, start: int, stop: int) -> Array:
        rows = self._recording.read(start, stop, list(self._derivation.picks))
        if self._watch is not None:
            self._watch(start, rows)
        return self._derivation.apply(rows)

    def _in_passing(self, firsts: Sequence[int]) -> Iterator[Array]:
        """Windows in the order of time, while the processed signal streams by."""
        if not firsts:
            return
        n_times = self._recording.n_times
        if self._processing.needs_whole:
            blocks = iter([self._processing.whole(self._read(0, n_times))])
        else:
            blocks = self._processing.blocks(self._read, n_times, block=_BLOCK)
        begin, kept = 0, next(blocks)
        for first in firsts:
            while begin + kept.shape[1] < first + self.length:
                old = min(first - begin, kept.shape[1])
                begin, kept = begin + old, np.concatenate((kept[:, old:], next(blocks)), axis=1)
            yield kept[:, first - begin : first - begin + self.length].copy()  # a view would keep the whole block alive

    def _around(self, firsts: Sequence[int]) -> Iterator[Array]:
        """Windows of a recording whose end joins its beginning."""
        whole = self._processing.whole(self._read(0, self._recording.n_times))
        for first in firsts:
            yield whole.take(np.arange(first, first + self.length), axis=1, mode="wrap")

    def _one_by_one(self, firsts: Sequence[int]) -> Iterator[Array]:
        """Windows that are filtered each on its own; one with a NaN in any row, used or not, is NaN."""
        for first in firsts:
            rows = self._recording.read(first, first + self.length, None)
            used = rows[list(self._derivation.picks)]
            if self._watch is not None:
                self._watch(first, used)
            cut = self._processing.whole(self._derivation.apply(used))
            yield cut if np.isfinite(rows).all() else np.full_like(cut, np.nan)
