"""A torch model -> one ONNX graph: constants folded, shapes fixed but for the batch, operators that runtimes fuse."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.edge.description import INPUT, OUTPUT
from zipbrain.errors import MissingExtra, OptionError
from zipbrain.files import scratch_folder
from zipbrain.seams.evaluation_mode import evaluation_mode

OPSET: Final = 18
POOLING: Final = "pooling"  # how the names of nodes begin that choose and merge tokens
_BATCH: Final = "batch"
_NOT_YET: Final = ["MatMulAddFusion"]  # left to whoever runs it: quantisation does not see a product inside a Gemm


def export_graph(
    model: nn.Module,
    example: Tensor,
    *others: Tensor,
    free_batch: bool = False,
    opset: int = OPSET,
    inputs: Sequence[str] = (INPUT,),
    outputs: Sequence[str] = (OUTPUT,),
) -> Any:
    """Export a model as an ``onnx.ModelProto`` that holds all of its weights; it is left in the mode it was in.

    The graph has the input ``eeg`` in the shape of the example, or with any number of windows (`free_batch`), for which
    the example must hold at least two; `others` are examples of further `inputs`, with so many rows for every window.
    `outputs` names the first outputs; more of them follow under names of their own.
    """
    need_onnx("Exporting to ONNX")
    if isinstance(opset, bool) or not isinstance(opset, int) or opset < OPSET:
        raise OptionError("opset", opset, f"it must be an integer of at least {OPSET}")
    newest = _newest_opset()
    if opset > newest:
        raise OptionError("opset", opset, f"the installed onnx knows versions up to {newest}")
    if free_batch and example.shape[0] < 2:
        raise OptionError("example", tuple(example.shape), "a free batch needs an example of at least two windows")
    try:
        with evaluation_mode(model), quiet():
            return _tidied(_traced(model, (example, *others), free_batch, opset, (inputs, outputs)))
    except Exception as error:  # ONNX Runtime's errors have no class in common
        if "ValidateOpset" in str(error):
            wish = "the installed ONNX Runtime does not know this version yet: ask for a lower one"
            raise OptionError("opset", opset, wish) from None
        raise


def need_onnx(purpose: str, extra: str = "export") -> None:
    """Refuse where onnx or onnxscript are not installed."""
    for name in ("onnx", "onnxscript"):
        need(name, name, extra, purpose)


def need(module: str, package: str, extra: str, purpose: str) -> None:
    """Refuse where a module can't be imported because its package is not installed."""
    try:
        __import__(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:
            raise
        raise MissingExtra(package, extra, purpose) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter talks a lot; errors still come through as exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _traced(
    model: nn.Module, examples: tuple[Tensor, ...], free_batch: bool, opset: int, ends: tuple[Sequence[str], ...]
) -> Any:
    names: dict[str, Any] = dict(zip(("input_names", "output_names"), map(list, ends), strict=True))
    batch: Any = torch.export.Dim(_BATCH)
    rows = [len(example) // len(examples[0]) for example in examples]  # for every window
    free = tuple({0: batch if count == 1 else count * batch} for count in rows) if free_batch else None
    # torch's own optimiser compares every node with every rule and takes minutes; ONNX Runtime's takes a second.
    how: dict[str, Any] = {"dynamo": True, "optimize": False, "verbose": False, "opset_version": opset}
    with torch.no_grad():
        table = _translations()
        program = torch.onnx.export(
            model, examples, dynamic_shapes=free, custom_translation_table=table, **names, **how
        )
    assert program is not None
    proto = program.model_proto
    made = next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    if made != opset:  # torch only warns where it can't convert a graph
        raise OptionError("opset", opset, f"torch could make version {made} of this model only: ask for that")
    return proto


def _newest_opset() -> int:
    from onnx.defs import onnx_opset_version

    return int(onnx_opset_version())


def _translations() -> dict[Any, Callable[..., Any]]:
    """Operators in the form that ONNX Runtime and OpenVINO recognise and fuse."""
    import onnx_ir
    from onnxscript import opset18 as op

    def gelu(self: Any, approximate: str = "none") -> Any:
        if approximate != "none":
            cubed = op.Mul(op.Mul(self, op.Mul(self, self)), _scalar(0.044715))
            inner = op.Tanh(op.Mul(op.Add(self, cubed), _scalar(math.sqrt(2 / math.pi))))
            return op.Mul(op.Mul(self, op.Add(inner, _scalar(1.0))), _scalar(0.5))
        return op.Mul(op.Mul(self, op.Add(op.Erf(op.Div(self, _scalar(math.sqrt(2)))), _scalar(1.0))), _scalar(0.5))

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if is_causal or enable_gqa:  # of language models; no encoder of EEG has them
            raise NotImplementedError("causal or grouped-query attention has no translation to ONNX here")
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        logits = op.MatMul(op.Mul(query, _scalar(factor)), op.Transpose(key, perm=[0, 1, 3, 2]))
        if attn_mask is not None and attn_mask.dtype == onnx_ir.DataType.BOOL:
            logits = op.Where(attn_mask, logits, _scalar(-math.inf))
        elif attn_mask is not None:
            logits = op.Add(logits, attn_mask)
        return op.MatMul(op.Softmax(logits, axis=-1), value)

    def _scalar(number: float) -> Any:
        return op.Constant(value_float=float(number))

    def _sizes(*sizes: int) -> Any:
        return op.Constant(value_ints=list(sizes))

    def softmax(self: Any, dim: int, dtype: int = -1) -> Any:
        heads, tokens, width = list(self.shape)[1:] if len(self.shape) == 4 else (0, 0, 0)
        if dim != 2 or not all(isinstance(size, int) and size for size in (heads, tokens, width)):
            return op.Softmax(self, axis=dim)
        # Over tokens, as in linear attention. ONNX Runtime moves transposes through a Softmax, which ends in a layout
        # that is ten times slower, but not through a Reshape.
        flat = op.Transpose(op.Reshape(self, _sizes(-1, tokens, width)), perm=[0, 2, 1])
        shares = op.Reshape(op.Softmax(flat, axis=-1), _sizes(-1, heads, width, tokens))
        return op.Transpose(shares, perm=[0, 1, 3, 2])

    aten = torch.ops.aten
    return {
        aten.gelu.default: gelu,
        aten.scaled_dot_product_attention.default: attention,
        aten.softmax.int: softmax,
        aten._softmax.default: softmax,
    }


def fold(proto: Any) -> Any:
    """Let ONNX Runtime fold constants and remove what is superfluous, in ONNX's own operators."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    with scratch_folder() as folder:
        file = folder / "folded.onnx"
        options.optimized_model_filepath = str(file)
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=_NOT_YET
        )
        folded = onnx.load(file)
    _drop_unread(folded.graph)
    # Shapes as they were traced: ONNX's own inference loses some, and a runtime fuses less where it does not know them.
    made = {name for node in folded.graph.node for name in node.output}
    del folded.graph.value_info[:]
    folded.graph.value_info.extend(value for value in proto.graph.value_info if value.name in made)
    onnx.checker.check_model(folded, full_check=True)
    return folded


def keep_outputs(proto: Any, names: Sequence[str]) -> Any:
    """A copy of a graph that computes these outputs only."""
    copied = type(proto)()
    copied.CopyFrom(proto)
    outputs = [output for output in proto.graph.output if output.name in names]
    del copied.graph.output[:]
    copied.graph.output.extend(outputs)
    _drop_unread(copied.graph)
    return copied


def fix_batch(proto: Any, batch: int) -> Any:
    """A copy of a graph whose batch is fixed, so that runtimes know every shape."""
    fixed = type(proto)()
    fixed.CopyFrom(proto)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return fixed


def _tidied(raw: Any) -> Any:
    """Fold constants, fix shapes that only seem to depend on the batch, name nodes after the part they belong to."""
    shapes = {value.name: value.type.tensor_type.shape for value in raw.graph.value_info}
    parts = {name: _part(node) for node in raw.graph.node for name in node.output}
    proto = fold(raw)
    _fix_reshapes(proto.graph, shapes)
    proto = fold(proto)  # what computed shapes is constant now
    proto.doc_string = proto.graph.doc_string = ""
    for number, node in enumerate(proto.graph.node):
        node.name = f"{parts.get(node.output[0], 'graph')}/{node.op_type}_{number}"
        node.doc_string = ""
        del node.metadata_props[:]
    return proto


def _part(node: Any) -> str:
    """The module that a traced node comes from, ``blocks.3.mlp``; in pooling, ``pooling/blocks.3``."""
    told = {entry.key: entry.value for entry in node.metadata_props}
    scopes = re.findall(r"'([^']*)'", told.get("pkg.torch.onnx.name_scopes", ""))[:-1]  # the last is the operator
    module = (scopes[-1] if scopes else "").removeprefix("model.") or "graph"
    return f"{POOLING}/{module}" if _is_pooling(told.get("pkg.torch.onnx.stack_trace", "")) else module


def _is_pooling(stack: str) -> bool:
    """True if the `forward` of a pooling backend is among the frames that torch's exporter noted for an operator."""
    return "pooling/backends" in stack.replace("\\", "/")


def _fix_reshapes(graph: Any, shapes: dict[str, Any]) -> None:
    """Where a Reshape computes its shape because of the batch alone, write the shape down with -1 for the batch."""
    from onnx import numpy_helper

    constants = {value.name for value in graph.initializer}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] in constants or node.output[0] not in shapes:
            continue
        sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in shapes[node.output[0]].dim]
        if sizes.count(-1) != 1 or 0 in sizes:
            continue
        name = f"{node.output[0]}_shape"
        graph.initializer.append(numpy_helper.from_array(torch.tensor(sizes).numpy(), name))
        node.input[1] = name
        del node.attribute[:]  # allowzero


def _drop_unread(graph: Any) -> None:
    """Remove nodes and constants that no output depends on."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    constants = [value for value in graph.initializer if value.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)
