"""What things cost: time and memory, measured so that ratios can be trusted."""

from zipbrain.cost.latency import Timing, interleaved
from zipbrain.cost.memory import peak_memory

__all__ = ["Timing", "interleaved", "peak_memory"]
