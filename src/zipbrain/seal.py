"""The seal of a tuned recipe: a hash of what it does, which ties its promise to it (stdlib only)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.recipe import Recipe

SEAL: Final = "recipe_sha256"  # key of a promise


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
