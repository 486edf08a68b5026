"""The background of synthetic EEG: one person's traits, 1/f noise over the scalp, rhythms, sensor and line noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from zipbrain.data import synthetic_sources as sources
from zipbrain.data.synthetic_sources import ELECTRODES, SFREQ, Array, Head

LINE: Final = 50.0  # Hz

RHYTHMS: Final = ("alpha", "theta", "beta", "delta")

# Where each rhythm comes from, how far it reaches (radian), its frequency and half width (Hz). Alpha has the person's.
_RHYTHMS: Final = (
    ("alpha", "O1", 0.55, 10.0, 0.7),
    ("alpha", "O2", 0.55, 10.0, 0.7),
    ("theta", "FZ", 0.7, 5.8, 0.9),
    ("beta", "C3", 0.5, 20.0, 3.0),
    ("beta", "C4", 0.5, 20.0, 3.0),
    ("delta", "CZ", 1.0, 2.0, 0.7),
)

_JITTER: Final = (0.15, 0.15, 0.4, 0.3, 0.3, 0.3)  # how much windows of one state differ, as in `State.vector`


@dataclass(frozen=True)
class State:
    """What goes on in the background: factor on the 1/f level, its exponent, and rhythms in microvolt RMS."""

    level: float = 1.0
    steeper: float = 0.0
    alpha: float = 7.0
    theta: float = 3.0
    beta: float = 2.5
    delta: float = 4.0

    def vector(self) -> NDArray[np.float64]:
        """All six numbers: log of the level, exponent, logs of the four rhythms."""
        return np.array([np.log(self.level), self.steeper, *np.log([getattr(self, rhythm) for rhythm in RHYTHMS])])


@dataclass(frozen=True)
class Person:
    """Traits of one synthetic subject, the same in every window of theirs."""

    level: float  # RMS of the 1/f background, microvolt
    exponent: float  # its power falls as 1/f**exponent
    smoothness: float  # how far the background reaches over the scalp, in head radii
    alpha_freq: float  # Hz
    spindle_freq: float  # Hz
    alpha: float  # factor on the amplitude of alpha
    rhythms: float  # factor on the amplitude of the other rhythms
    events: float  # factor on the amplitude of events
    noise: float  # RMS of the sensors' white noise, microvolt
    line: float  # RMS of the 50 Hz line noise, microvolt
    gains: Array  # (23,), factor of each of `ELECTRODES` on the signal
    line_reach: Array  # (23,), factor of each of `ELECTRODES` on the line noise

    @classmethod
    def draw(cls, rng: Generator) -> Person:
        """Draw a person; the order of the draws is part of the corpus."""

        def spread(median: float, sigma: float) -> float:
            return median * float(np.exp(sigma * rng.standard_normal()))

        return cls(
            level=spread(11.0, 0.15),
            exponent=float(rng.normal(1.4, 0.12)),
            smoothness=float(rng.uniform(0.6, 0.8)),
            alpha_freq=float(rng.uniform(8.5, 11.5)),
            spindle_freq=float(rng.uniform(12.2, 13.8)),
            alpha=spread(1.0, 0.45),
            rhythms=spread(1.0, 0.2),
            events=spread(1.0, 0.2),
            noise=spread(1.0, 0.3),
            line=spread(1.5, 0.5),
            gains=np.exp(0.08 * rng.standard_normal(len(ELECTRODES))).astype(np.float32),
            line_reach=np.exp(0.5 * rng.standard_normal(len(ELECTRODES))).astype(np.float32),
        )

    def at(self, head: Head) -> tuple[Array, Array]:
        """Return `gains` and `line_reach` of a head's electrodes: each (C,)."""
        rows = [ELECTRODES.index(name) for name in head.names]
        return self.gains[rows], self.line_reach[rows]


def background(
    head: Head, person: Person, states: NDArray[np.float64], rngs: Sequence[Generator], n_times: int
) -> Array:
    """Draw windows without events: (W, C, n_times) of float32 microvolts, gains not applied.

    `states` (W, 6) are `State.vector` of every window; windows of one state still differ a little. Every window has its
    own generator, so that it doesn't depend on how many there are.
    """
    freqs, n_chans = sources.frequencies(n_times), len(head.names)
    everywhere = np.ones((n_chans, 1), np.float32)  # what the reference electrode picks up itself
    fields = [head.field(place, reach)[:, None] for _, place, reach, _, _ in _RHYTHMS]
    mixing = np.concatenate((head.smooth_mixing(person.smoothness), *fields, everywhere), 1)  # (C, sources)

    noise = np.empty((len(rngs), mixing.shape[1], len(freqs), 2), np.float32)
    x = np.empty((len(rngs), n_chans, n_times), np.float32)
    phase, states = np.empty((len(rngs), 1)), states.copy()
    for window, rng in enumerate(rngs):
        phase[window] = rng.uniform(0, 2 * np.pi)
        states[window] += rng.normal(0, _JITTER)
        rng.standard_normal(out=noise[window], dtype=np.float32)
        rng.standard_normal(out=x[window], dtype=np.float32)

    levels, steeper, sizes = np.exp(states[:, 0]), states[:, 1], np.exp(states[:, 2:])
    slope = person.level * levels[:, None] * sources.one_over_f(freqs, person.exponent + steeper)  # (W, bins)
    spectra = noise.view(np.complex64)[..., 0]  # (W, sources, bins)
    spectra[:, :n_chans] *= slope[:, None].astype(np.float32)
    for row, (rhythm, _, _, freq, half) in enumerate(_RHYTHMS, start=n_chans):
        own, freq = (person.alpha, person.alpha_freq) if rhythm == "alpha" else (person.rhythms, freq)
        size = own * sizes[:, RHYTHMS.index(rhythm), None]
        spectra[:, row] *= (size * sources.band(freqs, freq, half)).astype(np.float32)
    spectra[:, -1] *= 0.15 * slope.astype(np.float32)
    x *= person.noise
    mixed = np.matmul(mixing, spectra.view(np.float32)).view(np.complex64)  # real and imaginary parts mix alike
    x += sources.from_spectra(mixed, n_times)
    hum = np.sqrt(2) * np.sin(2 * np.pi * LINE / SFREQ * np.arange(n_times) + phase)  # (W, n_times)
    x += person.line * person.at(head)[1][:, None] * hum[:, None].astype(np.float32)
    return x
