"""zipbrain: token pooling that makes EEG foundation models faster, without retraining."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.pooling": "pool Pooled Grouping Mass ZIPBrain ToMe ToFu EViT DART PiToMe LocalMerging Twins "
        "WardPairs FreeSlicing ablations",
        "zipbrain.seams": "compress restore trace summary",
        "zipbrain.acceleration": "accelerate",
        "zipbrain.tuning": "tune",
        "zipbrain.recipe": "Recipe",
        "zipbrain.pretrained": "save_pretrained from_pretrained push_to_hub",
        "zipbrain.errors": "ZipbrainError OptionError UnsupportedModel",
    },
    modules="models data training evaluation export edge metrics",
)
__all__.append("__version__")
