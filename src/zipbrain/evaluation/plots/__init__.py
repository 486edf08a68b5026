"""Pictures, each a function that returns a matplotlib Figure: of one window, of many, and of stored results (lazy)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ablation_bars": "ablation",
    "attention_heat_maps": "attention",
    "confusion_pair": ".figures",
    "merge_map": "merging",
    "pareto_front": "pareto",
    "profile_timeline": "timeline",
    "purity_bars": "purity",
    "ratio_curves": "curves",
    "survival_topography": "topography",
    "token_counts": "tokens",
    "waterfall": "runtimes",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a picture when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zipbrain.evaluation.plots' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
