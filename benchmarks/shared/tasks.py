"""Tasks that several scripts train on: packed splits, read once per process, and folds over subjects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.shared.packing import SPLITS, laid_out, unpack

from zipbrain.data.windows import Windows

MODELS = ("labram", "eegpt", "biot", "tfm")
FOLDS = 6

_LOADED: dict[str, dict[str, Windows]] = {}


def load(packs: Path, task: str) -> dict[str, Windows]:
    """The splits of a task, read once per process."""
    if task not in _LOADED:
        plain = packs / task
        _LOADED[task] = laid_out(plain) if plain.is_dir() else unpack(packs / f"{task}.npz")
    return _LOADED[task]


def fold(splits: dict[str, Windows], number: int) -> dict[str, Windows]:
    """Cross-validation over all subjects: every sixth subject is tested, the next sixth chooses the epoch."""
    parts = [splits[name] for name in SPLITS]
    everything = Windows.from_arrays(
        np.concatenate([part.take(np.arange(len(part))) for part in parts]),
        np.concatenate([part.labels for part in parts]), ch_names=parts[0].ch_names, sfreq=parts[0].sfreq,
        subjects=np.concatenate([part.subjects for part in parts]), classes=parts[0].classes, name=parts[0].name,
    )  # fmt: skip
    order = {subject: place % FOLDS for place, subject in enumerate(sorted(set(everything.subjects.tolist())))}
    place = np.array([order[subject] for subject in everything.subjects.tolist()])
    val = (number + 1) % FOLDS
    chosen = {"test": place == number, "val": place == val, "train": (place != number) & (place != val)}
    return {name: everything.select(np.flatnonzero(mask)) for name, mask in chosen.items()}
