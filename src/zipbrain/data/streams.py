"""Filtering and resampling of a stream of blocks, with what the next block needs kept from the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from zipbrain.data.signal import Filter, Resampler

Array = NDArray[np.float64]
Run = tuple[int, int, int]  # row, first sample, last sample + 1


def finite(x: Array, first: int) -> tuple[Array, list[Run]]:
    """Put zeros where x is not finite, and say where that was, counted from sample `first`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(x.sum()):  # one pass in the usual case; a sum that overflows is looked at below
            return x, []
    bad = ~np.isfinite(x)
    steps = np.diff(bad, axis=1, prepend=False, append=False)  # (C, n + 1), true where a gap starts or ends
    rows, places = np.nonzero(steps)
    runs = [
        (int(row), first + int(start), first + int(stop))
        for row, start, stop in zip(rows[::2], places[::2], places[1::2], strict=True)
    ]
    return np.where(bad, 0.0, x), runs


class OverlapSave:
    """Convolution with one kernel, (C, n + 2 * reach) -> (C, n); faster than oaconvolve, as its FFTs fit the cache."""

    def __init__(self, taps: Array) -> None:
        from scipy.fft import rfft

        self.size = max(1 << 13, 1 << (3 * taps.size - 1).bit_length())  # of an FFT
        self.skip = taps.size - 1
        self.spectrum = rfft(taps, self.size)

    def __call__(self, x: Array) -> Array:
        from scipy.fft import irfft, rfft

        y = np.empty((x.shape[0], x.shape[1] - self.skip))
        for start in range(0, y.shape[1], self.size - self.skip):
            stop = min(start + self.size - self.skip, y.shape[1])
            for row, out in zip(x, y, strict=True):
                product = rfft(row[start : stop + self.skip], self.size) * self.spectrum
                out[start:stop] = irfft(product, self.size)[self.skip : self.skip + stop - start]
        return y


def reflect_limited(x: Array, width: int) -> Array:
    """Extend both ends by an odd reflection, and by zeros where the signal is too short for it."""
    inner = min(width, x.shape[1] - 1)
    reflected = np.pad(x, ((0, 0), (inner, inner)), mode="reflect", reflect_type="odd")
    return np.pad(reflected, ((0, 0), (width - inner, width - inner)))


def _extended(chunks: Iterator[Array], width: int, *, odd: bool) -> Iterator[Array]:
    """Put reflections before the first chunk, which must be longer than `width`, and after the last."""

    def edge(mirrored: Array, end: Array) -> Array:
        return 2 * end - mirrored if odd else mirrored.copy()

    last = next(chunks)
    yield edge(last[:, width:0:-1], last[:, :1])
    yield last
    for chunk in chunks:
        last = np.concatenate((last[:, -width - 1 :], chunk), axis=1) if chunk.shape[1] <= width else chunk
        yield chunk
    yield edge(last[:, -width - 1 : -1][:, ::-1], last[:, -1:])


def filtered(chunks: Iterator[Array], kernel: Filter) -> Iterator[Array]:
    """Filter a signal given in chunks, the first longer than the kernel's reach; n samples in, n out."""
    if not kernel.reach:
        yield from (chunk * kernel.taps for chunk in chunks)
        return
    convolve = OverlapSave(kernel.taps)
    kept: list[Array] = []
    for chunk in _extended(chunks, kernel.reach, odd=True):
        kept.append(chunk)
        if sum(part.shape[1] for part in kept) < kernel.taps.size:
            continue
        x = np.concatenate(kept, axis=1)
        yield convolve(x)
        kept = [x[:, 1 - kernel.taps.size :].copy()]


def resampled(chunks: Iterator[Array], r: Resampler, n_times: int) -> Iterator[Array]:
    """Resample a signal of `n_times` samples given in chunks, the first longer than the resampler's context."""
    from scipy.signal import resample_poly

    width = r.context
    skipped = width // r.down * r.up
    emitted, end = 0, -width  # outputs so far, samples so far
    kept: list[Array] = []  # samples from `width` before the time of the next output, which lies on a sample
    for chunk in _extended(chunks, width, odd=False):
        kept.append(chunk)
        end += chunk.shape[1]
        ready = r.n_out(n_times) if end == n_times + width else max(end - width, 0) // r.down * r.up
        if ready <= emitted:
            continue
        x = np.concatenate(kept, axis=1)
        y = resample_poly(x, r.up, r.down, axis=1, window=r.taps)
        yield y[:, skipped : skipped + ready - emitted]
        kept = [x[:, (ready - emitted) // r.up * r.down :].copy()]
        emitted = ready
