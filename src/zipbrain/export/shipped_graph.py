"""A model -> the graph that is shipped, and the same graph with its decisions as further outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from zipbrain.edge.description import KEY, OUTPUT, Description
from zipbrain.edge.onnx_file import graph_sha256
from zipbrain.errors import OptionError
from zipbrain.export.decision_outputs import SOURCE_MAP, WithDecisions
from zipbrain.export.onnx_graph import OPSET, export_graph, fold, keep_outputs
from zipbrain.seams import is_compressed

OUTPUTS: Final = {
    SOURCE_MAP: "for every unprotected token of a window (EEGPT: of every patch), the token it ended in; -1 if dropped"
}


def graphs(
    model: nn.Module, shape: tuple[int, int], *, batch: int | None = None, opset: int = OPSET, groups: bool = False
) -> tuple[Any, Any]:
    """Export a model for windows of (channels, samples) once, as two ONNX graphs.

    The one that is shipped has the output ``logits`` and, with `groups`, ``source_map``; the other one gives logits and
    the integers of `WithDecisions`.
    """
    if groups and not is_compressed(model):
        raise OptionError("groups", groups, "the model is not compressed: every token stays what it is")
    outputs = [OUTPUT, *([SOURCE_MAP] if groups else [])]
    example = torch.zeros(batch or 2, *shape)
    whole = export_graph(WithDecisions(model, groups), example, free_batch=batch is None, opset=opset, outputs=outputs)
    names = [output.name for output in whole.graph.output]
    return fold(keep_outputs(whole, outputs)), keep_outputs(whole, [name for name in names if name != SOURCE_MAP])


def describe(proto: Any, description: Description) -> Description:
    """Write a description with the graph's hash into its metadata, and return it."""
    del proto.metadata_props[:]
    proto.producer_name, proto.producer_version = "zipbrain", description.versions.get("zipbrain", "")
    description = replace(description, graph_sha256=graph_sha256(proto.SerializeToString()))
    proto.metadata_props.add(key=KEY, value=description.to_json())
    return description
