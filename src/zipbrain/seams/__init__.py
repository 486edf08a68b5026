"""Where models are cut open: between attention and feed-forward of every transformer block."""

from zipbrain.seams.base import Attended, Seam, register_seam
from zipbrain.seams.compress import compress, is_compressed, restore, summary, trace

__all__ = ["Attended", "Seam", "compress", "is_compressed", "register_seam", "restore", "summary", "trace"]
