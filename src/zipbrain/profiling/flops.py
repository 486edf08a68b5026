"""Multiply-adds by three counters that don't agree: by hand on the blocks' shapes, by onnx-tool, by torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.export.onnx_graph import export_graph, fix_batch, fold, need, need_onnx, quiet
from zipbrain.pooling.flops import second_pass_macs
from zipbrain.seams import instrument, is_compressed, restore, summary, trace
from zipbrain.seams.forward import plan_of
from zipbrain.seams.summary import Summary

COUNTERS: Final = {
    "hand": "By hand: matrix products of the blocks at the tokens that really are there; no embedding, head, softmax, "
    "norm or pooling.",
    "onnx-tool": "By onnx-tool: the exported graph, pooling included, with its own weights for softmax, norms and the "
    "like.",
    "torch": "By torch's FlopCounterMode, halved: matrix products and convolutions of the eager network.",
}
NOT_ASKED: Final = "not asked for"


@dataclass(frozen=True)
class HandCount:
    """Multiply-adds of the matrix products in all blocks, for one sequence of tokens.

    Not in it: patch embedding, head, norms and softmax. EEGPT runs one sequence for every patch of a window, which
    changes all numbers by the same factor.

    Attributes
    ----------
    macs, original : int
        As compressed, without pooling itself, and with all tokens.
    pooling : int
        Grouping and merging.
    again : int
        A second look at one sequence: all tokens, from the first reduction on; 0 without second look.
    """

    macs: int
    original: int
    pooling: int = 0
    again: int = 0

    @property
    def saved(self) -> float:
        """Share of the multiply-adds that compression takes away; pooling itself is not set against it."""
        return 1 - self.macs / self.original

    def operations(self, looked: float = 0.0) -> float:
        """All multiply-adds over the original's: blocks, pooling, and a second look for a share of the windows."""
        return (self.macs + self.pooling + looked * self.again) / self.original


@dataclass(frozen=True)
class GraphCount:
    """What onnx-tool counts in an exported graph for one window.

    Attributes
    ----------
    macs : int or None
        Its total: matrix products and convolutions, and its own weights for softmax, norms and the like, pooling
        included. None if it failed.
    uncounted : tuple of str
        Kinds of operators in the graph that onnx-tool has no rule for and counts as nothing.
    failure : str
        Why there is no count, in words; empty if there is one.
    """

    macs: int | None
    uncounted: tuple[str, ...] = ()
    failure: str = ""

    def saved(self, original: GraphCount) -> float | None:
        """Share of the original's multiply-adds that this graph does without; None if either is unknown."""
        return None if self.macs is None or not original.macs else 1 - self.macs / original.macs


@dataclass(frozen=True)
class BlockCount:
    """One block: tokens at its attention and at its feed-forward (protected ones included), and their multiply-adds."""

    block: int
    tokens_attention: int
    tokens_feed_forward: int
    attention: int
    feed_forward: int


@dataclass(frozen=True)
class Counts:
    """What one window costs, by all three counters."""

    parameters: int
    token_counts: tuple[int, ...]  # unprotected, before the first block, then after each, as a window really had them
    layers: tuple[BlockCount, ...]  # by hand, for one sequence of tokens
    sequences: int  # of a window: 1, but for EEGPT, which runs one for every patch
    graph: GraphCount
    torch: int

    @property
    def hand(self) -> int:
        """The sum over blocks, for a window."""
        return self.sequences * sum(layer.attention + layer.feed_forward for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "hand": self.hand}


def count_window(network: nn.Module, shape: tuple[int, int], proto: Any | None) -> Counts:
    """Count one window of (channels, samples) in a network on the CPU; `proto` is its float32 graph for any batch."""
    x = torch.zeros(1, *shape)
    open_network = network if is_compressed(network) else instrument(copy.deepcopy(network))
    with torch.inference_mode(), trace(open_network) as traced:
        open_network(x)
    counts = tuple(traced.token_counts)
    found = summary(open_network, counts[0])
    size, protected = plan_of(open_network).sized, found.leading + found.trailing
    layers = [
        BlockCount(number, before, after, size.attention_macs(before), size.feed_forward_macs(after))
        for number, (before, after) in enumerate(pairwise(n + protected for n in counts), start=1)
    ]
    if found.tail is not None:  # the last block runs for protected tokens alone
        macs = size.attention_macs(layers[-1].tokens_attention, protected), size.feed_forward_macs(protected)
        layers[-1] = BlockCount(layers[-1].block, layers[-1].tokens_attention, protected, *macs)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sequences = int(traced.layers[0].grouping.kept.shape[0])
    graph, ran = _window_by_onnx_tool(proto), _torch_macs(lambda: network(x))
    return Counts(parameters, counts, tuple(layers), sequences, graph, ran)


def hand_flops(model: nn.Module, tokens: int | None = None) -> HandCount:
    """Count the matrix products of a model's blocks, compressed or not.

    Parameters
    ----------
    model : nn.Module
        Any model that `zipbrain.compress` takes.
    tokens : int, optional
        Unprotected tokens N; the model's own number if not given.
    """
    added = not is_compressed(model)
    if added:
        instrument(model, tokens)
    try:
        found = summary(model, tokens)
    finally:
        if added:
            restore(model)
    if found.macs is None or found.original_macs is None:
        raise OptionError("tokens", tokens, "the model does not say how many it has: give the number")
    again = 0 if added else _macs_again(model, found)
    return HandCount(found.macs, found.original_macs, found.pooling_macs or 0, again)


def _macs_again(model: nn.Module, found: Summary) -> int:
    """Multiply-adds of a second look: the uncompressed blocks without what comes before the first reduction."""
    plan, counts = plan_of(model), found.token_counts
    if plan.second_look is None or counts is None or counts[-1] == counts[0]:
        return 0
    first = next(index for index, (before, after) in enumerate(pairwise(counts)) if after < before)
    return second_pass_macs(plan.sized, counts[0], plan.depth, first, plan.protected, plan.can_run_tail)


def onnx_tool_flops(model: nn.Module, example: Tensor) -> GraphCount:
    """Export a model for one window and let onnx-tool count its graph.

    Constants are folded by ONNX Runtime first and shapes are taken from onnx's own inference, because onnx-tool can't
    follow some operators of pooling; the counting rules are onnx-tool's.

    Parameters
    ----------
    model : nn.Module
        Compressed or not; left as it was.
    example : Tensor (1, C, n_times)
        A scaled window.

    Returns
    -------
    count : GraphCount
        Never raises for what the exporter or onnx-tool can't do: the failure is told in words.
    """
    need_onnx("Counting FLOPs with onnx-tool")
    need("onnx_tool", "onnx-tool", "export", "Counting FLOPs with onnx-tool")
    if example.dim() < 1 or example.shape[0] != 1:
        raise OptionError("example", tuple(example.shape), "one window is needed, so that the count is that of one")
    try:
        proto = export_graph(model, example)
    except Exception as error:  # an exporter's failure is a result here
        return GraphCount(None, failure=f"exporting failed with {_first_line(error)}")
    return _by_onnx_tool(proto)


def _window_by_onnx_tool(proto: Any | None) -> GraphCount:
    """Of a graph for any batch, or None where no count is wanted."""
    if proto is None:
        return GraphCount(None, failure=NOT_ASKED)
    try:
        import onnx_tool  # noqa: F401
    except ModuleNotFoundError as missing:
        return GraphCount(None, failure=f"{missing.name} is not installed: pip install 'zipbrain[export]'")
    return _by_onnx_tool(fold(fix_batch(proto, 1)))


def _by_onnx_tool(proto: Any) -> GraphCount:
    """Of a graph for one window."""
    try:
        with quiet():
            return _profile(shaped(proto))
    except Exception as error:  # a profiler's failure is a result here
        return GraphCount(None, failure=f"counting failed with {_first_line(error)}")


def shaped(proto: Any) -> Any:
    """The same graph with every shape known."""
    import onnx

    return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)


def _profile(proto: Any) -> GraphCount:
    import onnx
    from onnx_tool import loadmodel

    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        graph = loadmodel(proto, {"verbose": False}).graph
        for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
            if value.name in graph.tensormap:
                kind = value.type.tensor_type
                if any(not size.HasField("dim_value") for size in kind.shape.dim):
                    return GraphCount(None, failure=f"the shape of {value.name} in the graph is not fixed")
                tensor = graph.tensormap[value.name]
                tensor.update_shape([size.dim_value for size in kind.shape.dim])
                tensor.update_dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).type)
        graph.valid_shape = True
        graph.profile()
    # "node Round is not registed for profiling, ..."
    named = {str(remark.message).split()[1] for remark in remarks if "for profiling" in str(remark.message)}
    return GraphCount(int(graph.macs[0]), tuple(sorted(named)))


def _first_line(error: BaseException) -> str:
    """Kind and first line of the error at the root of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def torch_sees_attention() -> bool:
    """True if torch's counter sees fused attention on this machine's CPU."""
    q = torch.zeros(1, 1, 2, 4)
    return _torch_macs(lambda: F.scaled_dot_product_attention(q, q, q)) > 0


def _torch_macs(call: Callable[[], object]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2
