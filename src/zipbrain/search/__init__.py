"""Search: the paper's two-stage search for a setting, resumable, local or on a cluster (lazy: torch when used)."""

from __future__ import annotations

from typing import Any

_HOMES = {
    "search": "zipbrain.search.run",
    "SearchResult": "zipbrain.search.result",
    "SearchStopped": "zipbrain.search.run",
    "Target": "zipbrain.search.targets",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zipbrain.search' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
