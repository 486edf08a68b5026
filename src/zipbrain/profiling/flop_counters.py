"""Multiply-adds of a network by three counters that don't agree, each named: by hand, by onnx-tool, by torch."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from zipbrain.export.onnx_graph import fold, quiet
from zipbrain.profiling.flops import GraphCount, count_graph
from zipbrain.profiling.runners import with_batch
from zipbrain.seams import compress, is_compressed, summary, trace
from zipbrain.seams.find import find_chain

COUNTERS: Final = {
    "hand": "by hand: matrix products of the blocks at the tokens that really are there; no embedding, head, softmax, "
    "norm or pooling",
    "onnx-tool": "by onnx-tool: the exported graph, pooling included, with its own weights for softmax, norms and the "
    "like",
    "torch": "by torch's FlopCounterMode, halved: matrix products and convolutions of the eager network",
}
NO_ATTENTION: Final = "torch counts fused attention (SDPA) on this CPU as nothing"


@dataclass(frozen=True)
class Layer:
    """One block: tokens at its attention and at its feed-forward (protected ones included), and their multiply-adds."""

    block: int
    tokens_attention: int
    tokens_feed_forward: int
    attention: int
    feed_forward: int


@dataclass(frozen=True)
class Counts:
    """What one window costs.

    Attributes
    ----------
    parameters : int
    token_counts : tuple of int
        Unprotected tokens before the first block, then after each, as a window really had them.
    layers : tuple of Layer
        The count by hand, block by block, for one sequence of tokens.
    sequences : int
        Sequences of a window: 1, but for EEGPT, which runs one for every patch.
    graph : GraphCount
        onnx-tool's count.
    torch : int
        torch's count.
    """

    parameters: int
    token_counts: tuple[int, ...]
    layers: tuple[Layer, ...]
    sequences: int
    graph: GraphCount
    torch: int

    @property
    def hand(self) -> int:
        """The sum over blocks, for a window."""
        return self.sequences * sum(layer.attention + layer.feed_forward for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "hand": self.hand}


def count(network: nn.Module, shape: tuple[int, int], proto: Any | None) -> Counts:
    """Count the multiply-adds of one window.

    Parameters
    ----------
    network : nn.Module
        Compressed or not, on the CPU; left as it is.
    shape : (int, int)
        Channels and samples of a window.
    proto : onnx.ModelProto or None
        Its float32 graph for any batch, for onnx-tool.
    """
    x = torch.zeros(1, *shape)
    open_network = network if is_compressed(network) else compress(copy.deepcopy(network), "free_slicing", r=0)
    with torch.inference_mode(), trace(open_network) as traced:
        open_network(x)
    counts = tuple(traced.token_counts)
    sequences = int(traced.layers[0].grouping.kept.shape[0])
    found = summary(open_network, counts[0])
    chain = find_chain(network, None)
    size, protected = chain.seam.shape(chain.blocks[0]), found.leading + found.trailing
    layers = tuple(
        Layer(number, before, after, size.attention_macs(before), size.feed_forward_macs(after))
        for number, (before, after) in enumerate(pairwise(n + protected for n in counts), start=1)
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Counts(parameters, counts, layers, sequences, _by_onnx_tool(proto), _by_torch(network, x))


def attention_counts() -> bool:
    """Whether torch's counter sees fused attention here."""
    q = torch.zeros(1, 1, 2, 4)
    return _flops(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)) > 0


def _by_torch(network: nn.Module, x: torch.Tensor) -> int:
    return _flops(lambda: network(x)) // 2


def _flops(call: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def _by_onnx_tool(proto: Any | None) -> GraphCount:
    """Of the graph for one window; a failure is told in words."""
    if proto is None:
        return GraphCount(None, failure="not asked for")
    try:
        import onnx
        import onnx_tool  # noqa: F401

        with quiet():
            fixed = onnx.shape_inference.infer_shapes(fold(with_batch(proto, 1)), strict_mode=True, data_prop=True)
            return count_graph(fixed)
    except ModuleNotFoundError as missing:
        return GraphCount(None, failure=f"{missing.name} is not installed: pip install 'zipbrain[export]'")
    except Exception as error:  # whatever a profiler stumbles over is told, never hidden
        words = (str(error).strip().splitlines() or [""])[0][:200]
        return GraphCount(None, failure=f"counting failed with {type(error).__name__}: {words}")
