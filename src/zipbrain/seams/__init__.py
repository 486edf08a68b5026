"""Where models are cut open: between attention and feed-forward of every transformer block."""

from zipbrain.seams.compress import compress, cut_open, instrument, is_compressed, restore, summary
from zipbrain.seams.dialects.base import Attended, Dialect, Seam, register_dialect, register_seam
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss
from zipbrain.seams.observe import Observer, observe, trace

__all__ = [
    "MATCH",
    "NO_MATCH",
    "Attended",
    "Dialect",
    "Observer",
    "Recognition",
    "Seam",
    "compress",
    "cut_open",
    "instrument",
    "is_compressed",
    "near_miss",
    "observe",
    "register_dialect",
    "register_seam",
    "restore",
    "summary",
    "trace",
]
