"""zipbrain: token pooling that makes EEG foundation models faster, without retraining."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "pool": "zipbrain.pooling",
    "Pooled": "zipbrain.pooling",
    "Grouping": "zipbrain.pooling",
    "Mass": "zipbrain.pooling",
    "ZIPBrain": "zipbrain.pooling",
    "ToMe": "zipbrain.pooling",
    "ToFu": "zipbrain.pooling",
    "EViT": "zipbrain.pooling",
    "DART": "zipbrain.pooling",
    "Twins": "zipbrain.pooling",
    "FreeSlicing": "zipbrain.pooling",
    "ablations": "zipbrain.pooling",
    "compress": "zipbrain.seams",
    "restore": "zipbrain.seams",
    "trace": "zipbrain.seams",
    "summary": "zipbrain.seams",
    "accelerate": "zipbrain.acceleration",
    "Recipe": "zipbrain.recipe",
    "save_pretrained": "zipbrain.pretrained",
    "from_pretrained": "zipbrain.pretrained",
    "ZipbrainError": "zipbrain.errors",
    "OptionError": "zipbrain.errors",
    "UnsupportedModel": "zipbrain.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that `import zipbrain` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zipbrain' has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        from zipbrain.errors import MissingExtra

        raise MissingExtra("torch", "torch", f"zipbrain.{name}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
