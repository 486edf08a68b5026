"""The page at the bedside: a web page over a session's folder, in a process of its own (extra `live`)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.live.page.process": "PageProcess start",
        "zipbrain.live.page.server": "serve",
    },
)
