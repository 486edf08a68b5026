"""Latency of several candidates in one interleaved run, so that ratios survive a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch


def quantile(seconds: Sequence[float], share: float) -> float:
    """Seconds that a share of the calls stay below, between the two nearest calls (numpy's usual definition)."""
    return float(np.quantile(np.asarray(seconds, dtype=np.float64), share))


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate, one entry per round; all candidates of a run have the same rounds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.seconds)

    def quantile(self, share: float) -> float:
        """Seconds that a share of the calls stay below: see `quantile`."""
        return quantile(self.seconds, share)

    def ratio(self, other: Timing) -> float:
        """Median over rounds of this candidate's time divided by the other's."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 32,
    warmup: int = 3,
    tick: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Time candidates in turn, round after round, starting each round with another one.

    Parameters
    ----------
    candidates : mapping of str to callable
        What to call, by name.
    rounds, warmup : int
        Measured rounds, and rounds before them that don't count.
    tick : callable, optional
        Called after every round, for a progress bar.

    Returns
    -------
    timings : dict of str to Timing
    """
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            _wait()
            start = time.perf_counter()
            candidates[name]()
            _wait()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
        if tick is not None:
            tick()
    return {name: Timing(name, tuple(times)) for name, times in seconds.items()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
