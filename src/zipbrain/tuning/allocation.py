"""Schedules by measured damage: tokens are removed where this saves most time for the least logit error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Final

from zipbrain.pooling.methods.base import as_method
from zipbrain.tuning.candidates import Anatomy, MethodSchedule, Removed, fit

PROBES: Final = (0.25, 0.6)  # shares of a block's tokens whose removal is measured
STEPS: Final = 24  # parts of the tokens in which a schedule grows

_SIZES: Final = (1, 2, 4, 8)  # such parts that may be removed at once
_LEAST: Final = 1e-9  # smallest logit error that is not treated as zero


@dataclass(frozen=True)
class Damage:
    """Logit error that every block causes if it alone removes a share q of its tokens: factor x q^power."""

    factors: tuple[float, ...]
    powers: tuple[float, ...]

    def of(self, anatomy: Anatomy, removed: Removed) -> float:
        """Expected logit error of a schedule: the sum over its blocks."""
        total, left = 0.0, anatomy.tokens
        for factor, power, r in zip(self.factors, self.powers, removed, strict=False):
            total += factor * (r / left) ** power if r else 0.0
            left -= r
        return total


def probes(anatomy: Anatomy, method: MethodSchedule) -> list[MethodSchedule]:
    """Candidates in which one block alone reduces, by `PROBES`; all shares of the first block come first."""
    found = []
    for block in range(anatomy.useful):
        for share in PROBES:
            wanted = [0] * block + [max(1, round(share * anatomy.tokens))]
            removed = fit(anatomy, as_method(method.method), wanted)
            found.append(replace(method, removed=removed, title=f"block {block + 1} alone, {share:.0%}"))
    return found


def fit_damage(anatomy: Anatomy, tried: Sequence[MethodSchedule], errors: Sequence[float]) -> Damage:
    """The damage of every block from the logit errors of its probes."""
    factors, powers = [], []
    for start in range(0, len(tried), len(PROBES)):
        pair = list(zip(tried[start : start + len(PROBES)], errors[start : start + len(PROBES)], strict=True))
        (low, small), (high, large) = [(sum(one.removed) / anatomy.tokens, max(e, _LEAST)) for one, e in pair]
        power = math.log(large / small) / math.log(high / low) if high > low else 1.0
        powers.append(min(max(power, 1.0), 6.0))  # an error grows at least as fast as the share, or it is noise
        factors.append(large / high ** powers[-1])
    return Damage(tuple(factors), tuple(powers))


def allocate(
    anatomy: Anatomy,
    method: MethodSchedule,
    damage: Damage,
    time_of: Callable[[MethodSchedule], float],
    targets: Sequence[float],
) -> list[MethodSchedule]:
    """For every target of relative time, the first of ever stronger schedules that reaches it.

    Each step removes some more tokens in the one block where it saves most time for the damage that it adds. Steps have
    several sizes, because the first reduction of a block has a cost of its own, which only a large step may pay back.
    """
    rule, step = as_method(method.method), max(1, anatomy.tokens // STEPS)
    now = replace(method, removed=(0,) * anatomy.depth, title="")
    found: list[MethodSchedule] = []
    waiting = sorted(targets, reverse=True)
    while waiting:
        best: tuple[float, MethodSchedule] | None = None
        before, harm = time_of(now), damage.of(anatomy, now.removed)
        for block, size in product(range(anatomy.useful), _SIZES):
            wanted = [r + size * step * (number == block) for number, r in enumerate(now.removed)]
            if sum(wanted) >= anatomy.tokens:
                continue
            removed = fit(anatomy, rule, wanted)
            if removed != tuple(wanted):  # more than the method can remove there
                continue
            one = replace(now, removed=removed)
            added = max(damage.of(anatomy, removed) - harm, _LEAST)
            worth = (before - time_of(one)) / added
            if best is None or worth > best[0]:
                best = worth, one
        if best is None:
            return found
        now = best[1]
        while waiting and time_of(now) <= waiting[0]:
            target = waiting.pop(0)
            if not found or found[-1].removed != now.removed:
                found.append(replace(now, title=f"by damage, {target:.0%} of the time"))
    return found


def neighbours(anatomy: Anatomy, candidate: MethodSchedule) -> list[MethodSchedule]:
    """Candidates with similar schedules: more or less removed, earlier or later, one reduction fewer or more."""
    now = candidate.removed
    used = [block for block, r in enumerate(now) if r]
    found = {
        "more removed": [round(r * 1.15) for r in now],
        "less removed": [round(r * 0.87) for r in now],
        "one block later": [0, *now[:-1]],
        "one block earlier": [now[0] + now[1], *now[2:]] if len(now) > 1 else [],
        "tilted to the front": _tilted(now, used, 1.25),
        "tilted to the back": _tilted(now, used, 0.8),
    }
    for before, after in pairwise(used):
        joined = list(now)
        joined[before], joined[after] = now[before] + now[after], 0
        found[f"block {after + 1} joined to block {before + 1}"] = joined
    if used and used[-1] + 2 < anatomy.useful:  # half of the last reduction goes two blocks later
        split = list(now)
        split[used[-1] + 2], split[used[-1]] = now[used[-1]] // 2, now[used[-1]] - now[used[-1]] // 2
        found["last reduction split"] = split
    rule, start = as_method(candidate.method), candidate.title.partition(",")[0]
    fitted = {title: fit(anatomy, rule, wanted[: anatomy.useful]) for title, wanted in found.items() if wanted}
    return [
        replace(candidate, removed=r, title=f"{start}, {title}") for title, r in fitted.items() if any(r) and r != now
    ]


def _tilted(now: Removed, used: Sequence[int], factor: float) -> list[int]:
    """The schedule with the first half of its reductions scaled by a factor, and the same number removed in all."""
    half = used[: max(1, len(used) // 2)]
    rest = [block for block in used if block not in half]
    early = sum(now[block] for block in half)
    late = sum(now) - early
    if not late:
        return []
    change = min(round(early * factor), sum(now) - len(rest)) - early
    tilted = [round(r * (1 + change / early)) if block in half else r for block, r in enumerate(now)]
    return [round(r * (1 - change / late)) if block in rest else r for block, r in enumerate(tilted)]


@dataclass(frozen=True)
class TimeModel:
    """Relative time of a network: fixed + per_operation x operations + per_reduction x blocks that reduce."""

    fixed: float
    per_operation: float
    per_reduction: float

    def of(self, anatomy: Anatomy, candidate: MethodSchedule) -> float:
        """Expected time of a first pass, relative to the original's."""
        reductions = sum(r > 0 for r in candidate.removed)
        return self.fixed + self.per_operation * anatomy.operations(candidate) + self.per_reduction * reductions

    @classmethod
    def fit(cls, anatomy: Anatomy, measured: Mapping[MethodSchedule, float]) -> TimeModel:
        """The model nearest to measured relative times; the original, with the time 1, is always one of them."""
        import numpy as np

        rows = [(1.0, anatomy.operations(one), float(sum(r > 0 for r in one.removed))) for one in measured]
        table, times = np.array([(1.0, 1.0, 0.0), *rows]), np.array([1.0, *measured.values()])
        columns = [0, 1, 2]
        while True:  # a negative cost is noise: leave its term out and fit again
            fitted = np.zeros(3)
            fitted[columns] = np.linalg.lstsq(table[:, columns], times, rcond=None)[0]
            worst = min((value, column) for column, value in enumerate(fitted))
            if worst[0] >= 0 or columns == [1]:
                return cls(*map(float, fitted))
            columns.remove(worst[1])
