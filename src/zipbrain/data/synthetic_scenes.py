"""Events of the synthetic corpus: what each class draws on the head, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.random import Generator

from zipbrain.data import synthetic_sources as waves
from zipbrain.data.synthetic_background import Person
from zipbrain.data.synthetic_sources import SFREQ, Array, Head


class Scene:
    """Sources of one window, drawn from `rng`: a field over the electrodes and a course in time for each."""

    def __init__(self, head: Head, person: Person, rng: Generator, n_times: int) -> None:
        self.head, self.person, self.rng, self.n_times = head, person, rng, n_times
        self.seconds = n_times / SFREQ
        self._fields: list[Array] = []
        self._courses: list[Array] = []

    def source(self, field: Array) -> Array:
        """Add a silent source with this field (C,), and return its course (n_times,) to be written into."""
        self._fields.append(field)
        self._courses.append(np.zeros(self.n_times, np.float32))
        return self._courses[-1]

    @property
    def fields(self) -> Array:
        """Fields of all sources: (C, sources)."""
        return np.stack(self._fields, 1) if self._fields else np.zeros((len(self.head.names), 0), np.float32)

    @property
    def courses(self) -> Array:
        """Courses of all sources, microvolt: (sources, n_times)."""
        return np.stack(self._courses) if self._courses else np.zeros((0, self.n_times), np.float32)

    def size(self, median: float, sigma: float = 0.3) -> float:
        """Draw an amplitude around a median, in microvolt."""
        return median * self.person.events * float(np.exp(sigma * self.rng.standard_normal()))

    def moment(self, room: float = 1.0) -> float:
        """Draw a start in seconds that leaves `room` seconds before the end of the window."""
        return float(self.rng.uniform(0.0, max(self.seconds - room, 0.1)))

    def field_near(self, *names: str, width: float) -> Array:
        """Return the field of a source close to one of the named electrodes: (C,)."""
        return self.head.field(self.head.near(self.rng, names), width)


def add(course: Array, wave: Array, start: float) -> None:
    """Add a waveform to a course from `start` seconds on; what reaches over the end is cut."""
    first = max(round(start * SFREQ), 0)
    kept = wave[: max(len(course) - first, 0)]
    course[first : first + len(kept)] += kept


# --- events: six classes, as in clinical recordings -------------------------------------------------------------------


def spike_wave(scene: Scene) -> None:
    """SPSW: spikes with slow waves, two to four at one place, or a short 3 Hz run over the whole front."""
    rng = scene.rng
    if rng.random() < 0.3:
        course = scene.source(scene.head.field("FZ", 0.9))
        count, period, start = int(rng.integers(3, 6)), 1 / rng.uniform(2.7, 3.5), scene.moment(1.7)
        starts = [start + i * period for i in range(count)]
    else:
        course = scene.source(scene.field_near("F7", "F8", "T3", "T4", "T5", "T6", "F3", "F4", "C3", "C4", width=0.4))
        starts = [scene.moment(0.5) for _ in range(rng.integers(2, 5))]
    size = scene.size(200)
    for start in starts:
        add(course, size * rng.uniform(0.7, 1.0) * waves.spike_and_wave(rng), start)


def _periodic(scene: Scene, course: Array, wave: Callable[[Generator], Array], size: float) -> None:
    """Repeat a discharge every 0.7 to 1.5 s through the whole window, never quite evenly."""
    rng = scene.rng
    period = rng.uniform(0.7, 1.5)
    start = rng.uniform(0.0, period)
    shape = wave(rng)
    while start < scene.seconds:
        add(course, size * rng.uniform(0.7, 1.0) * shape, start)
        start += period * rng.uniform(0.9, 1.1)


def generalised_periodic(scene: Scene) -> None:
    """GPED: triphasic waves over the whole head, strongest in front."""
    _periodic(scene, scene.source(scene.head.field("FZ", 1.1)), waves.triphasic, scene.size(90))


def lateralised_periodic(scene: Scene) -> None:
    """PLED: sharp waves over one side."""
    field = scene.field_near("T3", "T4", "C3", "C4", "P3", "P4", "T5", "T6", width=0.5)
    _periodic(scene, scene.source(field), waves.sharp_wave, scene.size(130))


_EYES: Final = np.array([0.0, 1.0, -0.3])  # in front of the forehead, below its electrodes


def eye_movement(scene: Scene, size: float = 1.0) -> None:
    """EYEM: blinks (both eyes, frontal) or horizontal movements (opposite signs at F7 and F8)."""
    rng = scene.rng
    if rng.random() < 0.6:
        course, wave, median = scene.source(scene.head.field(_EYES, 0.45)), waves.blink, 180.0
    else:
        sideways = scene.head.field("F8", 0.4) - scene.head.field("F7", 0.4)
        course, wave, median = scene.source(sideways), waves.saccade, 110.0
    for _ in range(rng.integers(1, 4)):
        sign = 1.0 if wave is waves.blink else rng.choice([-1.0, 1.0])
        add(course, size * sign * scene.size(median) * wave(rng), scene.moment())


def artefact(scene: Scene, size: float = 1.0) -> None:
    """ARTF: muscle over temples, forehead or neck, one electrode that pops, or a sway of one side."""
    rng = scene.rng
    kind = rng.choice(["muscle", "pop", "sway"], p=[0.6, 0.2, 0.2])
    if kind == "muscle":
        course = scene.source(scene.field_near("T3", "T4", "F7", "F8", "FP1", "FP2", "O1", "O2", width=0.35))
        for _ in range(rng.integers(1, 3)):
            add(course, size * scene.size(110) * waves.muscle(rng), scene.moment())
    elif kind == "pop":
        field = np.zeros(len(scene.head.names), np.float32)
        field[rng.integers(len(field))] = 1.0
        course = scene.source(field)
        for _ in range(rng.integers(1, 4)):
            add(course, size * rng.choice([-1.0, 1.0]) * scene.size(200) * waves.pop(rng), scene.moment())
    else:
        course = scene.source(scene.field_near("T5", "T6", "F7", "F8", "O1", "O2", width=0.7))
        add(course, size * scene.size(170) * waves.sway(rng), scene.moment())


def no_event(scene: Scene) -> None:
    """BCKG: nothing beyond what every window has."""


# --- sleep: five stages -----------------------------------------------------------------------------------------------


def _bursts(scene: Scene, field: Array, freq: float, median: float, count: int, low: float, high: float) -> None:
    """Add bursts of a rhythm between `low` and `high` seconds long."""
    course = scene.source(field)
    for _ in range(count):
        seconds = scene.rng.uniform(low, high)
        add(course, scene.size(median) * waves.oscillation(scene.rng, freq, seconds), scene.moment(seconds))


def _per_30s(scene: Scene, rate: float) -> int:
    """Draw how many times something happens that is expected `rate` times in 30 s."""
    return int(scene.rng.poisson(rate * scene.seconds / 30))


def wake(scene: Scene) -> None:
    """W: runs of posterior alpha, blinks."""
    alpha = scene.person.alpha
    for side in ("O1", "O2"):
        count = 1 + _per_30s(scene, 6)
        _bursts(scene, scene.head.field(side, 0.7), scene.person.alpha_freq, 24 * alpha, count, 1.5, 5.0)
    course = scene.source(scene.head.field(_EYES, 0.8))
    for _ in range(_per_30s(scene, 4)):
        add(course, scene.size(90) * waves.blink(scene.rng), scene.moment())


def drowsy(scene: Scene) -> None:
    """N1: a little alpha left, runs of theta, vertex waves."""
    count = _per_30s(scene, 2)
    _bursts(scene, scene.head.field("PZ", 0.9), scene.person.alpha_freq, 16 * scene.person.alpha, count, 1.0, 3.0)
    _bursts(scene, scene.head.field("CZ", 0.9), scene.rng.uniform(4.5, 6.5), 21, 1 + _per_30s(scene, 4), 1.0, 3.0)
    course = scene.source(scene.head.field("CZ", 0.6))
    for _ in range(_per_30s(scene, 3)):
        add(course, scene.size(70) * waves.vertex_wave(scene.rng), scene.moment())


def light(scene: Scene) -> None:
    """N2: spindles and K-complexes."""
    _bursts(scene, scene.head.field("CZ", 0.8), scene.person.spindle_freq, 32, 1 + _per_30s(scene, 4), 0.6, 1.6)
    course = scene.source(scene.head.field("FZ", 0.9))
    for _ in range(1 + _per_30s(scene, 2)):
        add(course, scene.size(105) * waves.k_complex(scene.rng), scene.moment(1.1))


def deep(scene: Scene) -> None:
    """N3: trains of slow waves, strongest in front, now and then a spindle."""
    course = scene.source(scene.head.field("FZ", 1.1))
    for _ in range(1 + _per_30s(scene, 3)):
        wave = waves.slow_waves(scene.rng, int(scene.rng.integers(3, 8)))
        add(course, scene.size(90) * wave, scene.moment(len(wave) / SFREQ))
    _bursts(scene, scene.head.field("CZ", 0.8), scene.person.spindle_freq, 24, _per_30s(scene, 1), 0.6, 1.4)


def rapid_eyes(scene: Scene) -> None:
    """REM: rapid eye movements in clusters, runs of sawtooth waves."""
    rng = scene.rng
    course = scene.source(scene.head.field("F8", 0.6) - scene.head.field("F7", 0.6))
    for _ in range(1 + _per_30s(scene, 2)):
        start = scene.moment(3.0)
        for _ in range(rng.integers(2, 5)):
            add(course, rng.choice([-1.0, 1.0]) * scene.size(90) * waves.saccade(rng), start + rng.uniform(0.0, 2.5))
    course = scene.source(scene.head.field("CZ", 0.7))
    for _ in range(_per_30s(scene, 2)):
        wave = waves.sawtooth(rng, int(rng.integers(4, 10)))
        add(course, scene.size(28) * wave, scene.moment(len(wave) / SFREQ))


Draw = Callable[[Scene], None]

EVENTS: Final[dict[str, Draw]] = {
    "SPSW": spike_wave,
    "GPED": generalised_periodic,
    "PLED": lateralised_periodic,
    "EYEM": eye_movement,
    "ARTF": artefact,
    "BCKG": no_event,
}
SLEEP: Final[dict[str, Draw]] = {"W": wake, "N1": drowsy, "N2": light, "N3": deep, "REM": rapid_eyes}


def nuisance(scene: Scene) -> None:
    """Weaker eye movements and artefacts that may come in a window of any class, and count as no event."""
    for what in (eye_movement, artefact):
        for _ in range(scene.rng.poisson(min(0.05 * scene.seconds, 0.5))):
            what(scene, 0.2)
