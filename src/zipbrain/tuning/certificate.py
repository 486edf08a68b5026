"""The certificate: the share of a model's decisions that stay, as a bound for people like those it was counted on.

Windows of one person are no independent evidence, so windows are counted as if there were fewer of them: by the design
effect of their groups, and by Korn and Graubard's correction for few groups. Clopper and Pearson's bound follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.binomial import share_bounds, t_quantile
from zipbrain.errors import OptionError

CONFIDENCE: Final = 0.95  # one-sided
FEWEST_GROUPS: Final = 5  # with fewer, a bound is an estimate and no promise
FEWEST_OF_A_CLASS: Final = 30  # windows: with fewer, nothing is promised for a class
_LEAST_ICC: Final = 0.01  # windows of a person are never taken for independent


@dataclass(frozen=True)
class Evidence:
    """Flipped decisions among windows in groups, and what they are worth.

    Attributes
    ----------
    flips : int
        Windows whose decision changed.
    windows, groups : int
        How many were counted.
    icc : float
        Intraclass correlation of the flips: how much alike the windows of a group are.
    effective : float
        Number of independent windows that would say as much.
    """

    flips: int
    windows: int
    groups: int
    icc: float
    effective: float

    @property
    def agreement(self) -> float:
        """Share of decisions that stayed."""
        return 1 - self.flips / self.windows

    def bound(self, confidence: float = CONFIDENCE) -> float:
        """The agreement that is exceeded at this confidence."""
        return 1 - share_bounds(self.flips / self.windows * self.effective, self.effective, confidence)[1]

    def best_promise(self, confidence: float = CONFIDENCE) -> float:
        """The bound that these windows would give without any flip: more can't be promised with them."""
        return 1 - share_bounds(0, self.effective, confidence)[1]

    @property
    def is_promise(self) -> bool:
        """False where there are too few groups to speak of other people."""
        return self.groups >= FEWEST_GROUPS


def weigh(flipped: ArrayLike, groups: ArrayLike, doubtful: ArrayLike | None = None) -> Evidence:
    """What flipped decisions are worth as evidence.

    Parameters
    ----------
    flipped : array (n,) of bool
        Windows whose decision changed.
    groups : array (n,)
        Whose window it is: a subject, or a stretch of a recording.
    doubtful : array (n,) of bool, optional
        Flips without a second look, from which the correlation within groups is estimated: with a second look there are
        too few to see it. `flipped` if not given.
    """
    changed, names = np.asarray(flipped, dtype=bool), np.asarray(groups)
    before = changed if doubtful is None else np.asarray(doubtful, dtype=bool)
    if changed.ndim != 1 or changed.shape != names.shape or before.shape != changed.shape or not len(changed):
        shapes = f"{changed.shape}, {names.shape}, {before.shape}"
        raise OptionError("flipped, groups, doubtful", shapes, "they must have one value for every window")
    numbers = np.unique(names, return_inverse=True)[1]
    icc = max(correlation(before, numbers), _LEAST_ICC)
    count, people = len(changed), int(numbers.max()) + 1
    return Evidence(int(changed.sum()), count, people, icc, effective_windows(count, people, icc))


def effective_windows(windows: float, groups: int, icc: float, confidence: float = CONFIDENCE) -> float:
    """Independent windows that say as much as these: n / (1 + (m - 1) ICC), corrected for few groups."""
    if groups < 2 or windows < 2:
        return 1.0
    independent = windows / (1 + (windows / groups - 1) * icc)
    few = t_quantile(confidence, windows - 1) / t_quantile(confidence, groups - 1)
    return min(independent * few**2, windows)


def correlation(values: NDArray[Any], groups: NDArray[np.intp]) -> float:
    """Intraclass correlation of values in numbered groups, by analysis of variance; 0 where it can't be estimated."""
    sizes = np.bincount(groups).astype(np.float64)
    count, people = len(values), len(sizes)
    if people < 2 or count == people:
        return 0.0
    sums, squares = np.bincount(groups, values.astype(np.float64)), float((values.astype(np.float64) ** 2).sum())
    among = float((sums**2 / sizes).sum()) - float(sums.sum()) ** 2 / count
    within = squares - float((sums**2 / sizes).sum())
    between, inside = among / (people - 1), within / (count - people)
    usual = (count - float((sizes**2).sum()) / count) / (people - 1)  # size of a group, for unequal ones
    total = between + (usual - 1) * inside
    return (between - inside) / total if total > 0 else 0.0


def groups_needed(agree: float, per_group: float, icc: float, confidence: float = CONFIDENCE) -> int:
    """The smallest number of groups with so many windows each that could promise `agree`, if no decision flips."""
    wanted = math.log(1 - confidence) / math.log(agree)
    low, high = FEWEST_GROUPS - 1, FEWEST_GROUPS
    while effective_windows(high * per_group, high, icc, confidence) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = effective_windows(middle * per_group, middle, icc, confidence) >= wanted
        low, high = (low, middle) if is_enough else (middle, high)
    return high
