"""Recordings that examples run on while the site is built: EEGMAT's, or made-up stand-ins where there is no network."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from zipbrain.data import example_recordings
from zipbrain.data.examples import FOLDER
from zipbrain.errors import DataError

PEOPLE = range(31, 36)
_FRONT = ("Fp1", "Fp2", "F3", "F4", "F7", "F8", "T3", "T4", "C3", "C4")
_NAMES = (*_FRONT, "T5", "T6", "P3", "P4", "O1", "O2", "Fz", "Cz", "Pz")
_RATE, _SECONDS, _STEP = 500, 62, 0.1  # Hz, s, microvolts of one step of a stored number


def find_recordings(root: Path) -> bool:
    """Set the folder of EEGMAT for all examples; True if what lies there is made up.

    Taken as it is set, from ``../shared/data/eegmat`` beside the repository, or from the cache, which PhysioNet fills.
    """
    beside = root.parent / "shared" / "data" / "eegmat"
    if FOLDER not in os.environ and beside.is_dir():
        os.environ[FOLDER] = str(beside)
    try:
        example_recordings(*PEOPLE)
    except DataError as error:
        print(f"examples run on made-up recordings: {error}")
        os.environ[FOLDER] = str(make_stand_ins(root / "docs" / "_build" / "stand_ins"))
        return True
    return False


def make_stand_ins(folder: Path) -> Path:
    """EDF files under the names of EEGMAT's: alpha over the back of the head at rest, pink noise, blinks."""
    folder.mkdir(parents=True, exist_ok=True)
    for person in PEOPLE:
        for task in (1, 2):
            random = np.random.default_rng([person, task])
            write_edf(folder / f"Subject{person}_{task}.edf", make_signal(random, 30.0 if task == 1 else 12.0))
    return folder


def make_signal(random: np.random.Generator, alpha: float) -> np.ndarray:
    """Microvolts (channels, samples)."""
    count = _RATE * _SECONDS
    frequency = np.fft.rfftfreq(count, 1 / _RATE)
    shape = 1 / np.maximum(frequency, 0.5)
    noise = np.fft.irfft(shape * np.fft.rfft(random.normal(size=(len(_NAMES) + 3, count))), count)
    own, shared = noise[: len(_NAMES)], random.normal(size=(len(_NAMES), 3)) @ noise[len(_NAMES) :]
    back = np.array([1.0 if name[0] in "OP" else 0.3 for name in _NAMES])[:, None]
    time = np.arange(count) / _RATE
    waxing = 1 + np.sin(2 * np.pi * 0.13 * time + random.uniform(0, 6))
    found = 12 * own / own.std() + 12 * shared / shared.std()
    found += 0.5 * alpha * back * waxing * np.sin(2 * np.pi * 10 * time)
    for second in random.uniform(1, _SECONDS - 1, 12):
        found[:2] += 90 * np.exp(-(((time - second) / 0.1) ** 2))
    return found


def write_edf(path: Path, signal: np.ndarray) -> None:
    """One EDF file with records of a second."""
    limit = 32767 * _STEP

    def field(values: object, width: int) -> bytes:
        return "".join(f"{value!s:<{width}}"[:width] for value in values).encode("ascii")  # type: ignore[attr-defined]

    count, records = len(signal), signal.shape[1] // _RATE
    head = field(["0"], 8) + field(["X X X X", "Startdate X made up by zipbrain"], 80)
    head += field(["01.01.20", "00.00.00", 256 * (count + 1)], 8) + field([""], 44) + field([records, 1], 8)
    head += field([count], 4) + field([f"EEG {name}" for name in _NAMES], 16) + field([""] * count, 80)
    head += field(["uV"] * count, 8)
    for value in (-limit, limit, -32767, 32767):
        head += field([f"{value:g}"] * count, 8)
    head += field([""] * count, 80) + field([_RATE] * count, 8) + field([""] * count, 32)
    stored = np.clip(np.rint(signal / _STEP), -32767, 32767).astype("<i2")
    body = stored.reshape(count, records, _RATE).transpose(1, 0, 2).tobytes()
    path.write_bytes(head + body)
