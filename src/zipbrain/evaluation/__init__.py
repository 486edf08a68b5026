"""Evaluation: intervals over subjects, comparisons, ablations, figures (lazy: scikit-learn when used)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("bootstrap", "figures", "plots", "purity", "report", "token_fates")
_HOMES = {
    "Result": "result",
    "Store": "store",
    "Trial": "trial",
    "ablate": "ablation",
    "compare": "comparison",
    "recipe_for": "trial",
    "write_report": "report",
}

__all__ = sorted((*_MODULES, *_HOMES))


def __getattr__(name: str) -> Any:
    """Import a module of this package, or one of its names, when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(f"zipbrain.evaluation.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"zipbrain.evaluation.{name}")
    if name == "metrics":
        return import_module("zipbrain.metrics")
    raise AttributeError(f"module 'zipbrain.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
