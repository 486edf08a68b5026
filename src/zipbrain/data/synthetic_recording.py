"""A continuous synthetic recording with events at known times, for the live demo and its evaluation; never a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import SeedSequence, default_rng
from numpy.typing import NDArray

from zipbrain.data.synthetic_background import Person, State, background
from zipbrain.data.synthetic_scenes import EVENTS, Scene
from zipbrain.data.synthetic_sources import ELECTRODES, SFREQ, Head
from zipbrain.signal.recording import Annotation, Array, Recording

RAIL: Final = 3200.0  # microvolts: what the made-up amplifier can hold

_PIECE_S: Final = 60  # seconds that are drawn together
_FADE_S: Final = 2  # over which two pieces pass into each other
_EASE: Final = 0.7  # of an event's amplitude, as in the corpus that the demo's model was trained on


@dataclass(frozen=True)
class Happening:
    """A stretch of a recording in which a class of events goes on."""

    start_s: float
    stop_s: float
    label: str


class SyntheticRecording(Recording):
    """A made-up recording of any length, drawn piece by piece when it is read.

    Parameters
    ----------
    seconds : int
    seed : int
        Of everything random: the person, the background and the events.
    every_s : float
        Mean time between two events.
    labels : sequence of str
        Classes of events, drawn evenly.
    event_s : (float, float)
        The shortest and the longest event.
    gaps : sequence of (float, float)
        Seconds from and to which nothing was recorded.
    flat : sequence of (str, float, float)
        Electrodes that are off, from and to which second.

    Attributes
    ----------
    happenings : tuple of Happening
        The truth.
    """

    def __init__(
        self,
        seconds: int,
        *,
        seed: int = 0,
        every_s: float = 60.0,
        labels: Sequence[str] = ("SPSW",),
        event_s: tuple[float, float] = (8.0, 16.0),
        gaps: Sequence[tuple[float, float]] = (),
        flat: Sequence[tuple[str, float, float]] = (),
    ) -> None:
        self.path, self.notes, self.left_out = Path("synthetic"), [], {}
        self.ch_names, self.sfreq, self.n_times = list(ELECTRODES), SFREQ, round(seconds * SFREQ)
        self.gaps = [(round(start * SFREQ), round(stop * SFREQ)) for start, stop in gaps]
        self.limits = np.tile((-RAIL, RAIL), (len(ELECTRODES), 1))
        self._seed, self._flat, self._head = seed, tuple(flat), Head(ELECTRODES)
        self._person = Person.draw(self._rng(0))
        self.happenings = self._draw_events(seconds, every_s, labels, event_s)
        self._pieces: dict[int, NDArray[np.float32]] = {}

    @property
    def annotations(self) -> list[Annotation]:
        """The truth, as an EDF+ file would hold it."""
        return [(event.start_s, event.stop_s - event.start_s, event.label) for event in self.happenings]

    def _rng(self, *key: int) -> Any:
        return default_rng(SeedSequence(self._seed, spawn_key=key))

    def _draw_events(
        self, seconds: float, every_s: float, labels: Sequence[str], event_s: tuple[float, float]
    ) -> tuple[Happening, ...]:
        rng, found, start = self._rng(1), list[Happening](), 0.0
        while True:
            start += rng.uniform(0.5, 1.5) * every_s
            length = rng.uniform(*event_s)
            if start + length > seconds:
                return tuple(found)
            found.append(Happening(round(start, 3), round(start + length, 3), str(rng.choice(list(labels)))))
            start += length

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        piece = int(_PIECE_S * SFREQ)
        parts = []
        for number in range(start // piece, (stop - 1) // piece + 1):
            begin = max(start - number * piece, 0)
            parts.append(self._piece(number)[rows, begin : stop - number * piece])
        x = np.concatenate(parts, axis=1).astype(np.float64)
        for name, first, last in self._flat:
            if (row := self.ch_names.index(name)) in rows:
                there = slice(max(round(first * SFREQ) - start, 0), max(round(last * SFREQ) - start, 0))
                x[list(rows).index(row), there] = 0.0
        for first_gap, last_gap in self.gaps:
            x[:, max(first_gap - start, 0) : max(last_gap - start, 0)] = np.nan
        return x

    def _piece(self, number: int) -> NDArray[np.float32]:
        """A piece of the signal with its events: (C, n)."""
        if number not in self._pieces:
            while len(self._pieces) > 1:
                self._pieces.pop(next(iter(self._pieces)))
            self._pieces[number] = self._draw_piece(number)
        return self._pieces[number]

    def _draw_piece(self, number: int) -> NDArray[np.float32]:
        fade, n = int(_FADE_S * SFREQ), int(_PIECE_S * SFREQ)
        now, before = self._background(number), self._background(number - 1)[:, n:]
        ramp = np.sin(np.linspace(0, np.pi / 2, fade, dtype=np.float32))  # equal power
        x = now[:, :n].copy()
        if number:
            x[:, :fade] = ramp * x[:, :fade] + np.sqrt(1 - ramp**2) * before
        for place, event in enumerate(self.happenings):
            first, length = round(event.start_s * SFREQ), round((event.stop_s - event.start_s) * SFREQ)
            if first < (number + 1) * n and first + length > number * n:
                drawn = self._event(place, event.label, length)
                begin, end = max(first, number * n), min(first + length, (number + 1) * n)
                x[:, begin - number * n : end - number * n] += drawn[:, begin - first : end - first]
        x *= self._person.at(self._head)[0][:, None]
        return np.clip(x, -RAIL, RAIL)

    def _background(self, number: int) -> NDArray[np.float32]:
        """A piece without events, and as much more as passes into the next one."""
        if number < 0:
            return np.zeros((len(ELECTRODES), int((_PIECE_S + _FADE_S) * SFREQ)), np.float32)
        state, rng = State().vector()[None], self._rng(2, number)
        return np.asarray(background(self._head, self._person, state, [rng], int((_PIECE_S + _FADE_S) * SFREQ))[0])

    def _event(self, place: int, label: str, length: int) -> NDArray[np.float32]:
        """What one class draws again and again, in the corpus's own windows of five seconds: (C, length)."""
        window, rng = int(5 * SFREQ), self._rng(3, place)
        x = np.zeros((len(ELECTRODES), length), np.float32)
        for first in range(0, length, window):
            scene = Scene(self._head, self._person, rng, window)
            EVENTS[label](scene)
            drawn = np.float32(_EASE) * scene.fields @ scene.courses
            x[:, first : first + window] += drawn[:, : length - first]
        return x
