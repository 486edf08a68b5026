"""A model -> the graph that is shipped, and the same graph with its decisions as further outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zipbrain.edge.description import KEY, OUTPUT, Description
from zipbrain.export.decision_outputs import Told
from zipbrain.export.onnx_graph import OPSET, export_graph, fold, keep_outputs


def graphs(
    model: nn.Module, shape: tuple[int, int], *, batch: int | None = None, opset: int = OPSET
) -> tuple[Any, Any]:
    """Export a model once, as two graphs.

    Parameters
    ----------
    model : nn.Module
        Compressed or not.
    shape : (int, int)
        Channels and samples of a window.
    batch : int, optional
        Windows per call; any number if not given.
    opset : int
        At least 18.

    Returns
    -------
    shipped : onnx.ModelProto
        ``eeg`` (batch, C, T) -> ``logits`` (batch, K), with every weight inside.
    told : onnx.ModelProto
        The same, with the integers of `Told` as further outputs.
    """
    example = torch.zeros(batch or 2, *shape)
    told = export_graph(Told(model), example, free_batch=batch is None, opset=opset)
    return fold(keep_outputs(told, [OUTPUT])), told


def describe(proto: Any, description: Description) -> Any:
    """Write a description into the metadata of a graph."""
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=description.to_json())
    proto.producer_name, proto.producer_version = "zipbrain", description.versions.get("zipbrain", "")
    return proto
