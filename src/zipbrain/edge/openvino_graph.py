"""Changes to a graph that OpenVINO needs to answer as PyTorch and ONNX Runtime do, and as fast as it can."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import numpy as np

from zipbrain.edge.description import MARGIN

_WITH_CONSTANTS: Final = ("Add", "Subtract", "Multiply", "Divide", "Power")


def adapt_to_openvino(model: Any) -> float | None:
    """Change an ``openvino.Model`` in place; its meaning stays.

    The margin of a second look, which OpenVINO reads as a constant, becomes the last input; returned is its value.
    """
    for part in graphs_within(model):
        _order_ties(part)
        _shorten(part)
        _keep_from_reductions(part)
    return _free_margin(model)


def graphs_within(model: Any) -> Iterator[Any]:
    """A model and the branches of every `If` in it."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "If":
            yield from graphs_within(node.get_then_body())
            yield from graphs_within(node.get_else_body())
    yield model


def _free_margin(model: Any) -> float | None:
    """The margin of a second look, which becomes an input; None where there is none."""
    constants = [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"]
    for constant in constants:
        if constant.get_friendly_name() == MARGIN:
            margin = import_module("openvino.opset11").parameter([], np.float32, name=MARGIN)
            for reader in constant.output(0).get_target_inputs():
                reader.replace_source_output(margin.output(0))
            model.add_parameters([margin])
            model.validate_nodes_and_infer_types()
            return float(constant.get_data())
    return None


def _order_ties(model: Any) -> None:
    """Let every TopK of an OpenVINO model put equal values in the order of their indices, as ONNX promises."""
    topk = import_module("openvino.opset11").topk
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        said = node.get_attributes()
        order = "value" if said["sort"] == "none" else said["sort"]  # ties have an order only where values have one
        ends = said["axis"], said["mode"], order, said.get("index_element_type", "i64")
        stable = topk(node.input_value(0), node.input_value(1), *ends, stable=True)
        for before, after in zip(node.outputs(), stable.outputs(), strict=True):
            for reader in before.get_target_inputs():
                reader.replace_source_output(after)


def _shorten(model: Any) -> None:
    """Write sums of squares and means over an axis as reductions, which OpenVINO runs several times faster.

    A graph has them as products for ONNX Runtime, where it is the other way round.
    """
    opset = import_module("openvino.opset11")
    for node in model.get_ordered_ops():
        read = node.input_values()
        if node.get_type_name() == "ReduceSum" and _is_square(read[0]):
            norm = opset.reduce_l2(read[0].get_node().input_value(0), read[1], node.get_attributes()["keep_dims"])
            shorter = opset.multiply(norm, norm)
        elif node.get_type_name() == "MatMul" and _is_mean(node):
            shorter = opset.reduce_mean(read[1], np.array([-2]), keep_dims=True)
        else:
            continue
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(shorter.output(0))


def _is_square(output: Any) -> bool:
    """True for a value of floating point multiplied by itself."""
    node = output.get_node()
    if node.get_type_name() != "Multiply" or not output.get_element_type().is_real():
        return False
    one, other = node.input_values()
    return bool(one == other)


def _is_mean(product: Any) -> bool:
    """True for a matrix product with a constant row on the left that averages what is on the right."""
    left, rank = product.input_value(0).get_node(), product.get_input_partial_shape(1).rank
    if left.get_type_name() != "Constant" or any(product.get_attributes().values()):
        return False
    row = left.get_data()
    is_row = row.ndim == 2 and len(row) == 1 and np.allclose(row, 1 / row.size)
    return bool(rank.is_static and rank.get_length() > 1 and is_row)


def _keep_from_reductions(model: Any) -> None:
    """Keep OpenVINO from fusing arithmetic with a constant into the reduction before it.

    Version 2026.4.1 does so wrongly for batches of more than one window, where the constant differs between tokens or
    is an integer. A constant of the shape of the result is not fused.
    """
    opset = import_module("openvino.opset11")
    for node in model.get_ordered_ops():
        if node.get_type_name() not in _WITH_CONSTANTS:
            continue
        for place in (0, 1):
            constant, other = node.input_value(place), node.input_value(1 - place)
            if constant.get_node().get_type_name() != "Constant" or not _is_reduced(other):
                continue
            if constant.get_element_type().is_integral() or np.prod(constant.get_shape()) > 1:
                whole = opset.broadcast(constant, opset.shape_of(other), broadcast_spec="BIDIRECTIONAL")
                node.input(place).replace_source_output(whole.output(0))


def _is_reduced(output: Any) -> bool:
    """True for a value that comes from a reduction through operators that read only it and constants."""
    while True:
        node = output.get_node()
        if node.get_type_name().startswith("Reduce"):
            return True
        read = [value for value in node.input_values() if value.get_node().get_type_name() != "Constant"]
        if len(read) != 1:
            return False
        output = read[0]
