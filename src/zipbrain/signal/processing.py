"""Filtering and resampling of a whole array, or block by block.

The edges of a recording are extended as MNE does by default: the filter sees an odd reflection about the first and the
last sample (``reflect_limited``: zeros beyond a signal shorter than half the kernel), the polyphase resampler an even
one (``reflect``). A sample that is not finite makes exactly those outputs NaN whose kernels touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import OptionError
from zipbrain.signal.filters import Array, Band, Filter, Resampler
from zipbrain.signal.streams import OverlapSave, Polyphase, Run, filtered, finite, fourier, reflect_limited, resampled

_MOST_UP: Final = 1000  # times as many samples as there were


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
    ) -> Processing:
        """Design the filter and the resampler that are needed; see `Filter.design` and `Resampler.design`."""
        if sfreq_out > _MOST_UP * sfreq_in:
            raise OptionError("sfreq_out", sfreq_out, f"it is more than {_MOST_UP} times the {sfreq_in:g} Hz there are")
        kernel = None if band is None and notch is None else Filter.design(sfreq_in, band, notch)
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
        """Input samples before and after its time that suffice for any output, unless resampling is "fft"."""
        return (self.filter.reach if self.filter else 0) + (self.resampler.context if self.resampler else 0)

    def n_out(self, n_times: int) -> int:
        """Number of samples that `n_times` samples become."""
        if self.resampling == "fft":
            return max(round(n_times * self.sfreq_out / self.sfreq_in), 1) if n_times else 0
        return self.resampler.n_out(n_times) if self.resampler is not None else n_times

    def whole(self, x: NDArray[Any]) -> Array:
        """Process a whole signal (C, n) at once: (C, n_out(n)), the plain equivalent of `blocks`."""
        if x.ndim != 2 or not x.shape[1]:
            raise OptionError("x", f"shape {x.shape}", "a signal has the shape (channels, samples), with samples")
        y, gaps = finite(np.asarray(x, dtype=np.float64), 0)
        if self.filter is not None:
            # The reflections of a short signal end before a long kernel does: taps beyond them meet zeros.
            reach = min(self.filter.reach, 2 * x.shape[1])
            convolve = OverlapSave(self.filter.taps[self.filter.reach - reach : self.filter.reach + reach + 1])
            y = np.concatenate([convolve(reflect_limited(row, reach)) for row in y[:, np.newaxis]])
        if self.resampling == "fft" and self.sfreq_in != self.sfreq_out:
            y = fourier(y, self.n_out(x.shape[1]))
            y[sorted({row for row, _, _ in gaps})] = np.nan  # every output depends on every input
            return y
        if self.resampler is not None:
            width = self.resampler.context
            y = Polyphase(self.resampler)(np.pad(y, ((0, 0), (width, width)), mode="reflect"), self.n_out(x.shape[1]))
        return self._mark(y if self.filter or self.resampler else y.copy(), gaps, 0)

    def blocks(
        self, read: Callable[[int, int], NDArray[Any]], n_times: int, *, block: int = 1 << 17
    ) -> Iterator[Array]:
        """Process a long signal in blocks (C, m) of different lengths; concatenated they equal `whole`.

        Every sample is read once and in order by ``read(start, stop)``, which returns (C, stop - start); what the next
        block still needs is kept. `block` is the number of samples per read, or that they become where these are more;
        it is raised to some three times the overlap if it is less, and a signal that fits into one block is read whole.
        """
        if self.resampling == "fft" and self.sfreq_in != self.sfreq_out:
            raise OptionError("resampling", "fft", "it needs the whole signal at once: use whole(), or 'polyphase'")
        if n_times < 1 or block < 1:
            raise OptionError("n_times, block", (n_times, block), "both must be at least 1")
        fitting = int(block / max(self.sfreq_out / self.sfreq_in, 1))
        return self._blocks(read, n_times, max(fitting, 3 * self.reach + 1))

    def _blocks(self, read: Callable[[int, int], NDArray[Any]], n_times: int, block: int) -> Iterator[Array]:
        if n_times <= block:
            yield self.whole(read(0, n_times))
            return
        gaps: list[Run] = []

        def chunks() -> Iterator[Array]:
            for start in range(0, n_times, block):
                chunk, found = finite(np.asarray(read(start, min(start + block, n_times)), dtype=np.float64), start)
                gaps.extend(found)
                yield chunk

        stream = chunks()
        if self.filter is not None:
            stream = filtered(stream, self.filter)
        if self.resampler is not None:
            stream = resampled(stream, self.resampler, n_times)
        done = 0
        for y in stream:
            yield self._mark(y, gaps, done)
            done += y.shape[1]
            gaps[:] = [gap for gap in gaps if self._touched(gap)[1] > done]

    def _touched(self, gap: Run) -> tuple[int, int]:
        """First output that depends on a gap, and the one after the last; may lie outside the signal."""
        r = self.resampler
        up, down, half = (r.up, r.down, r.half) if r is not None else (1, 1, 0)
        reach = half + up * (self.filter.reach if self.filter is not None else 0)  # at up times the input rate
        _, start, stop = gap
        return -((reach - start * up) // down), ((stop - 1) * up + reach) // down + 1

    def _mark(self, y: Array, gaps: Sequence[Run], first: int) -> Array:
        """Make the outputs NaN that depend on a gap; `y` starts at output `first`."""
        for gap in gaps:
            begin, end = self._touched(gap)
            y[gap[0], max(begin - first, 0) : max(end - first, 0)] = np.nan
        return y
