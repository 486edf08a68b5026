"""What a tuned recipe promises, in words, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zipbrain.binomial import FEWEST_GROUPS, share_bounds
from zipbrain.seal import find_broken_seal


@dataclass(frozen=True)
class Promise:
    """The least share of the answers that stays, at a confidence, for people like those it was certified on.

    With too few of them it is an estimate; see `zipbrain.tuning.certificate.Certificate`, which writes it.
    """

    agree: float
    confidence: float
    is_promise: bool = True
    groups: int | None = None  # people, or stretches of a recording

    @classmethod
    def of(cls, recipe: Mapping[str, Any] | None, weights: str | None = None) -> Promise | None:
        """The promise in a recipe's JSON form; None where it has none that could be read, or one that does not hold.

        `weights` is the SHA-256 of the model's, if known.
        """
        form = (recipe or {}).get("promise")
        if not isinstance(form, Mapping) or find_broken_seal(recipe, weights):
            return None
        agree, confidence = _as_share(form.get("agree")), _as_share(form.get("confidence"))
        if agree is None or confidence is None:
            return None
        groups = form.get("groups")
        groups = groups if isinstance(groups, int) and groups > 0 else None
        is_promise = form.get("is_promise", True) is True and (groups is None or groups >= FEWEST_GROUPS)
        return cls(agree, confidence, is_promise, groups)

    @property
    def percent(self) -> str:
        """``99 %``."""
        return f"{100 * self.agree:g} %"

    @property
    def terms(self) -> str:
        """What kind of statement it is, and for whom."""
        people = "those" if self.groups is None else f"the {self.groups}"
        if self.is_promise:
            return f"promised at {100 * self.confidence:g} % confidence for people like {people} it was certified on"
        return f"estimated, not promised: {people} it was counted on are too few to speak of others"

    def beside(self, agreement: float, windows: int) -> str:
        """The promise and the share of so many windows whose answer stayed, in one sentence without a full stop."""
        measured = f"{count_text(agreement, windows)}{self._verdict(agreement, windows)}"
        return f"at least {self.percent} of the decisions unchanged ({self.terms}); measured here: {measured}"

    def _verdict(self, agreement: float, windows: int) -> str:
        if agreement >= self.agree:
            return ""
        reached = share_bounds(round(agreement * windows), windows, self.confidence)[1] >= self.agree
        return ", fewer than that" + ", as chance allows with so few windows" * reached


def count_text(agreement: float, windows: int) -> str:
    """``118 of 120 windows (98.3 %)``."""
    return f"{round(agreement * windows)} of {windows} windows ({100 * agreement:.1f} %)"


def _as_share(value: Any) -> float | None:
    """A number above 0 and at most 1, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        return None
    return float(value)
