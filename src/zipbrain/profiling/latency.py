"""Latency of several candidates in one interleaved run, so that ratios survive a noisy machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

_FEWEST: Final = 5  # rounds from which a spread is told


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
        return statistics.median(self._ratios(other))

    def noise(self, other: Timing) -> float:
        """Half of the 95 % interval of `ratio`, by the spread of its rounds; NaN of fewer than five.

        A median's standard error is 1.25 times a mean's; the quartiles of normal values are 1.35 deviations apart.
        """
        ratios = self._ratios(other)
        if len(ratios) < _FEWEST:
            return math.nan
        deviation = (quantile(ratios, 0.75) - quantile(ratios, 0.25)) / 1.35
        return 1.96 * 1.25 * deviation / math.sqrt(len(ratios))

    def plus(self, other: Timing, weight: float) -> Timing:
        """Seconds of a call that includes another one, so often, in the same rounds."""
        return Timing(self.name, tuple(a + weight * b for a, b in zip(self.seconds, other.seconds, strict=True)))

    def _ratios(self, other: Timing) -> list[float]:
        return [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 32,
    warmup: int = 3,
    tick: Callable[[], None] | None = None,
    budget: float = math.inf,
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
    budget : float
        Seconds after which no further round begins; one measured round is always made.

    Returns
    -------
    timings : dict of str to Timing
    """
    deadline = time.monotonic() + budget
    made = []
    for seconds in timed_rounds(candidates, rounds=rounds, warmup=warmup, tick=tick, warm_until=_quarter(deadline)):
        made.append(seconds)
        if time.monotonic() >= deadline:
            break
    return timings_of(made)


def timed_rounds(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 3,
    tick: Callable[[], None] | None = None,
    done: int = 0,
    deadline: float = math.inf,
    warm_until: float | None = None,
) -> Iterator[dict[str, float]]:
    """Seconds of one call of every candidate, one measured round after another.

    Rounds that an earlier run has `done` are not made again. At the `deadline` (of `time.monotonic`) the round that is
    under way is given up. Warming up ends after `warmup` rounds, or after the first of them that ends behind
    `warm_until`; if that is not given, it is a quarter of the time to the deadline.
    """
    names = list(candidates)
    until = _quarter(deadline) if warm_until is None else warm_until
    warming, number = warmup, done
    while number < rounds:
        shift = (number + warming) % len(names)
        seconds = {}
        for name in names[shift:] + names[:shift]:
            if time.monotonic() >= deadline:
                return
            _wait()
            start = time.perf_counter()
            candidates[name]()
            _wait()
            seconds[name] = time.perf_counter() - start
        if tick is not None:
            tick()
        if warming:
            warming = warming - 1 if time.monotonic() < until else 0
        else:
            number += 1
            yield seconds


def timings_of(rounds: Sequence[Mapping[str, float]]) -> dict[str, Timing]:
    """The timings of all candidates from their seconds in every round."""
    return {name: Timing(name, tuple(seconds[name] for seconds in rounds)) for name in rounds[0]}


def _quarter(deadline: float) -> float:
    """When a quarter of the time to a deadline is over."""
    return deadline if math.isinf(deadline) else time.monotonic() + (deadline - time.monotonic()) / 4


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
