"""Filtering and resampling with explicit, stored coefficients, on a whole array or block by block.

The edges of a recording are extended as MNE does by default: the filter sees an odd reflection about the first and the
last sample (``reflect_limited``: zeros beyond a signal shorter than half the kernel), the polyphase resampler an even
one (``reflect``). A sample that is not finite makes exactly those outputs NaN whose kernels touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.data.streams import Array, Run, filtered, finite, reflect_limited, resampled
from zipbrain.errors import MissingExtra, OptionError

_DRIFT = 1e-6  # relative error of up / down that is let pass: a tenth of a second in 24 h, less than clocks are off
_LARGEST = 10_000  # up or down
_NOTCH_SLOPE = 0.5  # Hz on either side of a notch, half of MNE's default trans_bandwidth


@dataclass(frozen=True, eq=False)
class Filter:
    """A zero-phase FIR filter: output i is the sum of ``taps[k] * x[i + k - reach]``.

    Parameters
    ----------
    taps : ndarray of float64, shape (2 * reach + 1,)
        Symmetric kernel.
    sfreq : float
        Sampling rate it was designed for, in Hz.
    notes : tuple of str
        What was asked for and left out.
    """

    taps: Array
    sfreq: float
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.taps.ndim != 1 or self.taps.size % 2 == 0 or not np.array_equal(self.taps, self.taps[::-1]):
            raise OptionError("taps", f"shape {self.taps.shape}", "a zero-phase filter has an odd, symmetric kernel")

    @property
    def reach(self) -> int:
        """How many samples before and after it an output depends on."""
        return self.taps.size // 2

    @classmethod
    def design(
        cls,
        sfreq: float,
        band: tuple[float | None, float | None] | None,
        notch: float | Sequence[float] | None,
    ) -> Filter:
        """Design as ``mne.filter.filter_data`` and ``mne.filter.notch_filter`` do by default, in one kernel.

        The combined kernel is the convolution of the two; its result is that of one after the other, also at the edges
        of a signal longer than `reach`.

        Parameters
        ----------
        sfreq : float
            Sampling rate in Hz.
        band : (low, high) or None
            Pass band in Hz; None leaves a side open. A high edge at or above half the rate is dropped with a note.
        notch : float or sequence of float or None
            Line frequencies to remove, harmonics only if they are listed. One too close to half the rate is dropped
            with a note.
        """
        if not sfreq > 0:
            raise OptionError("sfreq", sfreq, "a sampling rate is a number of Hz above 0")
        notes: list[str] = []
        kernel = np.ones(1)
        low, high = _band(band)
        if high is not None and high >= sfreq / 2:
            notes.append(f"low-pass at {high:g} Hz left out: half the sampling rate is {sfreq / 2:g} Hz")
            high = None
        if low is not None and low >= sfreq / 2:
            raise OptionError("band", band, f"its low edge must lie below half the sampling rate, {sfreq / 2:g} Hz")
        if low is not None or high is not None:
            kernel = _fir(sfreq, low, high)
        lines = np.atleast_1d(np.asarray([] if notch is None else notch, dtype=np.float64))
        margin = lines / 400 + _NOTCH_SLOPE  # MNE's default: a notch is 1 / 200 of its frequency wide
        if np.any(lines - margin <= 0):
            raise OptionError("notch", notch, "a line frequency must be above 0.51 Hz")
        fits = lines + margin <= sfreq / 2
        notes += [f"notch at {x:g} Hz left out: half the sampling rate is {sfreq / 2:g} Hz" for x in lines[~fits]]
        if fits.any():
            lines, margin = lines[fits], margin[fits]
            notches = _fir(
                sfreq, lines + margin, lines - margin, l_trans_bandwidth=_NOTCH_SLOPE, h_trans_bandwidth=_NOTCH_SLOPE
            )
            kernel = np.convolve(kernel, notches)
        return cls((kernel + kernel[::-1]) / 2, float(sfreq), tuple(notes))


@dataclass(frozen=True, eq=False)
class Resampler:
    """Rational resampling: output j is the sum of ``up * taps[j * down - i * up + half] * x[i]``.

    Parameters
    ----------
    up, down : int
        Output rate over input rate, without common factor.
    taps : ndarray of float64, shape (2 * half + 1,)
        Low-pass kernel at ``up`` times the input rate, the ``window`` of ``scipy.signal.resample_poly``.
    """

    up: int
    down: int
    taps: Array

    @property
    def half(self) -> int:
        """Half the kernel's length, in samples at ``up`` times the input rate."""
        return self.taps.size // 2

    @property
    def context(self) -> int:
        """Input samples before and after its time that suffice for any output, a multiple of `down`."""
        return self.down * (self.half // self.up // self.down + 1)

    @classmethod
    def design(cls, sfreq_in: float, sfreq_out: float) -> Resampler:
        """Design as ``scipy.signal.resample_poly`` does by default.

        Parameters
        ----------
        sfreq_in, sfreq_out : float
            Sampling rates in Hz, whose ratio must be that of two whole numbers up to 10,000 (to 1e-6).
        """
        for name, rate in (("sfreq_in", sfreq_in), ("sfreq_out", sfreq_out)):
            if not 0 < rate < np.inf:
                raise OptionError(name, rate, "a sampling rate is a number of Hz above 0")
        exact = Fraction(float(sfreq_out)) / Fraction(float(sfreq_in))
        ratio = next((r for d in (10, 100, 1000, _LARGEST) if _close(r := exact.limit_denominator(d), exact)), None)
        if ratio is None or ratio.numerator > _LARGEST:
            wish = f"its ratio to {float(sfreq_in)!r} Hz is not one of whole numbers up to {_LARGEST}"
            raise OptionError("sfreq_out", sfreq_out, wish)
        from scipy.signal import firwin

        largest = max(ratio.numerator, ratio.denominator)
        taps = firwin(20 * largest + 1, 1 / largest, window=("kaiser", 5.0)) if largest > 1 else np.ones(1)
        return cls(ratio.numerator, ratio.denominator, np.asarray(taps, dtype=np.float64))

    def n_out(self, n_times: int) -> int:
        """Number of outputs of a signal: n_times * up / down, rounded up."""
        return -(-n_times * self.up // self.down)


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
        band: tuple[float | None, float | None] | None = None,
        notch: float | Sequence[float] | None = None,
        resampling: str = "polyphase",
    ) -> Processing:
        """Design the filter and the resampler that are needed; see `Filter.design` and `Resampler.design`."""
        kernel = None if band is None and notch is None else Filter.design(sfreq_in, band, notch)
        resampler = Resampler.design(sfreq_in, sfreq_out) if resampling == "polyphase" else None
        if resampler is not None and resampler.up == resampler.down:
            resampler = None
        return cls(kernel, resampler, float(sfreq_in), float(sfreq_out), resampling)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and left out."""
        return self.filter.notes if self.filter is not None else ()

    def n_out(self, n_times: int) -> int:
        """Number of samples that `n_times` samples become."""
        if self.resampling == "fft":
            return max(round(n_times * self.sfreq_out / self.sfreq_in), 1) if n_times else 0
        return self.resampler.n_out(n_times) if self.resampler is not None else n_times

    def whole(self, x: NDArray[Any]) -> Array:
        """Process a whole signal at once: the plain twin of `blocks`.

        Parameters
        ----------
        x : ndarray, shape (C, n)

        Returns
        -------
        y : ndarray of float64, shape (C, n_out(n))
        """
        if x.ndim != 2 or not x.shape[1]:
            raise OptionError("x", f"shape {x.shape}", "a signal has the shape (channels, samples), with samples")
        from scipy.signal import oaconvolve, resample, resample_poly

        y, gaps = finite(np.asarray(x, dtype=np.float64), 0)
        if self.filter is not None:
            y = oaconvolve(reflect_limited(y, self.filter.reach), self.filter.taps[np.newaxis], mode="valid", axes=1)
        if self.resampling == "fft" and self.sfreq_in != self.sfreq_out:
            y = np.asarray(resample(y, self.n_out(x.shape[1]), axis=1), dtype=np.float64)
            y[sorted({row for row, _, _ in gaps})] = np.nan  # every output depends on every input
            return y
        if self.resampler is not None:
            r = self.resampler
            padding = "reflect" if y.shape[1] > 1 else "edge"  # scipy crashes when it is to reflect a single sample
            y = resample_poly(y, r.up, r.down, axis=1, window=r.taps, padtype=padding)
        return self._mark(y if self.filter or self.resampler else y.copy(), gaps, 0)

    def blocks(
        self, read: Callable[[int, int], NDArray[Any]], n_times: int, *, block: int = 1 << 17
    ) -> Iterator[Array]:
        """Process a long signal in blocks; concatenated they equal `whole`.

        Every sample is read once and in order; what the next block still needs is kept.

        Parameters
        ----------
        read : callable
            ``read(start, stop)`` returns samples as an array of shape (C, stop - start).
        n_times : int
            Samples in the signal.
        block : int
            Samples per read; raised to some three times the overlap if it is less. A signal that fits into one is
            read whole.

        Yields
        ------
        y : ndarray of float64, shape (C, m)
            Consecutive parts, whose lengths differ.
        """
        if self.resampling == "fft" and self.sfreq_in != self.sfreq_out:
            raise OptionError("resampling", "fft", "it needs the whole signal at once: use whole(), or 'polyphase'")
        if n_times < 1 or block < 1:
            raise OptionError("n_times, block", (n_times, block), "both must be at least 1")
        context = (self.filter.reach if self.filter else 0) + (self.resampler.context if self.resampler else 0)
        return self._blocks(read, n_times, max(block, 3 * context + 1))

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

    def to_dict(self) -> dict[str, Any]:
        """Everything needed to repeat the processing elsewhere, as plain numbers, lists and strings.

        Coefficients survive JSON bit for bit. The edge rules are named for the reader; they can't be chosen.
        """
        kernel, r = self.filter, self.resampler
        return {
            "sfreq_in": self.sfreq_in,
            "sfreq_out": self.sfreq_out,
            "resampling": self.resampling,
            "filter": kernel and {"taps": kernel.taps.tolist(), "notes": list(kernel.notes), "edges": "odd reflection"},
            "resampler": r and {"up": r.up, "down": r.down, "taps": r.taps.tolist(), "edges": "even reflection"},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Processing:
        """Rebuild what `to_dict` stored."""
        rate, kernel, r = float(stored["sfreq_in"]), stored["filter"], stored["resampler"]
        return cls(
            Filter(np.array(kernel["taps"], dtype=np.float64), rate, tuple(kernel["notes"])) if kernel else None,
            Resampler(int(r["up"]), int(r["down"]), np.array(r["taps"], dtype=np.float64)) if r else None,
            rate,
            float(stored["sfreq_out"]),
            str(stored["resampling"]),
        )


def _band(band: tuple[float | None, float | None] | None) -> tuple[float | None, float | None]:
    low, high = band if band is not None else (None, None)
    for edge in (low, high):
        if edge is not None and not edge > 0:
            raise OptionError("band", band, "an edge must be above 0 Hz, or None for an open side")
    if low is not None and high is not None and low >= high:
        raise OptionError("band", band, "its low edge must lie below its high edge")
    return low, high


def _fir(sfreq: float, low: float | Array | None, high: float | Array | None, **options: Any) -> Array:
    try:
        from mne.filter import create_filter
    except ImportError:
        raise MissingExtra("mne", "data", "designing a filter") from None
    options = {"phase": "zero", "fir_design": "firwin", "verbose": "WARNING"} | options
    try:
        taps = create_filter(None, sfreq, low, high, **options)
    except ValueError as error:
        raise OptionError("band or notch", (low, high), f"MNE can't design it at {sfreq:g} Hz: {error}") from None
    return np.asarray(taps, dtype=np.float64)


def _close(ratio: Fraction, exact: Fraction) -> bool:
    return abs(ratio - exact) <= _DRIFT * exact
