"""Data: raw corpora -> labelled windows on disk, or your own arrays -> windows (lazy: no torch, no MNE at import)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_HOMES = {
    "Windows": "zipbrain.data.windows",
    "Prepared": "zipbrain.data.windows",
    "open_prepared": "zipbrain.data.windows",
    "Convention": "zipbrain.signal.convention",
    "convention": "zipbrain.data.conventions",
    "scale": "zipbrain.signal.scaling",
    "prepare": "zipbrain.data.preparation",
    "Report": "zipbrain.data.report",
    "corpus": "zipbrain.data.corpora",
    "Corpus": "zipbrain.data.corpora",
    "Processing": "zipbrain.signal.processing",
    "open_recording": "zipbrain.data.recording",
    "Recording": "zipbrain.data.recording",
    "Synthetic": "zipbrain.data.synthetic",
    "download": "zipbrain.data.download",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zipbrain.data' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Room(ModuleType):
    """Importing the submodule `download` binds it here under its name; `zipbrain.data.download` stays the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room
