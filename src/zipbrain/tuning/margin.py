"""The margin of a second look: the smallest at which a promise is likely to be certified on other people."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.metrics import decision_margins, has_flipped, is_doubtful
from zipbrain.tuning.evidence import CONFIDENCE, Evidence, weigh

_LIKELY: Final = 0.95  # probability of being certified that a margin is chosen for
_SPARED: Final = 0.1  # share of the allowed flips that a margin is expected to leave where none can be certified

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class MarginOutcome:
    """What a candidate keeps, and how many windows look twice, at one margin."""

    margin: float  # 0: every window looks once
    second_look_share: float  # of the windows
    evidence: Evidence  # from the flips that are left

    @property
    def agreement(self) -> float:
        """Share of the decisions that stay."""
        return self.evidence.agreement


class FlipMargins:
    """Decisions that a first pass flips, by the margin of its logits: what a second look at any margin leaves."""

    def __init__(self, before: Logits, first: Logits, groups: NDArray[Any]) -> None:
        self.groups, self._first = groups, first
        self.flipped = has_flipped(before, first)
        self.margins = decision_margins(first)
        self._flips = np.sort(self.margins[self.flipped])[::-1]  # largest first: those that stay longest

    def outcome_at(self, margin: float) -> MarginOutcome:
        """Flips that are left and windows that look twice at a margin."""
        again = is_doubtful(self._first, margin)
        return MarginOutcome(margin, float(again.mean()), weigh(self.flipped & ~again, self.groups, self.flipped))

    def smallest_margin_leaving(self, flips: int) -> MarginOutcome:
        """The smallest margin that leaves at most so many flips.

        It lies halfway to the margin of the next window, so that rounding moves no window across it.
        """
        if flips >= len(self._flips):
            return self.outcome_at(0.0)
        last = float(self._flips[flips])
        above = self.margins[self.margins > last]
        return self.outcome_at((last + float(above.min())) / 2 if len(above) else last + 1)

    def margin_for_promise(self, agree: float, likely: float = _LIKELY) -> MarginOutcome:
        """The smallest margin at which a promise of `agree` is likely to be certified on as many windows again.

        If there is none, the margin exceeds those of all flips seen, and of nearly all to be expected in other people.
        """
        low, high = 0, len(self._flips)  # flips left; likelihood falls with them
        none_left = self.smallest_margin_leaving(0)
        if certification_probability(none_left.evidence, agree) < likely:
            return max(none_left, self.outcome_at(self._beyond(agree)), key=lambda one: one.margin)
        while low < high:
            middle = (low + high + 1) // 2
            if certification_probability(self.smallest_margin_leaving(middle).evidence, agree) >= likely:
                low = middle
            else:
                high = middle - 1
        return self.smallest_margin_leaving(low)

    def _beyond(self, agree: float) -> float:
        """A margin that other people's flips hardly exceed, if flips have exponentially distributed margins.

        That of the last flip seen would be too small: among many candidates, the one that was lucky there is chosen.
        """
        if not len(self._flips):
            return 0.0
        allowed = _SPARED * (1 - agree) * len(self.flipped)
        return float(self._flips.mean()) * math.log(max(1.0, len(self._flips) / allowed))

    def margin_for_share(self, share: float) -> MarginOutcome:
        """The largest margin at which no more than a share of the windows look twice."""
        order = np.sort(self.margins)
        count = int(share * len(order))
        if count <= 0:
            return self.outcome_at(0.0)
        return self.outcome_at(float(order[count - 1] + order[count]) / 2 if count < len(order) else order[-1] + 1)


def certification_probability(seen: Evidence, agree: float) -> float:
    """Probability that as many windows of other people certify a promise, given the flips that were seen.

    The share of flips has a beta distribution (Jeffreys' prior and what was seen), so their number in the other half
    has a beta-binomial one; both count independent windows.
    """
    effective = seen.effective_at(1 - agree)
    flips, count = seen.flips / seen.windows * effective, max(1, round(effective))
    a, b = flips + 0.5, effective - flips + 0.5
    total = 0.0
    for k in range(count + 1):
        if replace(seen, flips=k / count * seen.windows).refutes(1 - agree) < CONFIDENCE:
            break
        ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        total += math.exp(ways + _log_beta(k + a, count - k + b) - _log_beta(a, b))
    return min(total, 1.0)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
