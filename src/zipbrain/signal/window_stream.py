"""Windows of a stream, as `windows` cuts them from the finished recording, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError, OptionError, ShapeError
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import Layout, check_hop, fitting
from zipbrain.signal.montage import derive
from zipbrain.signal.plausibility import AmplitudeWatch, check_rate
from zipbrain.signal.quality import Quality
from zipbrain.signal.recording import MICROVOLTS, Array, check_units

_NAME: Final = "stream"  # what errors call it
_PORTION_S: Final = 1.0  # of a gap that is taken at once


@dataclass(frozen=True, eq=False)
class StreamWindow:
    """One window of a stream.

    Attributes
    ----------
    start_s : float
        Seconds from the first sample.
    start, stop : int
        The samples of the stream during which it lasts.
    x : ndarray of float32, shape (C, T)
        Microvolts, not scaled.
    flag : str
        "" if it is good, else why there is no decision, as for `Batch`.
    """

    start_s: float
    start: int
    stop: int
    x: NDArray[np.float32]
    flag: str


class WindowStream:
    """Cuts a stream into windows while it comes, in portions of any size.

    Starts, flags and values are those that `windows` gives for the recording of the same samples once it is finished,
    equal to the last bit. Of the signal no more is kept than a window, what the filter needs, and the time between two
    windows.

    Parameters
    ----------
    ch_names : sequence of str
        All channels of the stream.
    sfreq : float
        Sampling rate in Hz.
    convention : Convention
        One that resamples the whole recording by its spectrum is refused.
    hop_s : float, optional
        Seconds from one window to the next; the convention's if not given.
    limits : ndarray (C, 2), optional
        The lowest and the highest value of every channel, in microvolts; what is there is saturated.
    units : {"uV", "mV", "V", "nV"}
        Of the samples.
    check : bool
        Refuse amplitudes that can't be microvolts in the first ten seconds, and watch them afterwards.
    is_causal : bool
        Filter with minimum phase instead of zero phase: the same gain without waiting for the future, but frequencies
        are delayed differently, and the windows are not those of the finished recording.

    Attributes
    ----------
    window_s, hop_s : float
        Seconds of a window, and from one to the next.
    reach_s : float
        Seconds after its end that a window waits for, because the filter and the resampler look there.
    delay_s : float
        Seconds by which a causal filter delays what it lets pass; 0 with zero phase.
    late_s : float
        Seconds that it may wait longer, until a block of the filter is full.
    """

    def __init__(
        self,
        ch_names: Sequence[str],
        sfreq: float,
        convention: Convention,
        *,
        hop_s: float | None = None,
        limits: Array | None = None,
        units: str = "uV",
        check: bool = True,
        is_causal: bool = False,
    ) -> None:
        if hop_s is not None:
            convention = replace(convention, hop_s=float(hop_s))
        check_hop(convention.hop_s, convention)
        check_units(units)
        if not convention.montage:
            raise OptionError("convention", convention.corpus, "its montage is empty: it must name the channels")
        try:
            self._derivation = derive(convention.montage, ch_names)
        except DataError as error:
            raise DataError(f"{_NAME}: {error}; if they have other names there, give these (--rename)") from None
        check_rate(_NAME, sfreq, convention)
        try:
            self._layout = Layout(sfreq, convention, is_causal=is_causal)
        except OptionError as error:
            words = f"its {sfreq:.10g} Hz can't become the model's windows ({error})"
            raise DataError(f"{_NAME}: {words}; take one with another rate") from None
        processing = self._layout.processing
        if is_causal and (convention.filter_windows or processing.filter is None):
            words = "filters each window on its own" if convention.filter_windows else "filters nothing"
            raise OptionError("is_causal", is_causal, f"the convention {words}, so that there is nothing to wait for")
        if processing.needs_whole:
            words = "it resamples a recording by its whole spectrum, which a stream does not have"
            raise OptionError("convention", convention.corpus, f"{words}: predict the finished recording")
        self._convention, self._sfreq, self._rows = convention, float(sfreq), len(ch_names)
        self._microvolts = MICROVOLTS[units.lower()]
        self._quality = Quality(ch_names, self._derivation, limits)
        names = [ch_names[row] for row in self._derivation.picks]
        self._watch = AmplitudeWatch(_NAME, names, sfreq) if check else None
        self._stream = None if convention.filter_windows else processing.stream()
        self._seen, self._is_over, self._is_spliced = 0, False, False
        self.window_s, self.hop_s = float(convention.window_s), convention.hop_s
        self._kept, self._begin = np.empty((0, 0)), 0  # what windows are cut from, and its first sample
        self._given = 0  # windows
        self.reach_s = self._layout.reach / self._sfreq
        self.delay_s = processing.filter.delay_s if processing.filter is not None else 0.0
        self.late_s = 0.0 if self._stream is None else processing.late_s

    @property
    def notes(self) -> list[str]:
        """Channels under other names, what the filter left out, resampling, where amplitudes could first not be EEG."""
        return [*self._derivation.notes, *self._layout.notes] + (self._watch.notes if self._watch is not None else [])

    @property
    def implausible(self) -> str:
        """What is wrong with the amplitudes of the last fifty seconds; "" if nothing is."""
        return self._watch.implausible if self._watch is not None else ""

    @property
    def seen(self) -> int:
        """Samples so far, with those that are missing."""
        return self._seen

    def push(self, rows: Array) -> list[StreamWindow]:
        """Take the next samples (channels, n), and give the windows that they complete."""
        self._check_open()
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or len(rows) != self._rows:
            raise ShapeError("rows", rows.shape, f"the stream has {self._rows} channels: give ({self._rows}, samples)")
        if not rows.shape[1]:
            return []
        rows = rows * self._microvolts
        used = rows[list(self._derivation.picks)]
        if self._is_spliced and self._seen:
            self._quality.splice(self._seen)
        self._is_spliced = False
        self._quality.see(self._seen, used)
        if self._watch is not None:
            self._watch.see(self._seen, used)
        self._seen += rows.shape[1]
        self._keep(rows if self._stream is None else self._stream.push(self._derivation.apply(used)))
        return list(self._ready())

    def skip(self, missing: int) -> list[StreamWindow]:
        """Samples were missed: they count as time, and windows that depend on them get the flag "gap".

        With 0 something of unknown length was cut out here: windows that depend on both sides get it.
        """
        self._check_open()
        if missing < 0:
            raise OptionError("missing", missing, "it is a number of samples")
        if missing:
            self._quality.miss(self._seen, self._seen + missing)
        else:
            self._is_spliced = True
        portion, found = max(1, int(_PORTION_S * self._sfreq)), list[StreamWindow]()
        for start in range(0, missing, portion):
            found += self.push(np.full((self._rows, min(portion, missing - start)), np.nan))
        return found

    def finish(self) -> list[StreamWindow]:
        """The end: give the windows that are left, for which the signal is reflected."""
        self._check_open()
        self._is_over = True
        if self._seen and self._stream is not None:
            self._keep(self._stream.finish())
        return list(self._ready())

    def _check_open(self) -> None:
        if self._is_over:
            raise OptionError("stream", "finished", "it takes no more samples: make a new WindowStream")

    def _keep(self, more: Array) -> None:
        if not more.shape[1]:
            return
        old = min(max(self._layout.first(self._start) - self._begin, 0), self._kept.shape[1])
        kept = self._kept[:, old:] if len(self._kept) else np.empty((len(more), 0))
        self._begin, self._kept = self._begin + old, np.concatenate((kept, more), axis=1)

    @property
    def _start(self) -> float:
        """Seconds at which the next window begins."""
        return self._given * self._convention.hop_s

    def _ready(self) -> Iterator[StreamWindow]:
        """The windows for which all is there."""
        reach = self._layout.reach
        while self._given < fitting(self._seen / self._sfreq, self._convention):
            start_s, first = self._start, self._layout.first(self._start)
            stop = first + self._layout.length
            span = self._layout.span(first)
            if stop > self._begin + self._kept.shape[1] or not (self._is_over or span[1] + reach <= self._seen):
                return
            cut = self._kept[:, first - self._begin : stop - self._begin].copy()
            if self._stream is None:
                cut = self._filtered(cut)
            span = span[0], min(span[1], self._seen)
            flag = self._quality.flag(cut, *span, reach, self._layout.before)
            self._given += 1
            yield StreamWindow(start_s, *span, self._layout.finished(cut[np.newaxis])[0], flag)

    def _filtered(self, rows: Array) -> Array:
        """A window that is filtered on its own; one with a NaN in any row, used or not, is NaN."""
        cut = self._layout.processing.whole(self._derivation.apply(rows[list(self._derivation.picks)]))
        return cut if np.isfinite(rows).all() else np.full_like(cut, np.nan)
