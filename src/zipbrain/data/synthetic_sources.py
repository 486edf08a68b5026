"""What synthetic EEG is made of: electrode places, fields on the scalp, noise with a given spectrum, waveforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zipbrain.channels import find_channels
from zipbrain.data.corpora.base import REFERENTIAL

Array = NDArray[np.float32]

SFREQ: Final = 200.0
ELECTRODES: Final = REFERENTIAL

# Degrees from the vertex, degrees from the nose; left side, mirrored to the right. Rounded from an adult's head (the
# 10-20 places of the Colin27 template, seen from the centre of the sphere that fits them); T1 stands over the anterior
# temporal lobe, between FT7 and FT9.
_PLACES: Final = """
FP1 97 17, F3 66 36, C3 48 87, P3 58 139, O1 88 163, F7 100 51, T3 100 90, T5 95 128, A1 130 96, T1 111 68
"""
_LEFT: Final = {name: (int(a), int(b)) for name, a, b in (place.split() for place in _PLACES.split(","))}
_MIDLINE: Final = {"FZ": (50, 0), "CZ": (0, 0), "PZ": (40, 180)}
_RIGHT: Final = {f"{name[:-1]}{int(name[-1]) + 1}": name for name in _LEFT}  # even numbers mirror odd ones


def _direction(from_vertex: float, from_nose: float) -> NDArray[np.float64]:
    theta, phi = np.deg2rad(from_vertex), np.deg2rad(from_nose)
    return np.array([np.sin(theta) * np.sin(phi), np.sin(theta) * np.cos(phi), np.cos(theta)])


def _place(name: str) -> NDArray[np.float64]:
    if name in _LEFT:
        return _direction(*_LEFT[name]) * (-1, 1, 1)
    return _direction(*(_MIDLINE[name] if name in _MIDLINE else _LEFT[_RIGHT[name]]))


_POSITIONS: Final = np.stack([_place(name) for name in ELECTRODES])


def electrode_positions(names: Sequence[str]) -> NDArray[np.float64]:
    """Places of any of `ELECTRODES` on a round head, (n, 3): x to the right ear, y to the nose, z to the vertex."""
    return _POSITIONS[find_channels(names, ELECTRODES, "the synthetic head")]


def angles(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Great-circle distances in radian between two sets of unit vectors: (n, 3), (m, 3) -> (n, m)."""
    return np.asarray(np.arccos(np.clip(first @ second.T, -1.0, 1.0)))


class Head:
    """Electrodes of one task, and the fields that sources leave on them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.positions = electrode_positions(names)
        self.between = angles(self.positions, self.positions)

    def field(self, centre: str | NDArray[np.float64], width: float) -> Array:
        """Return the field of one source: 1 under it, falling off as a Gaussian of the distance in radian: (C,)."""
        place = electrode_positions([centre]) if isinstance(centre, str) else centre[None] / np.linalg.norm(centre)
        return np.exp(-0.5 * (angles(self.positions, place)[:, 0] / width) ** 2).astype(np.float32)

    def near(self, rng: Generator, names: Sequence[str], spread: float = 0.1) -> NDArray[np.float64]:
        """Draw a place on the head within about `spread` radian of one of the named electrodes: (3,)."""
        centre = electrode_positions([names[int(rng.integers(len(names)))]])[0]
        place: NDArray[np.float64] = centre + spread * rng.standard_normal(3)
        return place / np.linalg.norm(place)

    def smooth_mixing(self, width: float, nugget: float = 0.05) -> Array:
        """A matrix (C, C) that makes noise whose correlation, a Gaussian of the chord, falls off with distance."""
        chord = 2 * np.sin(self.between / 2)
        kernel = (1 - nugget) * np.exp(-0.5 * (chord / width) ** 2) + nugget * np.eye(len(self.names))
        return np.linalg.cholesky(kernel).astype(np.float32)


# --- noise with a given spectrum --------------------------------------------------------------------------------------


def frequencies(n_times: int) -> Array:
    """Frequencies of the spectra from which `n_times` samples are made; one second longer than what is kept."""
    return np.fft.rfftfreq(n_times + int(SFREQ), 1 / SFREQ).astype(np.float32)


def from_spectra(spectra: NDArray[np.complex64], n_times: int) -> Array:
    """Turn spectra (..., bins) into signals (..., n_times); the extra second is cut, so that ends don't meet."""
    return np.fft.irfft(spectra, n_times + int(SFREQ))[..., :n_times].astype(np.float32)


def unit_power(amplitude: Array) -> Array:
    """Scale amplitudes (..., bins) so that complex normal noise under them becomes a signal of RMS 1."""
    samples = 2 * (amplitude.shape[-1] - 1)
    return np.asarray(amplitude * (samples / (2 * np.sqrt((amplitude**2).sum(-1, keepdims=True)))))


def one_over_f(freqs: Array, exponent: NDArray[np.float64]) -> Array:
    """Amplitude spectrum whose power falls as 1/f**exponent above 1 Hz and is flat below: (...,) -> (..., bins)."""
    shape = (1 + freqs**2) ** (-exponent[..., None] / 4)  # amplitude is the root of power
    return unit_power(np.where(freqs < 0.2, 0, shape).astype(np.float32))


def band(freqs: Array, centre: float, width: float) -> Array:
    """Amplitude spectrum of a rhythm: a Gaussian bump of power, `width` Hz to either side: (bins,)."""
    return unit_power(np.exp(-0.25 * ((freqs - centre) / width) ** 2))


# --- waveforms: what one event looks like under its source, largest absolute value about 1 ----------------------------


def _time(seconds: float) -> Array:
    return np.linspace(0, 1, max(4, round(seconds * SFREQ)), dtype=np.float32)


def _hump(seconds: float) -> Array:
    """Half a sine."""
    return np.asarray(np.clip(np.sin(np.pi * _time(seconds)), 0, 1))  # rounding may leave the end below 0


def blink(rng: Generator) -> Array:
    """Return an eye blink: one smooth positive hump of 0.25 to 0.45 s."""
    return _hump(rng.uniform(0.25, 0.45)) ** 2


def saccade(rng: Generator) -> Array:
    """Return a horizontal eye movement: a step of 30 ms that is held and leaks away."""
    time = _time(seconds := rng.uniform(0.4, 1.0))
    return np.asarray(np.tanh(time * seconds / 0.015) * np.exp(-time * seconds / 0.6) * np.sqrt(1 - time))


def muscle(rng: Generator) -> Array:
    """Return a burst of muscle activity: noise between 20 and 90 Hz for 0.5 to 2 s."""
    n_times = len(envelope := _hump(rng.uniform(0.5, 2.0)) ** 0.3)
    freqs = frequencies(n_times)
    spectrum = rng.standard_normal((len(freqs), 2), dtype=np.float32).view(np.complex64)[:, 0]
    noise = from_spectra(spectrum * unit_power(((freqs > 20) & (freqs < 90)).astype(np.float32)), n_times)
    return 0.4 * envelope * noise


def pop(rng: Generator) -> Array:
    """Return an electrode pop: a jump that decays within half a second."""
    return np.asarray(np.exp(-_time(1.0) / rng.uniform(0.08, 0.2)))


def sway(rng: Generator) -> Array:
    """Return a movement of head or cable: one to two slow swings."""
    time = _time(seconds := rng.uniform(1.0, 2.0))
    return np.asarray(np.sin(2 * np.pi * rng.uniform(0.6, 1.2) * seconds * time) * np.sin(np.pi * time))


def spike_and_wave(rng: Generator) -> Array:
    """Return a negative spike of 50 to 80 ms and a slow negative wave behind it."""
    spike, rebound, wave = _hump(rng.uniform(0.05, 0.08)), _hump(0.04), _hump(rng.uniform(0.22, 0.32))
    return np.concatenate((-(spike**2), 0.3 * rebound, -0.55 * wave))


def sharp_wave(rng: Generator) -> Array:
    """Return a periodic discharge of one side: a negative sharp wave of 100 to 180 ms, a positive one behind it."""
    seconds = rng.uniform(0.10, 0.18)
    return np.concatenate((-(_hump(seconds) ** 1.5), 0.4 * _hump(1.8 * seconds)))


def triphasic(rng: Generator) -> Array:
    """Return a generalised periodic discharge: negative, positive, negative, each slower than the one before."""
    seconds = rng.uniform(0.07, 0.11)
    return np.concatenate((-0.4 * _hump(seconds), _hump(1.5 * seconds), -0.5 * _hump(2.5 * seconds)))


def oscillation(rng: Generator, freq: float, seconds: float) -> Array:
    """Return a burst that waxes and wanes: a spindle at 12 to 14 Hz, alpha at about 10 Hz."""
    time = _time(seconds)
    return np.asarray(np.sin(2 * np.pi * (freq * seconds * time + rng.uniform())) * np.sin(np.pi * time))


def k_complex(rng: Generator) -> Array:
    """Return a sharp negative wave and a slower positive one, together 0.7 to 1.1 s."""
    seconds = rng.uniform(0.7, 1.1)
    return np.concatenate((-_hump(0.35 * seconds), 0.7 * _hump(0.65 * seconds)))


def vertex_wave(rng: Generator) -> Array:
    """Return a sharp negative wave of 80 to 140 ms with a small positive tail."""
    seconds = rng.uniform(0.08, 0.14)
    return np.concatenate((-_hump(seconds), 0.3 * _hump(1.5 * seconds)))


def slow_waves(rng: Generator, cycles: int) -> Array:
    """Return a train of slow waves between 0.6 and 1.2 Hz: sharp negative half-waves, rounder positive ones."""
    halves = []
    for _ in range(cycles):
        period, size = 1 / rng.uniform(0.6, 1.2), rng.uniform(0.6, 1.0)
        halves += [-size * _hump(0.4 * period), 0.8 * size * _hump(0.6 * period)]
    return np.concatenate(halves)


def sawtooth(rng: Generator, cycles: int) -> Array:
    """Return a train of triangular waves between 2 and 4 Hz: a slow rise, a steep fall."""
    period = 1 / rng.uniform(2.0, 4.0)
    tooth = np.concatenate((2 * _time(0.8 * period) - 1, 1 - 2 * _time(0.2 * period)))
    return np.tile(tooth, cycles)
