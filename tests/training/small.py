"""Windows and settings small enough to train on in a test."""

from __future__ import annotations

from typing import Any

import numpy as np

from zipbrain.data.windows import Windows
from zipbrain.training import TrainingSettings, scratch_settings

BIOT = {"dim": 16, "heads": 2, "depth": 2}


def windows(n: int = 40, classes: int = 2, channels: int = 3, seconds: int = 2, seed: int = 0) -> Windows:
    """Noise in microvolt with a rhythm whose frequency is the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    time = np.arange(200 * seconds) / 200
    x = rng.normal(0, 20, (n, channels, len(time))) + 30 * np.sin(2 * np.pi * (6 + 6 * labels)[:, None, None] * time)
    names = ["C3", "C4", "O1", "O2", "F3", "F4"][:channels]
    return Windows.from_arrays(
        x.astype(np.float32), labels, ch_names=names, sfreq=200, classes=[f"class {i}" for i in range(classes)]
    )


def tiny_settings(**settings: Any) -> TrainingSettings:
    """Our settings for a tiny BIOT, with dropout."""
    return scratch_settings("biot").override(**{"epochs": 4, "batch_size": 16, "lr": 2e-3, "options": BIOT} | settings)
