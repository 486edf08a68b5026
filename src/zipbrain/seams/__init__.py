"""Where models are cut open: between attention and feed-forward of every transformer block."""

from zipbrain.seams.compress import compress, is_compressed, restore, summary, trace
from zipbrain.seams.dialects.base import Attended, Seam, register_seam

__all__ = ["Attended", "Seam", "compress", "is_compressed", "register_seam", "restore", "summary", "trace"]
