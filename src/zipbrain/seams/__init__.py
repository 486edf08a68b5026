"""Where models are cut open: between attention and feed-forward of every transformer block."""

from zipbrain.seams.compress import compress, cut_open, is_compressed, restore, summary
from zipbrain.seams.dialects.base import Attended, Seam, register_seam
from zipbrain.seams.observe import Observer, observe, trace

__all__ = [
    "Attended",
    "Observer",
    "Seam",
    "compress",
    "cut_open",
    "is_compressed",
    "observe",
    "register_seam",
    "restore",
    "summary",
    "trace",
]
