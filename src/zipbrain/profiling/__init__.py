"""What things cost: time and memory, measured so that ratios can be trusted, and multiply-adds, counted in two ways."""

from zipbrain.profiling.flops import GraphCount, HandCount, hand_flops, onnx_tool_flops
from zipbrain.profiling.latency import Timing, interleaved, quantile
from zipbrain.profiling.memory import peak_memory

__all__ = ["GraphCount", "HandCount", "Timing", "hand_flops", "interleaved", "onnx_tool_flops", "peak_memory"]
__all__ += ["quantile"]
