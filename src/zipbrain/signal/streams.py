"""Filtering and resampling in numpy: of arrays, and of streams, whose samples may come in portions of any size.

The outputs of a stream are equal to the last bit however its samples come: transforms and products of matrices lie on
one grid from the first sample on, and have the same shapes whether one block of the grid is computed or a thousand.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import log2
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from zipbrain.signal.filters import Array, Filter, Resampler

Run = tuple[int, int, int]  # row, first sample, last sample + 1

_LATE: Final = 0.4  # seconds: about how long a filter waits for a block to be full
_WIDER: Final = 8  # times: blocks of the next part of a kernel
_MOST_BLOCKS: Final = 12  # of a kernel's last part; transforms of another size cost as much as a few blocks more
_TILE: Final = 24  # outputs of a product of matrices, about


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
    """Rational resampling by matrix products of fixed shapes.

    Outputs come in frames of `n_out`, which have the same weights for inputs `n_in` further on; a frame is cut into
    tiles of neighbours, whose inputs are nearly the same. A tile is one product of matrices, (channels, inputs) x
    (inputs, outputs).
    """

    def __init__(self, r: Resampler) -> None:
        self.width = r.context
        frame = max(1, round(_TILE / r.up))
        self.n_out, self.n_in = frame * r.up, frame * r.down
        edges = np.linspace(0, self.n_out, max(1, round(self.n_out / _TILE)) + 1).astype(int)
        self.tiles = [self._tile(r, int(start), int(stop)) for start, stop in pairwise(edges)]
        self.longest = int(np.diff(edges).max())  # outputs of a tile
        self.needed = max(first + weights.shape[0] for first, weights in self.tiles)  # inputs of a frame

    def _tile(self, r: Resampler, start: int, stop: int) -> tuple[int, Array]:
        """The first input of some outputs of a frame, counted from `width` before the frame's time, and the weights."""
        first, last = -((r.half - start * r.down) // r.up), ((stop - 1) * r.down + r.half) // r.up
        places = np.arange(start, stop) * r.down - np.arange(first, last + 1)[:, np.newaxis] * r.up + r.half
        inside = (places >= 0) & (places < r.taps.size)
        weights = np.where(inside, r.up * r.taps[places.clip(0, r.taps.size - 1)], 0.0)
        return self.width + first, weights

    def __call__(self, x: Array, count: int) -> Array:
        """(C, n) -> (C, count)

        `x` begins `width` samples before the time of the first output; what is missing at its end counts as zeros.
        """
        stream = TiledStream(self, x.shape[0])
        y = stream.push(x)[:, :count]
        return np.concatenate((y, stream.finish(count - y.shape[1])), axis=1)


class TiledStream:
    """The outputs of `Polyphase` for a stream that begins `width` samples before the time of the first output."""

    def __init__(self, polyphase: Polyphase, rows: int) -> None:
        self._polyphase, self._tile = polyphase, 0  # the next tile of the frame that `_x` begins with
        self._x = np.empty((rows, 0))

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m), the outputs they complete"""
        p = self._polyphase
        self._x = np.concatenate((self._x, x), axis=1)
        found = []
        while True:
            there = self._x.shape[1]
            frames = 0 if self._tile else max(0, (there - p.needed) // p.n_in + 1)
            if frames:
                tiles = [self._product(first, weights, frames) for first, weights in p.tiles]
                found.append(np.concatenate(tiles, axis=2).reshape(len(x), -1))
                self._x = self._x[:, frames * p.n_in :].copy()
                continue
            first, weights = p.tiles[self._tile]
            if there < first + len(weights):
                break
            found.append(self._product(first, weights, 1)[:, 0])
            self._tile = (self._tile + 1) % len(p.tiles)
            if not self._tile:
                self._x = self._x[:, p.n_in :].copy()
        return np.concatenate(found, axis=1) if found else np.empty((len(x), 0))

    def _product(self, first: int, weights: Array, frames: int) -> Array:
        """One tile of the next frames: (C, frames, outputs)"""
        x = self._x[:, first:]
        shape, steps = (frames, len(x), len(weights)), (self._polyphase.n_in * x.itemsize, *x.strides)
        # A copy: the strides of what is multiplied could change the order of a sum.
        cells = np.ascontiguousarray(as_strided(x, shape, steps, writeable=False))
        return (cells @ weights).transpose(1, 0, 2)

    def finish(self, count: int) -> Array:
        """The last outputs (C, count), for zeros after the end."""
        p = self._polyphase
        missing = p.needed + (max(count, 0) // p.n_out + 1) * p.n_in
        return self.push(np.zeros((len(self._x), missing)))[:, : max(count, 0)]


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


class Edges:
    """A stream with reflections before its first and after its last sample, `width` samples each.

    A signal that is too short for them is extended at its end, as `reflect_limited` or numpy's "reflect" do.
    """

    def __init__(self, width: int, *, odd: bool) -> None:
        self._width, self._odd, self._begun = width, odd, False
        self._last = deque[Array]()  # the samples that a reflection needs, and a few more
        self._count = 0  # of these

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m)"""
        self._last.append(x)
        self._count += x.shape[1]
        if self._begun:
            while self._count - self._last[0].shape[1] > self._width:
                self._count -= self._last.popleft().shape[1]
            return x
        if self._count <= self._width:
            return x[:, :0]
        self._begun = True
        first = np.concatenate(self._last, axis=1)
        self._last = deque([first])
        return np.concatenate((self._edge(first[:, self._width : 0 : -1], first[:, :1]), first), axis=1)

    def finish(self) -> Array:
        """What comes after the last sample, or all of a signal that is too short."""
        last = np.concatenate(self._last, axis=1)
        if self._begun:
            return self._edge(last[:, -self._width - 1 : -1][:, ::-1], last[:, -1:])
        if self._odd:
            return reflect_limited(last, self._width)
        return np.pad(last, ((0, 0), (self._width, self._width)), mode="reflect")

    def _edge(self, mirrored: Array, end: Array) -> Array:
        return 2 * end - mirrored if self._odd else mirrored


def block_length(sfreq: float) -> int:
    """Samples of the shortest blocks in which a filter works, a power of two."""
    return 1 << max(0, round(log2(_LATE * sfreq)))


class Held:
    """A stream whose first sample is held for the time before it, `width` samples."""

    def __init__(self, width: int) -> None:
        self._width, self._rows = width, 0

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m)"""
        if self._rows or not x.shape[1]:
            return x
        self._rows = len(x)
        return np.concatenate((np.repeat(x[:, :1], self._width, axis=1), x), axis=1)

    def finish(self) -> Array:
        """Nothing comes after the last sample."""
        return np.empty((self._rows, 0))


class _Part:
    """Convolution with the taps of a kernel from `start` on, in blocks of `size` (partitioned overlap-save)."""

    def __init__(self, taps: Array, start: int, size: int, rows: int) -> None:
        self.size, count = size, -(-taps.size // size)
        self._kernel = np.fft.rfft(np.pad(taps, (0, count * size - taps.size)).reshape(count, size), 2 * size)
        self._x = np.zeros((rows, size))  # the block before the next one, and what is there of that
        self._before = np.zeros((rows, count - 1, size + 1), dtype=np.complex128)  # spectra of earlier blocks
        self.ready = np.zeros((rows, start))  # outputs that were not taken yet

    def push(self, x: Array) -> None:
        self._x = np.concatenate((self._x, x), axis=1)
        blocks = self._x.shape[1] // self.size - 1
        if not blocks:
            return
        y = np.empty((len(x), blocks * self.size))
        for row, (samples, before) in enumerate(zip(self._x, self._before, strict=True)):
            y[row] = self._convolve(samples, before, blocks)
        self.ready = np.concatenate((self.ready, y), axis=1)
        self._x = self._x[:, blocks * self.size :].copy()

    def _convolve(self, samples: Array, before: NDArray[np.complex128], blocks: int) -> Array:
        """The outputs of some blocks of one row, in the order of time; `before` is brought up to date."""
        step = samples.itemsize
        pairs = as_strided(samples, (blocks, 2 * self.size), (self.size * step, step), writeable=False)
        spectra = np.concatenate((before, np.fft.rfft(pairs)))
        before[:] = spectra[blocks:]
        latest = len(self._kernel) - 1
        total = spectra[latest:] * self._kernel[0]
        product = np.empty_like(total)
        for age, part in enumerate(self._kernel[1:], 1):
            np.multiply(spectra[latest - age : latest - age + blocks], part, out=product)
            total += product
        return np.fft.irfft(total, 2 * self.size)[:, self.size :].ravel()


class Convolution:
    """Convolution of a stream: output i is the sum of ``taps[k] * x[i - k]``, with zeros before the first sample.

    Outputs come in blocks of `grain`. The taps for the newest samples are computed in blocks of this size, those for
    older ones in longer blocks, which are full when they are needed (Gardner, J. Audio Eng. Soc. 43, 127, 1995).
    """

    def __init__(self, taps: Array, rows: int, sfreq: float) -> None:
        self.grain = size = block_length(sfreq)
        self._parts: list[_Part] = []
        self._x, self._waiting, self._seen = list[Array](), 0, 0
        start = 0
        while start < taps.size:
            most = size * (_WIDER - 1)
            count = taps.size - start if taps.size - start <= size * _MOST_BLOCKS else most
            self._parts.append(_Part(taps[start : start + count], start, size, rows))
            start, size = start + count, size * _WIDER

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m), the outputs of the blocks that they fill"""
        self._x.append(x)
        self._waiting += x.shape[1]
        self._seen += x.shape[1]
        if self._waiting < self.grain:
            return x[:, :0]
        x = np.concatenate(self._x, axis=1)
        full = self._waiting // self.grain * self.grain
        self._x, self._waiting = [x[:, full:].copy()], self._waiting - full
        for part in self._parts:
            part.push(x[:, :full])
        y = self._parts[0].ready[:, :full].copy()
        for part in self._parts[1:]:
            y += part.ready[:, :full]
        for part in self._parts:
            part.ready = part.ready[:, full:].copy()
        return y

    def finish(self) -> Array:
        """The outputs for the last samples, which fill no block."""
        left = self._waiting
        rows = len(self._parts[0].ready)
        return self.push(np.zeros((rows, -left % self.grain)))[:, :left]


class FilteredStream:
    """A stream through a `Filter`; n samples in, n out.

    It is reflected at both ends; before a causal filter the first sample is held.
    """

    def __init__(self, kernel: Filter, rows: int) -> None:
        self._edges = Held(kernel.before) if kernel.is_causal else Edges(kernel.ahead, odd=True)
        self._convolution = Convolution(kernel.taps, rows, kernel.sfreq)
        self._skip = kernel.taps.size - 1  # outputs for samples before the first

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m), the outputs they complete"""
        return self._drop(self._convolution.push(self._edges.push(x)))

    def finish(self) -> Array:
        """The outputs that are left at the end of the signal."""
        y = self._drop(self._convolution.push(self._edges.finish()))
        return np.concatenate((y, self._drop(self._convolution.finish())), axis=1)

    def _drop(self, y: Array) -> Array:
        dropped = min(self._skip, y.shape[1])
        self._skip -= dropped
        return y[:, dropped:]


class ResampledStream:
    """A stream through a `Resampler`, reflected at both ends."""

    def __init__(self, r: Resampler, rows: int) -> None:
        self._r, self._seen, self._emitted = r, 0, 0
        self._edges, self._tiles = Edges(r.context, odd=False), TiledStream(Polyphase(r), rows)

    def push(self, x: Array) -> Array:
        """(C, n), the next samples -> (C, m), the outputs they complete"""
        y = self._tiles.push(self._edges.push(x))
        self._seen += x.shape[1]
        self._emitted += y.shape[1]
        return y

    def finish(self) -> Array:
        """The outputs that are left at the end of the signal."""
        left = self._r.n_out(self._seen) - self._emitted
        y = self._tiles.push(self._edges.finish())[:, :left]
        return np.concatenate((y, self._tiles.finish(left - y.shape[1])), axis=1)
