"""Search: the paper's two-stage search for a setting, resumable, local or on a cluster (lazy: torch when used)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

_HOMES = {
    "search": "zipbrain.search.run",
    "SearchResult": "zipbrain.search.result",
    "SearchStopped": "zipbrain.search.run",
    "Target": "zipbrain.search.targets",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
