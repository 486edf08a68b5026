"""int8 by NNCF, whose ranges suit OpenVINO. An extra; the file is still one ONNX file and runs in ONNX Runtime too."""

from __future__ import annotations

from typing import Any

from torch import nn

from zipbrain.export.onnx_graph import need, quiet
from zipbrain.export.quantise import Array, batches, block_products


def to_int8_by_nncf(proto: Any, model: nn.Module, *calibration: Array) -> Any:
    """A float32 graph with int8 products in the blocks; scaled windows (n, C, T) fix the ranges of activations.

    A graph with further inputs needs rows for each.

    Only the products of the blocks: with NNCF's own choice of nodes, OpenVINO and ONNX Runtime gave different answers
    to the same file (seen with NNCF 3.4.0 and OpenVINO 2026.4.1).
    """
    need("nncf", "nncf", "openvino", "int8 by NNCF")
    import nncf

    products = set(block_products(proto.graph, model))
    others = [node.name for node in proto.graph.node if node.name not in products]
    bare = type(proto)()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    windows = list(batches(proto, *calibration))
    with quiet():
        data = nncf.Dataset(windows)
        scope = nncf.IgnoredScope(names=others, validate=False)
        found = nncf.quantize(bare, data, subset_size=len(windows), ignored_scope=scope)
    del found.graph.value_info[:]
    return found
