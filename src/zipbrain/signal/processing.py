"""Filtering and resampling of a whole array, of a long signal block by block, or of a stream.

The edges of a recording are extended as MNE does by default: the filter sees an odd reflection about the first and the
last sample (``reflect_limited``: zeros beyond a signal shorter than half the kernel), the polyphase resampler an even
one (``reflect``). Before a causal filter the first sample is held. A sample that is not finite makes exactly those
outputs NaN whose kernels touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import OptionError
from zipbrain.signal.filters import Array, Band, Filter, Resampler
from zipbrain.signal.streams import (
    FilteredStream,
    OverlapSave,
    Polyphase,
    ResampledStream,
    Run,
    block_length,
    finite,
    fourier,
    reflect_limited,
)

_MOST_UP: Final = 1000  # times as many samples as there were
_PORTION: Final = 1 << 13  # samples that go through a stream together, so that they fit the cache


@dataclass(frozen=True, eq=False)
class Processing:
    """Filter, then resample; either may be missing.

    Parameters
    ----------
    filter : Filter or None
    resampler : Resampler or None
        None with equal rates, and with Fourier resampling.
    sfreq_in, sfreq_out : float
        Sampling rates in Hz.
    resampling : {"polyphase", "fft"}
        "fft" is ``scipy.signal.resample``, which needs the whole signal at once and treats it as periodic.
    """

    filter: Filter | None
    resampler: Resampler | None
    sfreq_in: float
    sfreq_out: float
    resampling: str = "polyphase"

    def __post_init__(self) -> None:
        if self.resampling not in ("polyphase", "fft"):
            raise OptionError("resampling", self.resampling, "it must be 'polyphase' or 'fft'")
        if self.filter is not None and self.filter.sfreq != self.sfreq_in:
            raise OptionError("filter", f"{self.filter.sfreq:g} Hz", f"the signal has {self.sfreq_in:g} Hz")

    @classmethod
    def design(
        cls,
        sfreq_in: float,
        sfreq_out: float,
        band: Band | None = None,
        notch: float | Sequence[float] | None = None,
        resampling: str = "polyphase",
        is_causal: bool = False,
    ) -> Processing:
        """Design the filter and the resampler that are needed; see `Filter.design` and `Resampler.design`.

        A causal filter has the same gain and minimum phase; see `Filter.causal`.
        """
        if sfreq_out > _MOST_UP * sfreq_in:
            raise OptionError("sfreq_out", sfreq_out, f"it is more than {_MOST_UP} times the {sfreq_in:g} Hz there are")
        kernel = None if band is None and notch is None else Filter.design(sfreq_in, band, notch)
        kernel = kernel.causal() if kernel is not None and is_causal else kernel
        resampler = Resampler.design(sfreq_in, sfreq_out) if resampling == "polyphase" else None
        if resampler is not None and resampler.up == resampler.down:
            resampler = None
        return cls(kernel, resampler, float(sfreq_in), float(sfreq_out), resampling)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and left out."""
        return self.filter.notes if self.filter is not None else ()

    @property
    def reach(self) -> int:
        """Input samples after its time that suffice for any output, unless resampling is "fft"."""
        return (self.filter.ahead if self.filter else 0) + (self.resampler.context if self.resampler else 0)

    @property
    def before(self) -> int:
        """Input samples before its time that suffice for any output: as many, unless the filter is causal."""
        return (self.filter.before if self.filter else 0) + (self.resampler.context if self.resampler else 0)

    @property
    def late_s(self) -> float:
        """Seconds by which what comes out of a stream may lag more than `reach`."""
        block = block_length(self.sfreq_in) if self.filter is not None and self.filter.taps.size > 1 else 0
        tile = 0 if self.resampler is None else Polyphase(self.resampler).longest * self.resampler.down
        return block / self.sfreq_in + (tile / self.resampler.up / self.sfreq_in if self.resampler else 0.0)

    def n_out(self, n_times: int) -> int:
        """Number of samples that `n_times` samples become."""
        if self.resampling == "fft":
            return max(round(n_times * self.sfreq_out / self.sfreq_in), 1) if n_times else 0
        return self.resampler.n_out(n_times) if self.resampler is not None else n_times

    def whole(self, x: NDArray[Any]) -> Array:
        """Process a whole signal (C, n) at once: (C, n_out(n)), up to rounding what a stream gives."""
        if x.ndim != 2 or not x.shape[1]:
            raise OptionError("x", f"shape {x.shape}", "a signal has the shape (channels, samples), with samples")
        y, gaps = finite(np.asarray(x, dtype=np.float64), 0)
        if self.filter is not None and self.filter.is_causal:
            y = OverlapSave(self.filter.taps)(np.pad(y, ((0, 0), (self.filter.before, 0)), mode="edge"))
        elif self.filter is not None:
            # The reflections of a short signal end before a long kernel does: taps beyond them meet zeros.
            middle, reach = self.filter.ahead, min(self.filter.ahead, 2 * x.shape[1])
            convolve = OverlapSave(self.filter.taps[middle - reach : middle + reach + 1])
            y = np.concatenate([convolve(reflect_limited(row, reach)) for row in y[:, np.newaxis]])
        if self.needs_whole:
            y = fourier(y, self.n_out(x.shape[1]))
            y[sorted({row for row, _, _ in gaps})] = np.nan  # every output depends on every input
            return y
        if self.resampler is not None:
            width = self.resampler.context
            y = Polyphase(self.resampler)(np.pad(y, ((0, 0), (width, width)), mode="reflect"), self.n_out(x.shape[1]))
        return self.mark(y if self.filter or self.resampler else y.copy(), gaps, 0)

    @property
    def needs_whole(self) -> bool:
        """True if every output depends on every input."""
        return self.resampling == "fft" and self.sfreq_in != self.sfreq_out

    def blocks(
        self, read: Callable[[int, int], NDArray[Any]], n_times: int, *, block: int = 1 << 17
    ) -> Iterator[Array]:
        """Process a long signal in blocks (C, m) of different lengths; concatenated they equal what a stream gives.

        Every sample is read once and in order by ``read(start, stop)``, which returns (C, stop - start), at most
        `block` samples at a time. Results don't depend on `block`.
        """
        if n_times < 1 or block < 1:
            raise OptionError("n_times, block", (n_times, block), "both must be at least 1")
        return self._blocks(self.stream(), read, n_times, block)

    def stream(self) -> ProcessedStream:
        """Process a signal that comes in portions of any size."""
        if self.needs_whole:
            raise OptionError("resampling", "fft", "it needs the whole signal at once: use whole(), or 'polyphase'")
        return ProcessedStream(self)

    def _blocks(
        self, stream: ProcessedStream, read: Callable[[int, int], NDArray[Any]], n_times: int, block: int
    ) -> Iterator[Array]:
        portion = max(1, int(_PORTION / max(self.sfreq_out / self.sfreq_in, 1)))
        for start in range(0, n_times, block):
            rows = read(start, min(start + block, n_times))
            for first in range(0, rows.shape[1], portion):
                y = stream.push(rows[:, first : first + portion])
                if y.shape[1]:
                    yield y
        yield stream.finish()

    def touched(self, gap: Run) -> tuple[int, int]:
        """First output that depends on a gap, and the one after the last; may lie outside the signal."""
        r = self.resampler
        up, down, half = (r.up, r.down, r.half) if r is not None else (1, 1, 0)
        ahead, before = (self.filter.ahead, self.filter.before) if self.filter is not None else (0, 0)
        _, start, stop = gap
        first = -((half + up * ahead - start * up) // down)  # all at up times the input rate
        return first, ((stop - 1 + before) * up + half) // down + 1

    def mark(self, y: Array, gaps: Sequence[Run], first: int) -> Array:
        """Make the outputs NaN that depend on a gap; `y` starts at output `first`."""
        for gap in gaps:
            begin, end = self.touched(gap)
            y[gap[0], max(begin - first, 0) : max(end - first, 0)] = np.nan
        return y


class ProcessedStream:
    """A signal through a `Processing`, in portions of any size: what comes out is equal to the last bit for all sizes.

    What comes out lags by `Processing.reach` and at most some half a second more.
    """

    def __init__(self, processing: Processing) -> None:
        self._processing, self._gaps = processing, list[Run]()
        self._seen, self._done = 0, 0  # samples in and out
        self._steps: list[FilteredStream | ResampledStream] | None = None

    def push(self, x: NDArray[Any]) -> Array:
        """Take the next samples (C, n), and give what they complete (C, m)."""
        # A copy: a source may fill one array again and again.
        y, gaps = finite(np.array(x, dtype=np.float64), self._seen)
        if self._steps is None:
            self._steps = self._begin(len(y))
        self._gaps += gaps
        self._seen += y.shape[1]
        if self._gain is not None:
            y = y * self._gain
        for step in self._steps:
            y = step.push(y)
        return self._mark(y)

    def finish(self) -> Array:
        """Take the end of the signal, and give what is left (C, m)."""
        y: Array | None = None
        for step in self._steps or ():
            before = None if y is None else step.push(y)
            y = step.finish()
            y = y if before is None else np.concatenate((before, y), axis=1)
        return np.empty((self._rows, 0)) if y is None else self._mark(y)

    def _begin(self, rows: int) -> list[FilteredStream | ResampledStream]:
        self._rows = rows
        kernel, resampler = self._processing.filter, self._processing.resampler
        self._gain = float(kernel.taps[0]) if kernel is not None and kernel.taps.size == 1 else None
        steps: list[FilteredStream | ResampledStream] = []
        if kernel is not None and self._gain is None:
            steps.append(FilteredStream(kernel, rows))
        if resampler is not None:
            steps.append(ResampledStream(resampler, rows))
        return steps

    def _mark(self, y: Array) -> Array:
        y = self._processing.mark(y, self._gaps, self._done)
        self._done += y.shape[1]
        self._gaps = [gap for gap in self._gaps if self._processing.touched(gap)[1] > self._done]
        return y
