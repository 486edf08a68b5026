"""The promise of a tuned recipe, and its seal: a hash of what the recipe does, which ties the promise to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from zipbrain.binomial import FEWEST_GROUPS, share_bounds
from zipbrain.errors import OptionError
from zipbrain.recipe import Recipe

CONFIDENCE: Final = 0.95  # of a promise that does not say its own
FLOAT32: Final = "float32"  # precision of a promise that does not say its own
SEAL: Final = "recipe_sha256"  # key of a promise


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
    def of(
        cls, recipe: Mapping[str, Any] | None, weights: str | None = None, precision: str = FLOAT32
    ) -> Promise | None:
        """The promise in a recipe's JSON form; None where it has none that can be read, or one that does not hold here.

        Parameters
        ----------
        recipe : mapping or None
        weights : str, optional
            SHA-256 of the model's weights, if known.
        precision : str
            In which the model runs: another one decides otherwise.
        """
        form = (recipe or {}).get("promise")
        if recipe is None or not isinstance(form, Mapping) or find_broken_seal(recipe, weights):
            return None
        agree, confidence = _as_share(form.get("agree")), _as_share(form.get("confidence", CONFIDENCE))
        if agree is None or confidence is None or form.get("precision", FLOAT32) != precision:
            return None
        groups = form.get("groups")
        groups = groups if isinstance(groups, int) and groups > 0 else None
        is_original = recipe["schedule"].get("r") == 0  # the same network: nothing has to be proved
        has_enough = groups is None or groups >= FEWEST_GROUPS or is_original
        return cls(agree, confidence, form.get("is_promise", True) is True and has_enough, groups)

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


def sealed(recipe: Recipe, promise: Mapping[str, Any]) -> Recipe:
    """A recipe that carries a promise, with its seal."""
    return replace(recipe, promise={**promise, SEAL: _seal(recipe)})


def find_broken_seal(form: Mapping[str, Any] | None, weights: str | None = None) -> str:
    """Why the promise in a recipe's JSON form does not hold; empty if it does, or if there is none.

    `weights` is the SHA-256 of the model's, if known.
    """
    form = form or {}
    own, promise = form.get("weights"), form.get("promise")
    if own is not None and weights not in (None, own):
        return "the recipe was tuned for other weights"
    if not isinstance(promise, Mapping):
        return ""
    if own is None:
        return "the recipe does not say for which weights it was tuned"
    try:
        recipe = Recipe.from_dict(form)
    except OptionError as error:
        return f"the recipe can't be read ({error})"
    return "" if promise.get(SEAL) == _seal(recipe) else "the recipe was changed after it was tuned"


def _seal(recipe: Recipe) -> str:
    """SHA-256 of a recipe's key, without what a network fills in."""
    levelled = replace(recipe, within=None)
    if recipe.schedule.get("r") == 0:
        levelled = replace(levelled, layers=None, protected=None, tokens=None)
    return hashlib.sha256(levelled.key().encode()).hexdigest()


def count_text(agreement: float, windows: int) -> str:
    """``118 of 120 windows (98.3 %)``."""
    return f"{round(agreement * windows)} of {windows} windows ({100 * agreement:.1f} %)"


def _as_share(value: Any) -> float | None:
    """A number above 0 and at most 1, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        return None
    return float(value)
