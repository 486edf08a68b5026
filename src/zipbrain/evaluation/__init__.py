"""Evaluation: the paper's metrics, confidence intervals over subjects, figures (lazy: scikit-learn when it is used)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["bootstrap", "figures", "metrics"]


def __getattr__(name: str) -> Any:
    """Import a module of this room when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'zipbrain.evaluation' has no attribute {name!r}")
    return import_module(f"zipbrain.evaluation.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
