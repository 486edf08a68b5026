"""Sources of made-up samples for tests: scripted losses, at their own pace or the reader's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.live.source import Chunk, SourceEnded


def noise(channels: int, n: int, seed: int = 0) -> NDArray[np.float64]:
    """Smooth noise of 20 microvolts: (channels, n)."""
    x = np.random.default_rng(seed).standard_normal((channels, n + 8))
    return 20 * np.stack([np.convolve(row, np.ones(9) / 3, "valid") for row in x])


class Scripted:
    """A source that plays a list: samples are read, exceptions raised, seconds waited (None: until stopped)."""

    limits = None

    def __init__(self, names: Sequence[str], sfreq: float, script: Sequence[Any], *, is_live: bool = True) -> None:
        self.name, self.ch_names, self.sfreq, self.is_live = "scripted", tuple(names), sfreq, is_live
        self._script, self.is_closed = list(script), False

    def read(self, timeout_s: float) -> Chunk | None:
        if not self._script:
            raise SourceEnded("the script is over")
        item = self._script.pop(0)
        if item is None or isinstance(item, float):
            time.sleep(timeout_s if item is None else min(item, timeout_s))
            if item is None or item > timeout_s:
                self._script.insert(0, item if item is None else item - timeout_s)
            return None
        if isinstance(item, BaseException):
            raise item
        return item if isinstance(item, Chunk) else Chunk(item)

    def close(self) -> None:
        self.is_closed = True


def paced(rows: NDArray[np.float64], sfreq: float, each_s: float = 0.1) -> list[Any]:
    """A script that plays samples (C, n) in real time."""
    size = round(each_s * sfreq)
    return [part for start in range(0, rows.shape[1], size) for part in (each_s, rows[:, start : start + size])]
