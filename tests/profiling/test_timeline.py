"""Where operators belong, and a timeline that shows it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zipbrain
from export.tiny import biot, network
from zipbrain.export.onnx_graph import export_graph, fix_batch
from zipbrain.profiling.graph_map import PARTS, MappedGraph, Place, map_graph
from zipbrain.profiling.timeline import Track, operator_places, timelines, trace_file

pytest.importorskip("onnxscript")


def kinds(graph: Any) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)


@pytest.fixture(scope="module")
def labram() -> dict[str, MappedGraph]:
    """Two blocks, as they are and pooled."""
    model = network("LaBraM")
    plain = map_graph(model, (3, 400))
    return {"original": plain, "ZIPBrain": map_graph(zipbrain.compress(model, "zipbrain", r=1), (3, 400))}


@pytest.fixture(scope="module")
def tracks(labram: dict[str, MappedGraph]) -> list[Track]:
    x = np.random.default_rng(0).standard_normal((2, 3, 400), np.float32)
    return timelines(labram, x, threads=1, runs=3, warmup=1)


def test_marking_adds_no_operator(labram: dict[str, MappedGraph]) -> None:
    model = zipbrain.compress(network("LaBraM"), "zipbrain", r=1)
    plain = export_graph(model, torch.zeros(2, 3, 400), free_batch=True)
    assert kinds(labram["ZIPBrain"].proto.graph) == kinds(plain.graph)


def test_operators_are_found_in_their_block_and_part(labram: dict[str, MappedGraph]) -> None:
    graph = labram["ZIPBrain"]
    held: dict[Place, Counter[str]] = {}
    for node in graph.proto.graph.node:
        held.setdefault(graph.places[node.output[0]], Counter())[node.op_type] += 1
    assert graph.blocks == 2
    expected = {Place(0, "embedding"), Place(0, "head")}
    expected |= {Place(block, part) for block in (1, 2) for part in ("attention", "pooling", "feed-forward")}
    assert set(held) == expected
    for block in (1, 2):
        assert held[Place(block, "attention")]["Softmax"] == 1
        assert held[Place(block, "feed-forward")]["Erf"] == 1
        assert held[Place(block, "pooling")]["TopK"] == 2
    assert held[Place(0, "embedding")]["Conv"] == 3
    assert held[Place(0, "head")]["Gemm"] == 1


def test_an_uncompressed_network_has_no_pooling(labram: dict[str, MappedGraph]) -> None:
    assert "pooling" not in {place.part for place in labram["original"].places.values()}


def test_masses_for_the_next_block_are_pooling_of_the_block_they_come_from() -> None:
    graph = map_graph(zipbrain.compress(biot(), "zipbrain", ratio=0.6, mass=True), (3, 600))
    logs = [graph.places[node.output[0]] for node in graph.proto.graph.node if node.op_type == "Log"]
    assert logs == [Place(1, "pooling")]  # the first block's attention needs none, and none follows the second
    parts = Counter(place for place in graph.places.values())
    assert all(place.block in (1, 2) for place in parts if place.part == "pooling")


def test_fused_operators_are_found_by_what_they_leave_behind(labram: dict[str, MappedGraph], tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "ran.onnx"), 4
    content = fix_batch(labram["ZIPBrain"].proto, 1).SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ran = onnx.load(tmp_path / "ran.onnx").graph
    places = operator_places(ran, labram["ZIPBrain"].places)
    assert len(places) == len(ran.node)
    gelus = [places[node.name] for node in ran.node if "Gelu" in node.op_type]
    assert [place for place in gelus if place.block] == [Place(1, "feed-forward"), Place(2, "feed-forward")]
    chosen = [places[node.name] for node in ran.node if node.op_type == "TopK"]
    assert chosen == [Place(block, "pooling") for block in (1, 1, 2, 2)]


def test_an_operator_of_the_runtimes_own_stands_with_its_neighbour() -> None:
    from onnx import helper

    nodes = [
        helper.make_node("A", ["x"], ["known"], name="a"),
        helper.make_node("Reorder", ["known"], ["new"], name="b"),
        helper.make_node("Cast", ["elsewhere"], ["newer"], name="c"),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    where = Place(3, "attention")
    assert operator_places(graph, {"known": where}) == {"a": where, "b": where, "c": where}


def test_a_track_is_one_whole_forward(tracks: list[Track]) -> None:
    for track in tracks:
        assert {event.part for event in track.events} <= set(PARTS)
        starts = [event.start for event in track.events]
        assert starts == sorted(starts)
        assert all(event.start >= 0 and event.start + event.duration <= track.duration + 5 for event in track.events)
        assert sum(track.by_place().values()) == pytest.approx(sum(track.by_operator().values()))
        assert sum(track.by_part().values()) <= track.duration * 1.01 + 5
        blocks = [event.block for event in track.events if event.block and event.part == "feed-forward"]
        assert blocks == sorted(blocks)
    assert "pooling" not in tracks[0].by_part()
    assert tracks[1].by_part()["pooling"] > 0
    assert any(pools for _, pools in tracks[1].by_operator())


def test_the_trace_has_a_track_for_each_network_and_a_category_for_pooling(tracks: list[Track]) -> None:
    events = trace_file(tracks)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.split(":")[0] for name in names] == ["original", "ZIPBrain"]
    pooling = [event for event in events if event.get("cat") == "pooling"]
    assert {event["pid"] for event in pooling} == {2}
    assert {"TopK", "pooling"} <= {event["name"] for event in pooling}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
    blocks = [event for event in events if event.get("cat") == "block" and event["pid"] == 1]
    assert [event["name"] for event in blocks] == ["block 1", "block 2"]
    inside = [e for e in events if e.get("cat") == "attention" and e["pid"] == 1 and e["args"].get("block") == 1]
    assert all(blocks[0]["ts"] <= e["ts"] and e["ts"] + e["dur"] <= blocks[0]["ts"] + blocks[0]["dur"] for e in inside)


def test_batches_of_any_size_share_one_graph(labram: dict[str, MappedGraph]) -> None:
    for batch in (1, 3):
        (track,) = timelines(
            {"original": labram["original"]}, np.zeros((batch, 3, 400), np.float32), runs=1, warmup=0
        )  # fmt: skip
        assert track.batch == batch
        assert track.events
