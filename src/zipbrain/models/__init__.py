"""Models: lean, exportable transformers. Knows nobody."""

from zipbrain.models.encoder import TokenEncoder

__all__ = ["TokenEncoder"]
