"""Small networks and windows for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from seams.small_models import varied
from zipbrain.data.windows import Windows
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM
from zipbrain.signal.convention import Convention

CHANNELS = ("FP1-F7", "F7-T3", "T3-T5")
SAMPLES, RATE = 600, 200.0
NAMES = ("left", "right")


def biot(outputs: int = 2, **options: Any) -> BIOT:
    """3 channels x 5 frames = 15 tokens of width 16, two blocks."""
    model = BIOT(outputs, 3, SAMPLES, **{"dim": 16, "heads": 2, "depth": 2, **options})
    return centred(varied(model))


def network(name: str, blocks: int = 2) -> nn.Module:
    """The first blocks of one of the four models for a short window."""
    ends = ["FP1", "C3", "O2"]
    made: Any = {
        "LaBraM": lambda: LaBraM(2, ends, 400),
        "EEGPT": lambda: EEGPT(2, ends, 512),
        "BIOT": lambda: BIOT(2, 3, SAMPLES),
        "TFM-Tokenizer": lambda: TFM(2, 3, SAMPLES),
    }[name]()
    owner, _, last = made.encoder_path.rpartition(".")
    inside = made.get_submodule(owner)
    setattr(inside, last, getattr(inside, last)[:blocks])
    return varied(made)


def centred(model: BIOT) -> BIOT:
    """Shift the head so that both classes occur."""
    with torch.no_grad():
        logits = model(torch.from_numpy(scaled(windows())))
        model.head.bias -= logits.median(0).values
    return model


def samples(count: int = 24, seed: int = 0) -> np.ndarray:
    """Noise of different colours in microvolts, (count, 3, 600)."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((count, len(CHANNELS), SAMPLES))
    slow = np.cumsum(noise, axis=2) * rng.uniform(0, 0.3, (count, len(CHANNELS), 1))
    return (30 * (noise + slow)).astype(np.float32)


def windows(count: int = 24, seed: int = 0) -> Windows:
    """Labelled windows of noise."""
    labels = np.arange(count) % 2
    return Windows.from_arrays(samples(count, seed), labels, ch_names=CHANNELS, sfreq=RATE, classes=NAMES, name="noise")


def scaled(given: Windows) -> np.ndarray:
    """As BIOT reads them."""
    from zipbrain.signal.scaling import scale

    return np.asarray(scale(given.take(slice(None)), "q95"), dtype=np.float32)


def convention(**other: Any) -> Convention:
    """How a recording would become such windows."""
    pairs = tuple(tuple(name.split("-")) for name in CHANNELS)
    options: dict[str, Any] = {
        "model": "biot", "corpus": "noise", "montage": pairs, "ch_names": CHANNELS, "band": (0.5, 45.0), "notch": 50.0,
        "cut_sfreq": RATE, "sfreq": RATE, "window_s": 3.0, "hop_s": 1.5, "scaling": "q95",
    }  # fmt: skip
    return Convention(**{**options, **other})
