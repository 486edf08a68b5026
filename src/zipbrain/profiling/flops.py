"""Multiply-adds of a network: by hand on the shapes of its blocks, and by onnx-tool on its exported graph."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.export.onnx_graph import export_graph, need, need_onnx, quiet
from zipbrain.seams import compress, is_compressed, restore, summary

HAND: Final = "matrix products of the blocks, by hand"
ONNX_TOOL: Final = "exported graph, by onnx-tool"


@dataclass(frozen=True)
class HandCount:
    """Multiply-adds of the matrix products in all blocks, for one sequence of tokens.

    Not in it: patch embedding, head, norms, softmax, and the pooling itself. EEGPT runs one sequence for every patch of
    a window, which changes both numbers by the same factor.

    Attributes
    ----------
    macs, original : int
        As compressed, and with all tokens.
    """

    macs: int
    original: int

    @property
    def saved(self) -> float:
        """Share of the multiply-adds that compression takes away."""
        return 1 - self.macs / self.original


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
        compress(model, "free_slicing", r=0, tokens=tokens)
    try:
        found = summary(model, tokens)
    finally:
        if added:
            restore(model)
    if found.macs is None or found.original_macs is None:
        raise OptionError("tokens", tokens, "the model does not say how many it has: give the number")
    return HandCount(found.macs, found.original_macs)


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
    _check_installed()
    if example.dim() < 1 or example.shape[0] != 1:
        raise OptionError("example", tuple(example.shape), "one window is needed, so that the count is that of one")
    step = "exporting"
    try:
        proto = shaped_graph(model, example)
        step = "counting"
        with quiet():
            return count_graph(proto)
    except Exception as error:  # whatever an exporter or a profiler stumbles over is told, never hidden
        return GraphCount(None, failure=f"{step} failed with {_first_line(error)}")


def shaped_graph(model: nn.Module, example: Tensor) -> Any:
    """The graph as ONNX, constants folded, every shape known."""
    import onnx

    return onnx.shape_inference.infer_shapes(export_graph(model, example), strict_mode=True, data_prop=True)


def count_graph(proto: Any) -> GraphCount:
    """Let onnx-tool count a graph whose shapes are all fixed."""
    import onnx
    from onnx_tool import loadmodel

    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        graph = loadmodel(proto, {"verbose": False}).graph
        for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
            if value.name in graph.tensormap:
                kind = value.type.tensor_type
                unknown = [size for size in kind.shape.dim if not size.HasField("dim_value")]
                if unknown:
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


def _check_installed() -> None:
    need_onnx("Counting FLOPs with onnx-tool")
    need("onnx_tool", "onnx-tool", "export", "Counting FLOPs with onnx-tool")
