"""A model -> the graph that is shipped, and the same graph with its decisions as further outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.edge.description import INPUT, KEY, LOOKED_TWICE, MARGIN, OUTPUT, SOURCE_MAP, Description
from zipbrain.edge.onnx_file import graph_sha256
from zipbrain.errors import OptionError
from zipbrain.export.decision_outputs import WithDecisions
from zipbrain.export.onnx_graph import OPSET, export_graph, fold, keep_outputs
from zipbrain.export.second_look_graph import TOKENS, join_passes
from zipbrain.seams import is_compressed
from zipbrain.seams.evaluation_mode import evaluation_mode
from zipbrain.seams.forward import plan_of
from zipbrain.seams.passes import SecondPass, forward_of
from zipbrain.seams.second_look import first_pass

MEANINGS: Final = {
    SOURCE_MAP: "for every unprotected token of a window (EEGPT: of every patch), the token it ended in; -1 if dropped",
    LOOKED_TWICE: "true for a window whose answer comes from the second look, by the uncompressed network",
}


@dataclass(frozen=True)
class Passes:
    """The graphs of a model, in one precision: the first pass, and the second one of a model with a second look."""

    first: Any
    second: Any | None = None
    margin: float = 0.0
    patches: int = 1  # rows of tokens for every window

    def convert(self, change: Callable[[Any], Any], change_second: Callable[[Any], Any] | None = None) -> Passes:
        """The same passes in another precision; the second may need another change."""
        second = None if self.second is None else (change_second or change)(self.second)
        return replace(self, first=change(self.first), second=second)

    def join(self) -> Any:
        """The one graph that is shipped."""
        if self.second is None:
            return self.first
        return join_passes(self.first, self.second, self.margin, self.patches)


def graphs(
    model: nn.Module, shape: tuple[int, int], *, batch: int | None = None, opset: int = OPSET, groups: bool = False
) -> tuple[Any, Any]:
    """Export a model for windows of (channels, samples) once, as two ONNX graphs.

    The one that is shipped has the output ``logits`` and, with `groups`, ``source_map``; the other one gives logits and
    the integers of `WithDecisions`.
    """
    passes, deciding = export_passes(model, shape, batch=batch, opset=opset, groups=groups)
    return passes.join(), deciding


def export_passes(
    model: nn.Module, shape: tuple[int, int], *, batch: int | None = None, opset: int = OPSET, groups: bool = False
) -> tuple[Passes, Any]:
    """The passes of a model as graphs of their own, and the first one with its decisions, see `graphs`."""
    if groups and not is_compressed(model):
        raise OptionError("groups", groups, "the model is not compressed: every token stays what it is")
    example = torch.zeros(batch or 2, *shape)
    tokens = tokens_at_first_reduction(model, torch.zeros(2, *shape))
    outputs = [OUTPUT, *([SOURCE_MAP] if groups else []), *([TOKENS] if tokens is not None else [])]
    deciding = WithDecisions(model, groups, tokens is not None)
    whole = export_graph(deciding, example, free_batch=batch is None, opset=opset, outputs=outputs)
    names = [output.name for output in whole.graph.output]
    first, told = fold(keep_outputs(whole, outputs)), keep_outputs(whole, [OUTPUT, *names[len(outputs) :]])
    if tokens is None:
        return Passes(first), told
    ends: Any = {"inputs": (INPUT, TOKENS), "opset": opset, "free_batch": True}  # any number of windows is doubtful
    second = export_graph(SecondPass(model), torch.zeros(2, *shape), tokens, **ends)
    margin = plan_of(model).second_look
    assert margin is not None
    return Passes(first, second, margin, len(tokens) // 2), told


def tokens_at_first_reduction(model: nn.Module, x: Tensor) -> Tensor | None:
    """What a second look at windows begins with (rows, T, D); None for a model without one, or that removes nothing."""
    if not is_compressed(model) or plan_of(model).second_look is None:
        return None
    with evaluation_mode(model), torch.no_grad():
        return first_pass(plan_of(model), forward_of(model), (x,), {})[1].tokens


def describe_outputs(shipped: Any, passes: Passes) -> dict[str, Any]:
    """What a description says about the outputs of a shipped graph and its second look."""
    names = [output.name for output in shipped.graph.output]
    outputs = {name: MEANINGS[name] for name in names if name != OUTPUT}
    looks = None if passes.second is None else {"margin": passes.margin, "input": MARGIN, "output": LOOKED_TWICE}
    return {"outputs": outputs, "second_look": looks}


def describe(proto: Any, description: Description) -> Description:
    """Write a description with the graph's hash into its metadata, and return it."""
    del proto.metadata_props[:]
    proto.producer_name, proto.producer_version = "zipbrain", description.versions.get("zipbrain", "")
    description = replace(description, graph_sha256=graph_sha256(proto.SerializeToString()))
    proto.metadata_props.add(key=KEY, value=description.to_json())
    return description
