"""Half precision and int8 for an exported graph: the blocks' weights get small, the scores of pooling stay float32."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from zipbrain.errors import OptionError
from zipbrain.export.onnx_graph import POOLING, quiet
from zipbrain.files import scratch_folder
from zipbrain.seams.find import find_chain

DECISIONS: Final = ("TopK", "ArgMax", "ArgMin")  # operators after which a token stays or goes, or a code is taken
_FLOAT_ONLY: Final = ("IsInf",)  # operators that ONNX does not define for float16
_TOGETHER: Final = 8  # windows per call of the calibration where the graph takes any number

Array = NDArray[np.float32]


def exact_nodes(graph: Any) -> set[str]:
    """Names of the nodes that stay in float32: pooling, and what serves nothing but decisions (TFM's tokenizer)."""
    outputs = {value.name for value in graph.output}
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.name)
    found: set[str] = set()
    for node in reversed(graph.node):
        read = [reader for name in node.output for reader in readers.get(name, ())]
        alone = read and not outputs.intersection(node.output) and found.issuperset(read)
        if node.op_type in DECISIONS or alone:
            found.add(node.name)
    return found | {node.name for node in graph.node if node.name.startswith(POOLING)}


def block_products(graph: Any, model: nn.Module) -> list[str]:
    """Names of the matrix products of the model's blocks: nodes that multiply by the weight of one of their layers."""
    from onnx import numpy_helper

    weights = set()
    for block in find_chain(model, None).blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                weight = layer.weight.detach().float().numpy()
                weights |= {weight.tobytes(), weight.T.tobytes()}
    names = {value.name for value in graph.initializer if numpy_helper.to_array(value).tobytes() in weights}
    exact = exact_nodes(graph)
    return [
        node.name
        for node in graph.node
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in names and node.name not in exact
    ]


def to_half(proto: Any) -> Any:
    """The same graph in float16, but for its input, its output and the nodes of `exact_nodes`.

    onnxruntime's own converter writes the same Cast twice where two nodes that stay in float32 share an input.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    half = onnx.shape_inference.infer_shapes(proto)
    graph = half.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    constants = {v.name: v for v in graph.initializer if v.data_type == TensorProto.FLOAT}
    exact = exact_nodes(graph)
    kinds: dict[str, int] = {value.name: TensorProto.FLOAT for value in graph.input}  # of all float values so far
    nodes: list[Any] = []
    copies: dict[str, Any] = {}

    def cast(name: str, kind: int) -> str:
        """The name under which a value is to be had in float16 or float32."""
        if name in constants:
            if kind == TensorProto.FLOAT16 and f"{name}_half" not in copies:
                limits = np.finfo(np.float16)
                small = numpy_helper.to_array(constants[name]).clip(limits.min, limits.max).astype(np.float16)
                copies[f"{name}_half"] = numpy_helper.from_array(small, f"{name}_half")
            return f"{name}_half" if kind == TensorProto.FLOAT16 else name
        if name not in floats or kinds[name] == kind:
            return name
        other = f"{name}_{'half' if kind == TensorProto.FLOAT16 else 'float'}"
        if other not in kinds:
            nodes.append(helper.make_node("Cast", [name], [other], name=f"cast/{other}", to=kind))
            kinds[other] = kind
        return other

    for node in graph.node:
        stays = node.name in exact or node.op_type in _FLOAT_ONLY
        kind = TensorProto.FLOAT if stays else TensorProto.FLOAT16
        for place, name in enumerate(node.input):
            node.input[place] = cast(name, kind) if name else name
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = kind
        kinds |= {name: kind for name in node.output if name in floats}
        nodes.append(node)
    for value in graph.output:
        if kinds.get(value.name) == TensorProto.FLOAT16:
            _rename(nodes, value.name, f"{value.name}_half")
            nodes.append(helper.make_node("Cast", [f"{value.name}_half"], [value.name], to=TensorProto.FLOAT))
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [value for value in (*graph.initializer, *copies.values()) if value.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.checker.check_model(half, full_check=True)
    return half


def _rename(nodes: list[Any], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new


def to_int8(proto: Any, model: nn.Module, *calibration: Array) -> Any:
    """A float32 graph with int8 products in the blocks of the model it was exported from.

    Scaled windows for calibration (n, C, T), and rows for every further input of the graph, fix the ranges of
    activations once (static); without them every call finds its own (dynamic). Weights have 7 bits and a scale for each
    output, so that no instruction set saturates.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    products = block_products(proto.graph, model)
    if not products:
        raise OptionError("precision", "int8", "no matrix product of the model's blocks was found in its graph")
    options: dict[str, Any] = {"op_types_to_quantize": ["MatMul", "Gemm"], "nodes_to_quantize": products}
    options |= {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}
    options |= {"extra_options": {"MatMulConstBOnly": True, "WeightSymmetric": True}}
    with scratch_folder() as folder, _temporary_files_in(folder), quiet():
        whole, file = folder / "float32.onnx", folder / "int8.onnx"
        bare = type(proto)()
        bare.CopyFrom(proto)
        del bare.graph.value_info[:]  # it trips over shapes that name the batch
        onnx.save(bare, whole)  # given as an object, it would be changed
        if not calibration:
            quantize_dynamic(whole, file, **options)
        else:
            options |= {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8}
            quantize_static(whole, file, _Reader(batches(proto, *calibration)), **options)
        found = onnx.load(file)
    del found.graph.value_info[:]
    return found


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Python's temporary files go to a folder: those of ONNX Runtime's quantiser then go with it, even after a kill."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def batches(proto: Any, windows: Array, *others: Array) -> Iterator[dict[str, Array]]:
    """Windows, and rows for further inputs, in batches that a graph takes; a fixed one is filled up with the last."""
    fixed = int(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
    size = fixed or _TOGETHER
    for start in range(0, len(windows), size):
        places = np.arange(start, start + size if fixed else min(start + size, len(windows)))
        places = places.clip(max=len(windows) - 1)
        feed = {}
        for value, given in zip(proto.graph.input, (windows, *others), strict=True):
            apart = given.reshape(len(windows), -1, *given.shape[1:])  # several rows for every window
            feed[value.name] = np.ascontiguousarray(apart[places].reshape(-1, *given.shape[1:]))
        yield feed


class _Reader:
    """What onnxruntime's calibration asks for windows."""

    def __init__(self, feeds: Iterator[dict[str, Array]]) -> None:
        self._feeds = feeds

    def get_next(self) -> dict[str, Array] | None:
        """The next batch, or None after the last."""
        return next(self._feeds, None)
