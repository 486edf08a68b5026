"""`Evidence`: the bound on other people's agreement that flipped decisions of windows in groups give.

Windows of one person are no independent evidence. How much people differ is measured by the dispersion of their flip
rates: variance over squared mean. Unlike the intraclass correlation it stays when a second look takes most flips back,
and it is not small because few flips were seen. It gives, for every share of flips that is tested, the number of
independent windows that would say as much; Clopper and Pearson's bound follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.binomial import FEWEST_GROUPS as FEWEST_GROUPS
from zipbrain.binomial import beta_share, f_quantile, solve
from zipbrain.errors import OptionError

CONFIDENCE: Final = 0.95  # one-sided
FEWEST_FLIPS: Final = 3  # flips without a second look from which a dispersion is estimated

_LEAST_ICC: Final = 0.01  # lower bound of the intraclass correlation
_DOUBT: Final = 0.2  # probability that the true dispersion exceeds its upper limit
_FEWEST_REMAINING: Final = 4  # flips left by a second look from which on their dispersion is bounded, not estimated
_UNKNOWN: Final = 8.0  # dispersion that is assumed with fewer than `FEWEST_FLIPS` flips

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Counts of flipped decisions among windows in groups, and the bound that follows.

    Attributes
    ----------
    flips : float
        Windows whose decision changed.
    windows, groups : int
        How many were counted.
    size : float
        Mean group size, weighted by windows.
    dispersion : float
        Upper limit of the variance of the groups' flip rates over their squared mean.
    """

    flips: float
    windows: int
    groups: int
    size: float
    dispersion: float

    @property
    def agreement(self) -> float:
        """Share of decisions that stayed."""
        return 1 - self.flips / self.windows

    @property
    def is_promise(self) -> bool:
        """False where there are too few groups to speak of other people."""
        return self.groups >= FEWEST_GROUPS

    @property
    def icc(self) -> float:
        """Intraclass correlation of flips that are as frequent as the bound allows."""
        return float(correlation_at(1 - self.bound(), self.dispersion))

    @cached_property
    def effective(self) -> float:
        """Number of independent windows that would give the same bound."""
        return self.effective_at(1 - self.bound())

    def effective_at(self, share: float) -> float:
        """Number of independent windows that would test this share of flips as sharply."""
        return float(effective_windows(self.windows, self.size, correlation_at(share, self.dispersion)))

    def refutes(self, share: float) -> float:
        """Confidence with which the share of flips of people like these is below this one."""
        count = self.effective_at(share)
        flips = self.flips / self.windows * count
        return beta_share(share, flips + 1, count - flips) if flips < count else 0.0

    def bound(self, confidence: float = CONFIDENCE) -> float:
        """Lower bound of the agreement of people like these, one-sided at this confidence."""
        return 0.0 if self.flips >= self.windows else 1 - solve(self.refutes, confidence, 0.0, 1.0)

    def best_promise(self, confidence: float = CONFIDENCE) -> float:
        """The bound without any flip: the most that this number of windows and groups can prove."""
        return replace(self, flips=0).bound(confidence)

    def groups_needed(self, agree: float, confidence: float = CONFIDENCE) -> int | None:
        """Groups like these that would prove an agreement if flips are as frequent; None if it is no more than that."""
        if self.agreement <= agree:
            return None
        low, high = 0, FEWEST_GROUPS
        while self._times(high).refutes(1 - agree) < confidence:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            is_enough = self._times(middle).refutes(1 - agree) >= confidence
            low, high = (low, middle) if is_enough else (middle, high)
        return max(high, FEWEST_GROUPS)

    def _times(self, groups: int) -> Evidence:
        """Evidence with the same share of flips, from another number of groups like these."""
        windows = max(1, round(groups * self.windows / self.groups))
        return replace(self, flips=self.flips / self.windows * windows, windows=windows, groups=groups)


def weigh(flipped: ArrayLike, groups: ArrayLike, doubtful: ArrayLike | None = None) -> Evidence:
    """The evidence that flipped decisions give.

    Parameters
    ----------
    flipped : array (n,) of bool
        Windows whose decision changed.
    groups : array (n,)
        Whose window it is: a subject, or a stretch of a recording.
    doubtful : array (n,) of bool, optional
        Flips without a second look: they are more, and so show better how much groups differ. `flipped` if not given.
    """
    changed, names = np.asarray(flipped, dtype=bool), np.asarray(groups)
    before = changed if doubtful is None else np.asarray(doubtful, dtype=bool)
    if changed.ndim != 1 or changed.shape != names.shape or before.shape != changed.shape or not len(changed):
        shapes = f"{changed.shape}, {names.shape}, {before.shape}"
        raise OptionError("flipped, groups, doubtful", shapes, "they must have one value for every window")
    numbers = np.unique(names, return_inverse=True)[1]
    sizes = np.bincount(numbers).astype(np.float64)
    remaining, all_flips = (np.bincount(numbers, values).astype(np.float64) for values in (changed, before))
    size = float((sizes**2).sum() / sizes.sum())
    return Evidence(int(changed.sum()), len(changed), len(sizes), size, float(dispersion(remaining, all_flips, sizes)))


def dispersion(remaining: Floats, doubtful: Floats, sizes: Floats) -> Floats:
    """Upper limit of the dispersion of flip rates, from counts (..., K) with and without a second look."""
    found = np.where(doubtful.sum(-1) >= FEWEST_FLIPS, dispersion_limit(doubtful, sizes, _DOUBT), _UNKNOWN)
    left, estimate = remaining.sum(-1), dispersion_limit(remaining, sizes, None)
    limit = np.where(left >= _FEWEST_REMAINING, dispersion_limit(remaining, sizes, _DOUBT), estimate)
    return np.asarray(np.maximum(found, np.where(left > 0, limit, 0.0)))


def dispersion_limit(flips: Floats, sizes: Floats, doubt: float | None) -> Floats:
    """Dispersion of flip rates that is exceeded with probability `doubt`, by analysis of variance; None: its estimate.

    Parameters
    ----------
    flips, sizes : array (..., K)
        Flips and windows of the groups.
    """
    people, count, total = sizes.shape[-1], sizes.sum(-1), flips.sum(-1)
    if people < 2 or (count <= people).any():  # one group says nothing of others; groups of one window are independent
        return np.full(count.shape, np.inf if people < 2 else 0.0)
    explained = (flips**2 / sizes).sum(-1)
    between, inside = (explained - total**2 / count) / (people - 1), (total - explained) / (count - people)
    usual = (count - (sizes**2).sum(-1) / count) / (people - 1)  # size of a group, for unequal ones
    lowest = 1.0 if doubt is None else f_quantile(doubt, people - 1, float(np.median(count)) - people)
    with np.errstate(divide="ignore", invalid="ignore"):
        # (F - 1) / (F + usual - 1) with F = between / inside / lowest, also where inside is 0
        alike = (between - inside * lowest) / (between + (usual - 1) * inside * lowest)
        rate = total / count
        found = np.maximum(alike, 0) * (1 - rate) / rate  # NaN without flips: the callers ask before
    return np.asarray(np.where(rate < 1, found, 0.0))


def correlation_at(share: Any, spread: Any) -> Any:
    """Intraclass correlation of flips of this share if rates have this dispersion, within 0.01 and 1."""
    return np.clip(spread * share / np.maximum(1 - share, 1e-9), _LEAST_ICC, 1.0)


def effective_windows(windows: Any, size: Any, icc: Any) -> Any:
    """Number of independent windows that are worth as much: n / (1 + (m - 1) ICC)."""
    return windows / (1 + (size - 1) * icc)
