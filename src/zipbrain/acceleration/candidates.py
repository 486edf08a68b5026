"""The ways in which a network can answer (precision, compiled or not, captured or not), and which one is fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from torch import Tensor, nn

from zipbrain.acceleration.batch_buckets import Bucket
from zipbrain.acceleration.report import AS_GIVEN, Measured
from zipbrain.acceleration.two_passes import SecondBucket
from zipbrain.profiling.latency import Timing, interleaved

WORTH_IT: Final = 0.98  # largest share of a simpler way's time at which a way is taken
_SECONDS: Final = 0.4  # for the measured rounds of one batch size
_ROUNDS: Final = (5, 30)  # at least, at most


@dataclass(eq=False)
class Way:
    """One way to answer: a network in a precision, compiled or not, captured or not."""

    precision: str | None  # "float16" or "bfloat16"; None for that of the model as given
    network: nn.Module
    compiled: Callable[[Tensor], Tensor] | None = None
    graph: bool = False  # whether it is captured
    buckets: dict[int, Bucket] = field(default_factory=dict)  # by batch size
    failures: dict[int, str] = field(default_factory=dict)  # why a size has no bucket
    timings: dict[int, Timing] = field(default_factory=dict)
    second: dict[int, SecondBucket] = field(default_factory=dict)  # by batch size, for windows that look twice

    @property
    def name(self) -> str:
        """In words."""
        words = (self.precision, self.compiled and "compiled", self.graph and "graph")
        return ", ".join(str(word) for word in words if word) or AS_GIVEN

    @property
    def is_unpadded(self) -> bool:
        """True if windows are taken as they come."""
        return self.compiled is None and not self.graph


def time_ways(ways: Sequence[Way], size: int, x: Mapping[str | None, Tensor]) -> None:
    """Time all ways that have a bucket of one size in one interleaved run; `x` has that many windows by precision."""
    able = {str(number): way for number, way in enumerate(ways) if size in way.buckets}
    calls = {number: partial(way.buckets[size], x[way.precision]) for number, way in able.items()}
    first = interleaved(calls, rounds=1, warmup=1)
    least, most = _ROUNDS
    rounds = int(_SECONDS / max(1e-9, sum(timing.median for timing in first.values())))
    timings = interleaved(calls, rounds=min(most, max(least, rounds)), warmup=1)
    for number, timing in timings.items():
        able[number].timings[size] = timing


def choose_way(ways: Iterable[Way], size: int) -> Way:
    """The simplest of the fastest ways at one size; without timings, the last one that can answer.

    `ways` go from simple to complicated, and a later one must be clearly faster; at least one has a bucket.
    """
    able = [way for way in ways if size in way.buckets]
    if any(size not in way.timings for way in able):
        return able[-1]
    best = min(way.timings[size].median for way in able)
    return next(way for way in able if way.timings[size].median * WORTH_IT <= best)


def precision_ratio(given: Sequence[Way], other: Sequence[Way], sizes: Sequence[int]) -> float:
    """Time of the best ways in another precision over that of the best in the given one: geometric mean over sizes."""
    logs = []
    for size in sizes:
        ours, theirs = choose_way(other, size), choose_way(given, size)
        logs.append(math.log(ours.timings[size].ratio(theirs.timings[size])))
    return math.exp(sum(logs) / len(logs))


def measured(ways: Sequence[Way], sizes: Sequence[int], kept: Mapping[int, Way]) -> list[Measured]:
    """All timings for the report; the first way is the model as given."""
    rows = []
    for size in sizes:
        for way in ways:
            if size in way.timings:
                own, base = way.timings[size], ways[0].timings[size]
                rows.append(Measured(size, way.name, own.median, own.ratio(base), way is kept[size]))
    return rows
