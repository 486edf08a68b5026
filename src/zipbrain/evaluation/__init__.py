"""Evaluation: metrics, intervals over subjects, comparisons, ablations, figures (lazy: scikit-learn when used)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["ablate", "bootstrap", "compare", "figures", "metrics"]

_FUNCTIONS = {"ablate": "ablation", "compare": "comparison"}  # and the modules that hold them


def __getattr__(name: str) -> Any:
    """Import a module of this room, or one of its functions, when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'zipbrain.evaluation' has no attribute {name!r}")
    if name in _FUNCTIONS:
        return getattr(import_module(f"zipbrain.evaluation.{_FUNCTIONS[name]}"), name)
    return import_module(f"zipbrain.evaluation.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
