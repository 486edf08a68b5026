"""Recipes in JSON form that carry a sealed promise."""

from __future__ import annotations

from typing import Any

from zipbrain.recipe import Recipe
from zipbrain.seal import sealed


def promising(**promise: Any) -> dict[str, Any]:
    """A recipe for the weights of `edge.tiny_onnx`, with a promise."""
    recipe = Recipe({"name": "zipbrain"}, {"name": "ratio", "ratio": 0.6}, weights="ab" * 32)
    return sealed(recipe, promise).to_dict()
