"""Edge: a recording and one exported file -> decisions, with numpy and ONNX Runtime alone (lazy: neither at import)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_HOMES = {
    "EdgeModel": "zipbrain.edge.model",
    "Description": "zipbrain.edge.description",
    "Convention": "zipbrain.signal.convention",
    "Prediction": "zipbrain.edge.prediction",
    "predict": "zipbrain.edge.predict_one",
    "predict_many": "zipbrain.edge.predict_batch",
    "EDFRecording": "zipbrain.signal.edf",
    "open_edf": "zipbrain.signal.edf",
    "Batch": "zipbrain.signal.cutting",
    "windows": "zipbrain.signal.cutting",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zipbrain.edge' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Room(ModuleType):
    """Importing the submodule `windows` binds it here under its name; `zipbrain.edge.windows` stays the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room
