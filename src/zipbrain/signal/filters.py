"""FIR kernels in numpy: a zero-phase band-pass and notch as MNE designs them, a resampler as scipy does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import OptionError

Array = NDArray[np.float64]
Band = tuple[float | None, float | None]
Slope = tuple[float, float]
Slopes = tuple[list[Slope], list[Slope]]  # falling and rising

_DRIFT: Final = 1e-6  # relative error of up / down that is let pass: a tenth of a second in 24 h, as clocks are off
_LARGEST: Final = 10_000  # up or down
_LONGEST: Final = 1_100_000  # taps of a filter: 0.016 Hz at 5 kHz, 0.1 Hz at 27 kHz
_NOTCH_SLOPE: Final = 0.5  # Hz on either side of a notch, half of MNE's default trans_bandwidth
_PASSING: Final = 0.9  # of the largest gain: a frequency that is let pass
_STOPPED: Final = 1e-6  # of the largest gain: less than a kernel of minimum phase can stop
_FINER: Final = 32  # times as many frequencies as taps: the gain of minimum phase is then within 1e-4
_FINEST: Final = 1 << 24  # frequencies
_HAMMING: Final = 3.3  # length of a Hamming-windowed kernel x width of its transition


@dataclass(frozen=True, eq=False)
class Filter:
    """A FIR filter: output i is the sum of ``taps[k] * x[i + ahead - k]``, zero-phase unless it is causal."""

    taps: Array  # (before + ahead + 1,); of a zero-phase filter an odd number, symmetric
    sfreq: float  # Hz for which it was designed
    notes: tuple[str, ...] = ()  # what was asked for and left out
    is_causal: bool = False  # no output depends on a later sample

    def __post_init__(self) -> None:
        if self.is_causal:
            return
        if self.taps.ndim != 1 or self.taps.size % 2 == 0 or not np.array_equal(self.taps, self.taps[::-1]):
            raise OptionError("taps", f"shape {self.taps.shape}", "a zero-phase filter has an odd, symmetric kernel")

    @property
    def ahead(self) -> int:
        """How many samples after it an output depends on."""
        return 0 if self.is_causal else self.taps.size // 2

    @property
    def before(self) -> int:
        """How many samples before it an output depends on."""
        return self.taps.size - 1 - self.ahead

    @property
    def delay_s(self) -> float:
        """Seconds by which what is let pass is delayed: the median over its frequencies, 0 with zero phase."""
        if not self.is_causal:
            return 0.0
        size = 1 << (4 * self.taps.size).bit_length()
        response = np.fft.rfft(self.taps, size)
        passing = np.abs(response) > _PASSING * np.abs(response).max()
        slopes = np.fft.rfft(self.taps * np.arange(self.taps.size), size)[passing] / response[passing]
        return float(np.median(slopes.real) / self.sfreq)

    def causal(self) -> Filter:
        """The causal filter with the same gain at every frequency that delays least: of minimum phase."""
        return Filter(minimum_phase(self.taps), self.sfreq, self.notes, is_causal=True)

    @classmethod
    def design(cls, sfreq: float, band: Band | None, notch: float | Sequence[float] | None) -> Filter:
        """Design as ``mne.filter.filter_data`` and ``mne.filter.notch_filter`` do by default, in one kernel.

        The combined kernel is the convolution of the two; its result is that of one after the other, also at the edges
        of a signal longer than `reach`. None leaves a side of the band open. A high edge at or above half the rate, and
        a line frequency too close to it, are dropped with a note; harmonics are removed only if they are listed.
        """
        if not 0 < sfreq < np.inf:
            raise OptionError("sfreq", sfreq, "a sampling rate is a number of Hz above 0")
        notes: list[str] = []
        lines = check_edges(band, notch)
        low, high = band or (None, None)
        if high is not None and high >= sfreq / 2:
            notes.append(f"low-pass at {high:g} Hz left out: half the sampling rate is {sfreq / 2:g} Hz")
            high = None
        if low is not None and low >= sfreq / 2:
            raise OptionError("band", band, f"its low edge must lie below half the sampling rate, {sfreq / 2:g} Hz")
        fits = lines + _margin(lines) <= sfreq / 2
        notes += [f"notch at {x:g} Hz left out: half the sampling rate is {sfreq / 2:g} Hz" for x in lines[~fits]]
        passing, stopping = _band_slopes(sfreq, low, high), _notch_slopes(np.unique(lines[fits]))
        length = _kernel_length(sfreq, *passing) + _kernel_length(sfreq, *stopping) - 1
        if length > _LONGEST:
            words = f"at {sfreq:g} Hz it takes a filter of more than {_LONGEST:,} samples"
            away = f"each edge must lie {_HAMMING * sfreq / _LONGEST:.2g} Hz or more from 0 and from half the rate"
            raise OptionError("band" if band else "notch", band or notch, f"{words}: {away}")
        kernel = _convolved(_from_slopes(sfreq, *passing, top=int(high is None)), _from_slopes(sfreq, *stopping, top=1))
        return cls((kernel + kernel[::-1]) / 2, float(sfreq), tuple(notes))


@dataclass(frozen=True, eq=False)
class Resampler:
    """Rational resampling: output j is the sum of ``up * taps[j * down - i * up + half] * x[i]``."""

    up: int
    down: int
    taps: Array  # (2 * half + 1,), the ``window`` of ``scipy.signal.resample_poly``

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
        """Design as ``scipy.signal.resample_poly`` does, for a ratio of two whole numbers up to 10,000."""
        for name, rate in (("sfreq_in", sfreq_in), ("sfreq_out", sfreq_out)):
            if not 0 < rate < np.inf:
                raise OptionError(name, rate, "a sampling rate is a number of Hz above 0")
        exact = Fraction(float(sfreq_out)) / Fraction(float(sfreq_in))
        simpler = (exact.limit_denominator(most) for most in (10, 100, 1000, _LARGEST))
        ratio = next((ratio for ratio in simpler if abs(ratio - exact) <= _DRIFT * exact), None)
        if ratio is None or ratio.numerator > _LARGEST:
            wish = f"its ratio to {float(sfreq_in)!r} Hz is not one of whole numbers up to {_LARGEST}"
            raise OptionError("sfreq_out", sfreq_out, wish)
        largest = max(ratio.numerator, ratio.denominator)
        taps = low_pass(np.kaiser(20 * largest + 1, 5.0), 1 / largest) if largest > 1 else np.ones(1)
        return cls(ratio.numerator, ratio.denominator, taps)

    def n_out(self, n_times: int) -> int:
        """Number of outputs of a signal: n_times * up / down, rounded up."""
        return -(-n_times * self.up // self.down)


def minimum_phase(taps: Array) -> Array:
    """The kernel of minimum phase, as long as `taps` and with the same gain (by the cepstrum of the gain)."""
    size = min(1 << (_FINER * taps.size - 1).bit_length(), max(_FINEST, 1 << (2 * taps.size).bit_length()))
    gain = np.abs(np.fft.rfft(taps, size))
    cepstrum = np.fft.irfft(np.log(np.maximum(gain, _STOPPED * gain.max())), size)
    cepstrum[1 : size // 2] *= 2  # what lies before time 0 is folded behind it
    cepstrum[size // 2 + 1 :] = 0
    return np.asarray(np.fft.irfft(np.exp(np.fft.rfft(cepstrum)), size)[: taps.size], dtype=np.float64)


def low_pass(window: Array, cutoff: float) -> Array:
    """The ideal low-pass kernel, windowed; its gain is 1/2 at `cutoff` times half the sampling rate, 1 at 0 Hz."""
    half = window.size // 2
    kernel = window * np.sinc(cutoff * np.arange(-half, half + 1))
    return np.asarray(kernel / kernel.sum(), dtype=np.float64)


def check_edges(band: Band | None, notch: float | Sequence[float] | None) -> Array:
    """The line frequencies as an array; edges and lines that no sampling rate allows are refused."""
    low, high = band or (None, None)
    if any(edge is not None and not edge > 0 for edge in (low, high)):
        raise OptionError("band", band, "an edge must be above 0 Hz, or None for an open side")
    if low is not None and high is not None and low >= high:
        raise OptionError("band", band, "its low edge must lie below its high edge")
    lines = np.atleast_1d(np.asarray([] if notch is None else notch, dtype=np.float64))
    if not np.all(lines > _margin(lines)):
        raise OptionError("notch", notch, "a line frequency must be above 0.51 Hz")
    return lines


def _margin(lines: Array) -> Array:
    """Hz from a line to where the gain is 1 again; MNE makes a notch 1 / 200 of its frequency wide, plus slopes."""
    return lines / 400 + _NOTCH_SLOPE


def _band_slopes(sfreq: float, low: float | None, high: float | None) -> Slopes:
    """The slopes lie outside the band: a quarter of its edge wide, at least 2 Hz where there is room for them."""
    falling: list[Slope] = []
    rising: list[Slope] = []
    if high is not None:
        falling.append((high, high + min(max(0.25 * high, 2.0), sfreq / 2 - high)))
    if low is not None:
        rising.append((low - min(max(0.25 * low, 2.0), low), low))
    return falling, rising


def _notch_slopes(lines: Array) -> Slopes:
    begins, ends = lines - _margin(lines), lines + _margin(lines)
    if np.any(begins[1:] < ends[:-1]):
        close = int(np.flatnonzero(begins[1:] < ends[:-1])[0])
        raise OptionError("notch", tuple(lines), f"{lines[close]:g} and {lines[close + 1]:g} Hz are too close together")
    falling = [(float(begin), float(begin) + _NOTCH_SLOPE) for begin in begins]
    rising = [(float(end) - _NOTCH_SLOPE, float(end)) for end in ends]
    return falling, rising


def _kernel_length(sfreq: float, falling: list[Slope], rising: list[Slope]) -> int:
    """Taps that the narrowest slope needs, an odd number."""
    narrowest = min((end - begin for begin, end in falling + rising), default=np.inf)
    length = int(np.clip(np.ceil(_HAMMING / narrowest * sfreq), 1, 1e15))
    return length + 1 - length % 2


def _from_slopes(sfreq: float, falling: list[Slope], rising: list[Slope], *, top: int) -> Array:
    """Add a low-pass for every falling slope and subtract one for every rising slope, each as long as it must be.

    A slope is where it begins and ends, in Hz; `top` is the gain at half the sampling rate, 0 or 1.
    """
    parts = []
    for sign, slopes in ((1, falling), (-1, rising)):
        for begin, end in slopes:
            low, high = begin / (sfreq / 2), end / (sfreq / 2)
            length = round(_HAMMING / ((high - low) / 2))
            parts.append(sign * low_pass(np.hamming(length + 1 - length % 2), (low + high) / 2))
    kernel = np.zeros(max([_kernel_length(sfreq, falling, rising), *(part.size for part in parts)]))
    kernel[kernel.size // 2] = top
    for part in parts:
        around = (kernel.size - part.size) // 2
        kernel[around : around + part.size] += part
    return kernel


def _convolved(one: Array, other: Array) -> Array:
    """One kernel after the other; by their spectra, as the direct sum takes minutes for a slow band at a high rate."""
    if min(one.size, other.size) == 1:
        return one * other
    size = one.size + other.size - 1
    length = 1 << (size - 1).bit_length()
    return np.asarray(np.fft.irfft(np.fft.rfft(one, length) * np.fft.rfft(other, length), length)[:size])
