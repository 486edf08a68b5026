"""A model and prepared folders small enough to search 321 settings in a second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

import zipbrain
from zipbrain.data.corpora import convention
from zipbrain.data.windows import FORMAT, Windows
from zipbrain.models import BIOT

CHANNELS = ("FP1-F7", "F7-T3", "T3-T5")


def arrays(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise in microvolt with a rhythm whose frequency is the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    time = np.arange(400) / 200
    rhythm = np.sin(2 * np.pi * (6 + 5 * labels)[:, None, None] * time)
    return (rng.normal(0, 20, (n, len(CHANNELS), 400)) + 12 * rhythm).astype(np.float32), labels


def windows(n: int = 24, classes: int = 2, seed: int = 1) -> Windows:
    x, labels = arrays(n, classes, seed)
    names = [f"class {i}" for i in range(classes)]
    return Windows.from_arrays(x, labels, ch_names=CHANNELS, sfreq=200, classes=names, name="toy")


def model(classes: int = 2, seed: int = 0) -> BIOT:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BIOT(1 if classes == 2 else classes, len(CHANNELS), 400, dim=16, heads=2, depth=2).eval()


def checkpoint(folder: Path, classes: int = 2, seed: int = 0) -> Path:
    return zipbrain.save_pretrained(model(classes, seed), folder)


def prepared(
    folder: Path, *, n: int = 24, classes: int = 2, splits: tuple[str, ...] = ("val", "test"), one_class: bool = False
) -> Path:
    """A folder as `zipbrain data prepare` writes it."""
    (folder / "shards").mkdir(parents=True)
    index: dict[str, list[dict[str, object]]] = {}
    for seed, split in enumerate(splits, 1):
        x, labels = arrays(n, classes, seed)
        labels = np.zeros_like(labels) if one_class else labels
        index[split] = []
        for half, subject in enumerate("ab"):
            rows = slice(half * n // 2, (half + 1) * n // 2)
            np.save(folder / "shards" / f"{split}-{subject}.npy", x[rows])
            index[split].append(
                {"shard": f"shards/{split}-{subject}.npy", "labels": labels[rows].tolist(), "subject": split + subject}
            )
    content = {
        "version": FORMAT, "name": "toy", "model": "BIOT", "classes": [f"class {i}" for i in range(classes)],
        "ch_names": list(CHANNELS), "sfreq": 200.0, "n_times": 400, "splits": index,
        "convention": convention("biot", "folder").as_dict(),
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(content))
    return folder
