"""Search: the paper's two-stage search for a setting, resumable, local or on a cluster (lazy: torch when used)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.search.run": "search SearchStopped",
        "zipbrain.search.result": "SearchResult",
        "zipbrain.search.targets": "Target",
    },
)
