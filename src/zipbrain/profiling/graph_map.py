"""A map of a model's graph: every tensor belongs to embedding, head, or a block's attention, pooling or feed-forward.

Runtimes fuse and rename operators but keep the names of the tensors that fused operators leave behind.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from zipbrain.edge.description import OUTPUT
from zipbrain.export.onnx_graph import export_graph, fold, keep_outputs
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams import Observer, instrument, is_compressed, observe
from zipbrain.seams.dialects.base import Attended
from zipbrain.seams.forward import Plan

PARTS: Final = ("embedding", "attention", "pooling", "feed-forward", "head")


class Place(NamedTuple):
    """Where an operator belongs: the block's number from 1, or 0 for what is before and behind all blocks."""

    block: int
    part: str


@dataclass(frozen=True)
class MappedGraph:
    """A graph for any batch, as `zipbrain export` writes it, with the place of every tensor by its name."""

    proto: Any
    places: dict[str, Place]
    blocks: int


def map_graph(model: nn.Module, shape: tuple[int, int]) -> MappedGraph:
    """Export a model for windows of (channels, samples) and any batch; it stays as it is."""
    network = copy.deepcopy(model).to("cpu", torch.float32).eval()
    if not is_compressed(network):
        instrument(network)
    ends = _PartEnds()
    with observe(network, ends):
        marked = export_graph(_WithPartEnds(network, ends), torch.zeros(2, *shape), free_batch=True)
    names = [output.name for output in marked.graph.output][1:]
    ways = list(zip(names, ends.places, strict=True))
    proto = fold(keep_outputs(marked, [OUTPUT]))
    return MappedGraph(proto, _places(marked.graph, ways), max(where.block for _, where in ways))


class _WithPartEnds(nn.Module):
    """A model that also returns the tensors at which one part of a block ends and the next begins."""

    def __init__(self, model: nn.Module, ends: _PartEnds) -> None:
        super().__init__()
        self.model, self.ends = model, ends

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        ends, block = self.ends, 0
        outputs: list[Tensor] = []
        ends.notes.clear()
        ends.places.clear()
        logits = self.model(x)
        for part, tensor in ends.notes:
            block += part == "attention"
            if outputs and outputs[-1] is tensor:  # nothing was done in between, as where nothing is pooled
                continue
            outputs.append(tensor)
            ends.places.append(Place(block, part))
        ends.notes.clear()
        return logits, *outputs


class _PartEnds(Observer):
    """Notes where one part of a block ends; outside of the module, whose own lists torch.export would put back."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Tensor]] = []
        self.places: list[Place] = []  # what ends at every further output, in the order of execution

    def entered(self, plan: Plan, x: Tensor) -> None:
        if not self.notes:
            self.notes.append(("embedding", x))

    def attended(self, index: int, attended: Attended) -> None:
        self.notes.append(("attention", attended.x))

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        self.notes.append(("pooling", pooled.x))

    def fed(self, index: int, x: Tensor) -> None:
        self.notes.append(("feed-forward", x))

    def finished(self, x: Tensor) -> None:
        self.notes.append(("pooling", x))  # un-merging for the readout, where mass asks for it


def _places(graph: Any, ways: list[tuple[str, Place]]) -> dict[str, Place]:
    """The place of every tensor.

    A node belongs to the part that first needs it. What is made beside the tokens that travel on (masses for the
    attention of the next block) is first needed there, but depends on nothing of that block: it is pooling of the block
    it came from.
    """
    order = {name: number for number, (name, _) in enumerate(ways)}
    readers: dict[str, int] = {}  # by tensor, the first part that needs it
    needed: dict[str, int] = {}  # by node output
    for node in reversed(graph.node):
        first = min((order.get(name, readers.get(name, len(ways))) for name in node.output), default=len(ways))
        for name in node.input:
            readers[name] = min(readers.get(name, len(ways)), first)
        needed.update(dict.fromkeys(node.output, first))
    latest: dict[str, int] = {}  # the last part on which a tensor depends
    places = {}
    for node in graph.node:
        last = max((max(latest.get(name, -1), order.get(name, -1)) for name in node.input), default=-1)
        for name in node.output:
            latest[name] = last
            number = needed[name]
            place = ways[number][1] if number < len(ways) else Place(0, "head")
            if 0 <= last < number - 1 and place.part in ("attention", "head"):
                block, part = ways[last][1]
                place = Place(block + (part in ("embedding", "feed-forward")), "pooling")
            places[name] = place
    return places
