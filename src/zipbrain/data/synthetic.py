"""The default corpus: made-up EEG with known truth, drawn from a seed in seconds. Synthetic, never a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from zipbrain.data.corpora.base import BIPOLAR
from zipbrain.data.synthetic_background import LINE, Person, State, background
from zipbrain.data.synthetic_scenes import EVENTS, SLEEP, Scene, nuisance
from zipbrain.data.synthetic_sources import ELECTRODES, SFREQ, Array, Head
from zipbrain.data.windows import SPLITS, Windows
from zipbrain.errors import OptionError

DEAD: Final = 0.01  # share of channels, window by window, that are exactly 0
SATURATED: Final = 0.005  # and that swing from rail to rail
RAIL: Final = 1000.0  # microvolt
CARRIES: Final = 1 / 3  # a second of a channel carries an event that has this share of its largest RMS there

_BACKGROUND, _EVENT, _NUISANCE, _FAULTS = 1, 2, 3, 4  # what a generator is for; 0 draws the labels

_DERIVATIONS: Final = "F3-A2 C3-A2 O1-A2 F4-A1 C4-A1 O2-A1"
_SLEEP_ELECTRODES: Final = "F3 F4 C3 C4 O1 O2 A1 A2"


@dataclass(frozen=True)
class SyntheticTask:
    """Electrodes, recorded channels and classes of a task."""

    number: int
    seconds: int
    electrodes: tuple[str, ...]
    recorded: tuple[str, ...]
    scenes: dict[str, Callable[[Scene], None]]
    states: tuple[State, ...]


TASKS: Final = {
    "events": SyntheticTask(1, 5, ELECTRODES, ELECTRODES, EVENTS, (State(),) * 6),
    "sleep": SyntheticTask(
        2,
        30,
        tuple(_SLEEP_ELECTRODES.split()),
        tuple(_DERIVATIONS.split()),
        SLEEP,
        (
            State(level=0.75, alpha=6.0, theta=3.0, beta=3.0, delta=3.0),
            State(level=0.8, steeper=0.15, alpha=3.5, theta=5.0, beta=2.2, delta=4.0),
            State(level=0.85, steeper=0.4, alpha=2.5, theta=5.0, beta=1.6, delta=7.0),
            State(level=1.0, steeper=0.7, alpha=2.0, theta=4.0, beta=1.2, delta=14.0),
            State(level=0.8, steeper=0.2, alpha=3.0, theta=5.5, beta=2.2, delta=3.5),
        ),
    ),
}


class Synthetic:
    """Synthetic multichannel EEG with known truth: no recording, no person, made from a seed.

    For demonstrations, tests and first experiments without data or network. A model that does well here has learned
    the rules written in this module; that says nothing about real EEG.

    Parameters
    ----------
    task : {"events", "sleep"}
        "events": six classes as in TUEV (SPSW GPED PLED EYEM ARTF BCKG), LaBraM's 23 referential channels, 5 s.
        "sleep": five stages (W N1 N2 N3 REM), six derivations against the opposite ear as in ISRUC, 30 s.
    seconds : float, optional
        Length of a window, whole seconds from 2 on; the task's own if not given.
    n_subjects, windows_per_subject : int
        Made-up people (at least 3: each split needs one) and windows of each.
    seed : int
        Of everything random. Window w of subject s has the same draws whatever the other options are.
    difficulty : float
        0: events stand out and stages differ clearly; 1: events have vanished and nothing tells the classes apart.
    montage : {"referential", "bipolar"}
        Channels as recorded, or (events only) BIOT's 16 bipolar differences of them.

    Attributes
    ----------
    classes, ch_names : tuple of str
    sfreq, n_times
        200 Hz, and samples of a window.
    name : str
        "synthetic-events" or "synthetic-sleep".
    info : dict
        How the corpus was made; ``info["synthetic"]`` is True.

    Notes
    -----
    A window is 1/f background, smooth over the scalp; alpha, theta, beta and delta rhythms; sensor and line noise
    (50 Hz); now and then a weak eye movement or artefact; and what its class draws. People differ in level, exponent,
    alpha frequency, strength of rhythms and events, noise and electrode gains, so splits are by subject. 1 % of the
    recorded channels of a window are dead (all 0) and 0.5 % saturated (clipped at ±1000 microvolt).
    Every subject has all classes equally often, unlike a clinical recording or a night. The same seed gives the same
    windows on every machine, but for rounding; numpy doesn't promise the same draws in all its future versions.

    Examples
    --------
    >>> corpus = Synthetic("events", n_subjects=5, windows_per_subject=6)
    >>> corpus.truth("test").shape
    (6, 23, 5)
    """

    def __init__(
        self,
        task: str = "events",
        *,
        seconds: float | None = None,
        n_subjects: int = 24,
        windows_per_subject: int = 60,
        seed: int = 0,
        difficulty: float = 0.3,
        montage: str = "referential",
    ) -> None:
        is_length = seconds is None or (seconds >= 2 and float(seconds).is_integer())
        own = f"the {task} task has its own derivations: leave it referential"
        for is_good, name, value, allowed in (
            (task in TASKS, "task", task, f"it must be one of {', '.join(TASKS)}"),
            (is_length, "seconds", seconds, "it must be a whole number from 2 on"),
            (n_subjects >= 3, "n_subjects", n_subjects, "it must be 3 or more, one for each split"),
            (windows_per_subject >= 1, "windows_per_subject", windows_per_subject, "it must be 1 or more"),
            (seed >= 0, "seed", seed, "it must be 0 or more"),
            (0 <= difficulty <= 1, "difficulty", difficulty, "it must lie between 0 and 1"),
            (montage in ("referential", "bipolar"), "montage", montage, "it must be referential or bipolar"),
            (montage == "referential" or task == "events", "montage", montage, own),
        ):
            if not is_good:
                raise OptionError(name, value, allowed)
        self._task = TASKS[task]
        self._seconds = int(seconds or self._task.seconds)
        self._n_subjects, self._windows, self._seed = n_subjects, windows_per_subject, seed
        self._difficulty = float(difficulty)
        self._head = Head(self._task.electrodes)
        self._derive = _differences(self._task.recorded, self._task.electrodes)
        self.classes = tuple(self._task.scenes)
        self.ch_names = BIPOLAR if montage == "bipolar" else self._task.recorded
        self._montage = _differences(self.ch_names, self._task.recorded)
        self.sfreq = SFREQ
        self.n_times = self._seconds * int(SFREQ)
        self.name = f"synthetic-{task}"
        made = {"synthetic": True, "made_by": "zipbrain.data.Synthetic", "unit": "uV", "line_freq": LINE, "task": task}
        counts = {"seconds": self._seconds, "n_subjects": n_subjects, "windows_per_subject": windows_per_subject}
        draws = {"seed": seed, "difficulty": self._difficulty, "montage": montage}
        self.info: dict[str, Any] = {**made, **counts, **draws}

    def __repr__(self) -> str:
        return (
            f"<{self.name} (made-up EEG): {self._n_subjects} subjects x {self._windows} windows, "
            f"{len(self.ch_names)} channels x {self._seconds} s, {len(self.classes)} classes>"
        )

    def split(self, name: str) -> Windows:
        """Windows of "train", "val" or "test", about 60 / 20 / 20 % of the subjects; no subject is in two of them."""
        people = self._people(name)
        x = np.concatenate([self._signals(subject) for subject in people])
        y = np.concatenate([self._labels(subject) for subject in people])
        subjects = [f"synthetic-{subject:03d}" for subject in people for _ in range(self._windows)]
        return Windows.from_arrays(
            x, y, ch_names=self.ch_names, sfreq=self.sfreq, subjects=subjects, classes=self.classes, name=self.name
        )

    def truth(self, name: str) -> NDArray[np.bool_]:
        """Which channels and seconds carry the event of their window's class: (n, C, seconds) of bool, as in `split`.

        These are where at least one source of the event has a third or more of its largest RMS. False everywhere in
        BCKG and where a channel is dead or saturated; it does not depend on the difficulty.
        """
        return np.concatenate([self._carriers(subject) for subject in self._people(name)])

    def _people(self, name: str) -> range:
        if name not in SPLITS:
            raise OptionError("split", name, f"it must be one of {', '.join(SPLITS)}")
        total, held_out = self._n_subjects, max(1, round(self._n_subjects / 5))
        edges = (0, total - 2 * held_out, total - held_out, total)
        place = SPLITS.index(name)
        return range(edges[place], edges[place + 1])

    def _rng(self, *key: int) -> Generator:
        """Return a generator of its own for whatever the key names."""
        return default_rng(SeedSequence(self._seed, spawn_key=key))

    def _person(self, subject: int) -> Person:
        return Person.draw(self._rng(0, subject))

    def _labels(self, subject: int) -> NDArray[np.int64]:
        """Shuffle blocks that hold every class once, so that any number of windows is balanced: (W,)."""
        count = len(self.classes)
        blocks = range(-(-self._windows // count))
        drawn = [self._rng(self._task.number, subject, 0, block).permutation(count) for block in blocks]
        return np.concatenate(drawn)[: self._windows].astype(np.int64)

    def _rngs(self, subject: int, purpose: int) -> list[Generator]:
        """One generator for each window of a subject: of the background, the event, the nuisance or the faults."""
        return [self._rng(self._task.number, subject, purpose, window) for window in range(self._windows)]

    def _signals(self, subject: int) -> Array:
        """All windows of a subject: (W, C, n_times)."""
        person = self._person(subject)
        states = np.stack([state.vector() for state in self._task.states])
        states += self._difficulty * (states.mean(0) - states)
        states, rngs = states[self._labels(subject)], self._rngs(subject, _BACKGROUND)
        x = background(self._head, person, states, rngs, self.n_times)
        ease = np.float32(1 - self._difficulty)
        events, others = self._events(subject, person), self._rngs(subject, _NUISANCE)
        for window, (event, rng) in enumerate(zip(events, others, strict=True)):
            other = Scene(self._head, person, rng, self.n_times)
            nuisance(other)
            x[window] += ease * event.fields @ event.courses + other.fields @ other.courses
        x = np.matmul(self._derive * person.at(self._head)[0], x)
        dead, saturated = self._faults(subject)
        x[dead] = 0
        x[saturated] = np.clip(100 * x[saturated], -RAIL, RAIL)
        return np.asarray(np.matmul(self._montage, x))

    def _events(self, subject: int, person: Person) -> Iterator[Scene]:
        """What the class of each window draws, at difficulty 0."""
        for label, rng in zip(self._labels(subject), self._rngs(subject, _EVENT), strict=True):
            scene = Scene(self._head, person, rng, self.n_times)
            self._task.scenes[self.classes[label]](scene)
            yield scene

    def _faults(self, subject: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which recorded channels are dead, and which saturated: each (W, recorded)."""
        draw = np.stack([rng.random(len(self._task.recorded)) for rng in self._rngs(subject, _FAULTS)])
        return draw < DEAD, draw > 1 - SATURATED

    def _carriers(self, subject: int) -> NDArray[np.bool_]:
        """Truth of a subject's windows: (W, C, seconds)."""
        person = self._person(subject)
        derive = self._derive * person.at(self._head)[0]
        dead, saturated = self._faults(subject)
        spoilt = saturated @ np.abs(self._montage).T > 0  # (W, C): a pair with one saturated side too
        carries = np.zeros((self._windows, len(self.ch_names), self._seconds), np.bool_)
        for window, scene in enumerate(self._events(subject, person)):
            recorded = derive @ scene.fields
            recorded[dead[window]] = 0
            seen = np.abs(self._montage @ recorded)  # (C, sources)
            seen[spoilt[window]] = 0
            rms = np.sqrt((scene.courses.reshape(-1, self._seconds, int(SFREQ)) ** 2).mean(2))  # (sources, seconds)
            share = seen[:, :, None] * rms  # a source has one field, so its RMS is a product
            largest = share.max((0, 2), keepdims=True, initial=0)
            carries[window] = ((share >= CARRIES * largest) & (largest > 0)).any(1)
        return carries


def _differences(names: tuple[str, ...], electrodes: tuple[str, ...]) -> Array:
    """Return the matrix that makes channels such as ``"F3"`` or ``"F3-A2"`` from electrodes: (names, electrodes)."""
    matrix = np.zeros((len(names), len(electrodes)), np.float32)
    for row, name in enumerate(names):
        if name in electrodes:
            matrix[row, electrodes.index(name)] = 1
        else:
            plus, minus = name.split("-")
            matrix[row, electrodes.index(plus)], matrix[row, electrodes.index(minus)] = 1, -1
    return matrix
