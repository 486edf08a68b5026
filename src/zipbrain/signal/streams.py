"""Filtering and resampling in numpy: of arrays, and of streams of blocks, where what the next block needs is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from zipbrain.signal.filters import Array, Filter, Resampler

Run = tuple[int, int, int]  # row, first sample, last sample + 1

_LARGEST_TILE: Final = 1 << 20  # weights


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
    """Convolution with one kernel, (C, n + 2 * reach) -> (C, n); its FFTs fit the cache."""

    def __init__(self, taps: Array) -> None:
        self.size = max(1 << 13, 1 << (3 * taps.size - 1).bit_length())  # of an FFT
        self.skip, self.taps = taps.size - 1, taps
        self.spectrum = np.fft.rfft(taps, self.size)

    def __call__(self, x: Array) -> Array:
        if not self.skip:
            return x * self.taps
        y = np.empty((x.shape[0], x.shape[1] - self.skip))
        for start in range(0, y.shape[1], self.size - self.skip):
            stop = min(start + self.size - self.skip, y.shape[1])
            for row, out in zip(x, y, strict=True):
                product = np.fft.rfft(row[start : stop + self.skip], self.size)
                product *= self.spectrum
                out[start:stop] = np.fft.irfft(product, self.size)[self.skip : self.skip + stop - start]
        return y


class Polyphase:
    """Rational resampling by matrix products.

    Outputs come in frames of `n_out`, which have the same weights for inputs `n_in` further on; a frame is cut into
    tiles of neighbours, whose inputs are nearly the same. So a tile of all frames is one product of matrices, (frames,
    inputs) x (inputs, outputs), the first of them a view of the signal.
    """

    def __init__(self, r: Resampler) -> None:
        self.width = r.context
        inputs = 2 * r.half // r.up + 1  # of one output, at most
        size = max(16, inputs * r.up // r.down)  # outputs of a tile: as many as double its inputs
        size = max(1, min(size, _LARGEST_TILE // (2 * inputs)))
        widest = inputs + -(-size * r.down // r.up)
        frame = -(-widest // r.down)  # rows of a view must not overlap, else numpy copies or is slow
        self.n_out, self.n_in = frame * r.up, frame * r.down
        self.tiles = [self._tile(r, start, min(start + size, self.n_out)) for start in range(0, self.n_out, size)]
        self.needed = max(first + weights.shape[0] for _, first, weights in self.tiles)  # inputs of a frame

    def _tile(self, r: Resampler, start: int, stop: int) -> tuple[slice, int, Array]:
        """Outputs of a frame, the first input they need, counted from `width` before the frame's time, and weights."""
        first, last = -((r.half - start * r.down) // r.up), ((stop - 1) * r.down + r.half) // r.up
        places = np.arange(start, stop) * r.down - np.arange(first, last + 1)[:, np.newaxis] * r.up + r.half
        inside = (places >= 0) & (places < r.taps.size)
        weights = np.where(inside, r.up * r.taps[places.clip(0, r.taps.size - 1)], 0.0)
        return slice(start, stop), self.width + first, weights

    def __call__(self, x: Array, count: int) -> Array:
        """(C, n) -> (C, count)

        `x` begins `width` samples before the time of the first output; what is missing at its end counts as zeros.
        """
        frames = min(max((x.shape[1] - self.needed) // self.n_in + 1, 0), count // self.n_out)
        y = np.empty((x.shape[0], count))
        self._fill(y[:, : frames * self.n_out], np.ascontiguousarray(x), frames)
        rest = count - frames * self.n_out
        if rest:
            more = -(-rest // self.n_out)
            tail = np.zeros((x.shape[0], (more - 1) * self.n_in + self.needed))
            left = x[:, frames * self.n_in :][:, : tail.shape[1]]
            tail[:, : left.shape[1]] = left
            last = np.empty((x.shape[0], more * self.n_out))
            self._fill(last, tail, more)
            y[:, frames * self.n_out :] = last[:, :rest]
        return y

    def _fill(self, y: Array, x: Array, frames: int) -> None:
        for row, out in zip(x, y, strict=True):
            table = out.reshape(frames, self.n_out)
            for outputs, first, weights in self.tiles:
                shape, strides = (frames, weights.shape[0]), (self.n_in * x.itemsize, x.itemsize)
                table[:, outputs] = as_strided(row[first:], shape, strides, writeable=False) @ weights


def fourier(x: NDArray[Any], count: int) -> Array:
    """Resample the last axis to `count` samples by its spectrum, as ``scipy.signal.resample`` does."""
    n_times = x.shape[-1]
    if count == n_times:
        return np.array(x, dtype=np.float64)
    kept = min(count, n_times)
    spectrum = np.fft.rfft(x)[..., : kept // 2 + 1]
    if kept % 2 == 0:  # the frequency that is its own mirror: halved when it gets one, doubled when it loses it
        spectrum[..., -1] *= 2 if count < n_times else 0.5
    return np.asarray(np.fft.irfft(spectrum / (n_times / count), count), dtype=np.float64)


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
    convolve = OverlapSave(kernel.taps)
    if not kernel.reach:
        yield from map(convolve, chunks)
        return
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
    width, polyphase = r.context, Polyphase(r)
    emitted, end = 0, -width  # outputs so far, samples so far
    kept: list[Array] = []  # samples from `width` before the time of the next output, which lies on a sample
    for chunk in _extended(chunks, width, odd=False):
        kept.append(chunk)
        end += chunk.shape[1]
        ready = r.n_out(n_times) if end == n_times + width else max(end - width, 0) // r.down * r.up
        if ready <= emitted:
            continue
        x = np.concatenate(kept, axis=1)
        yield polyphase(x, ready - emitted)
        kept = [x[:, (ready - emitted) // r.up * r.down :].copy()]
        emitted = ready
