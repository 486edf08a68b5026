"""What things cost: time and memory, measured so that ratios can be trusted, and multiply-adds, counted in two ways."""

from zipbrain.cost.flops import GraphCount, HandCount, hand_flops, onnx_tool_flops
from zipbrain.cost.latency import Timing, interleaved, quantile
from zipbrain.cost.memory import peak_memory

__all__ = [
    "GraphCount",
    "HandCount",
    "Timing",
    "hand_flops",
    "interleaved",
    "onnx_tool_flops",
    "peak_memory",
    "quantile",
]
