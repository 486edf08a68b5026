"""zipbrain: token pooling that makes EEG foundation models faster, without retraining."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

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
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
