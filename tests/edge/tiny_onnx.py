"""Small ONNX files that describe themselves, made without torch: logits are weighted means of channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from zipbrain.edge.description import INPUT, KEY, LOOKED_TWICE, MARGIN, OUTPUT, Description
from zipbrain.signal.convention import Convention

_SIXTEEN = "FP1 FP2 F3 F4 F7 F8 T3 T4 C3 C4 T5 T6 P3 P4 O1 O2"
_STAGES = "W N1 N2 N3 REM"
STAGES = tuple(_STAGES.split())


def convention(**changes: Any) -> Convention:
    """LaBraM's for EEGMAT: 16 channels, 200 Hz, 4 s every 2 s, x / 100."""
    names = tuple(_SIXTEEN.split())
    values: dict[str, Any] = {
        "model": "labram", "corpus": "eegmat", "montage": names, "ch_names": names, "band": None, "notch": None,
        "cut_sfreq": 200.0, "sfreq": 200.0, "window_s": 4.0, "hop_s": 2.0, "scaling": "hundred",
    }  # fmt: skip
    return Convention(**(values | changes))


def description(**changes: Any) -> Description:
    values: dict[str, Any] = {
        "model": "labram", "classes": ("rest", "arithmetic"), "convention": convention(), "corpus": "eegmat",
        "precision": "float32", "batch": None, "recipe": None, "token_counts": (64, 50), "weights_sha256": "ab" * 32,
        "versions": {"zipbrain": "0.1.0"}, "parity": {"windows": 3, "error": 1e-7}, "trained_on": {"name": "tiny"},
    }  # fmt: skip
    return Description(**(values | changes))


def weights(channels: int, outputs: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(channels, outputs)).astype(np.float32)


def graph(about: Description, outputs: int | None = None, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Mean over time of the absolute signal, times a matrix (C, K)."""
    channels, times = len(about.convention.ch_names), about.convention.n_times
    count = outputs or len(about.classes)
    batch = about.batch or "batch"
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    nodes = [
        helper.make_node("Abs", [INPUT], ["size"]),
        helper.make_node("ReduceMean", ["size", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], [OUTPUT]),
    ]
    tensors = [
        numpy_helper.from_array(np.array([2], dtype=np.int64), "axes"),
        numpy_helper.from_array(weights(channels, count).astype(dtype), "weights"),
    ]
    ends = (
        [helper.make_tensor_value_info(INPUT, kind, [batch, channels, times])],
        [helper.make_tensor_value_info(OUTPUT, kind, [batch, count])],
    )
    model = helper.make_model(
        helper.make_graph(nodes, "tiny", *ends, tensors), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 9
    helper.set_model_props(model, {KEY: about.to_json()})
    return model


def save(path: Path, about: Description | None = None, outputs: int | None = None) -> Path:
    path.write_bytes(graph(about or description(), outputs).SerializeToString())
    return path


def looking_twice(path: Path, margin: float, **about: Any) -> Path:
    """The tiny model with a second look by a network with other weights, `second_weights`."""
    from zipbrain.export.second_look_graph import TOKENS, join_passes

    first, second = graph(description()), graph(description())
    shape = ["batch", 16, 800]
    first.graph.node[0].output[0] = first.graph.node[1].input[0] = TOKENS
    first.graph.output.append(helper.make_tensor_value_info(TOKENS, TensorProto.FLOAT, shape))
    del second.graph.node[0]  # the second look begins with the tokens
    second.graph.node[0].input[0] = TOKENS
    second.graph.input.append(helper.make_tensor_value_info(TOKENS, TensorProto.FLOAT, shape))
    second.graph.initializer[1].CopyFrom(numpy_helper.from_array(second_weights(), "weights"))
    joined = join_passes(first, second, margin)
    ends = {"input": MARGIN, "output": LOOKED_TWICE}
    said = description(outputs={LOOKED_TWICE: "answered twice"}, second_look={"margin": margin, **ends}, **about)
    del joined.metadata_props[:]
    helper.set_model_props(joined, {KEY: said.to_json()})
    path.write_bytes(joined.SerializeToString())
    return path


def second_weights() -> NDArray[np.float32]:
    return weights(16, 2)[:, ::-1].copy() * np.float32(1.1)


def changed(path: Path, nodes: list[onnx.NodeProto], tensors: dict[str, Any]) -> Path:
    """The tiny model with other operators before its last one, which reads ``means``."""
    model = graph(description())
    for node in nodes:
        model.graph.node.insert(2, node)
    model.graph.node[-1].input[0] = "last"
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in tensors.items())
    path.write_bytes(model.SerializeToString())
    return path


def looping(path: Path, rounds: int, *, in_branch: bool = False) -> Path:
    """The tiny model with a loop that changes nothing, in its graph or in a branch of it."""
    ends = [("i", TensorProto.INT64), ("go", TensorProto.BOOL), ("value", TensorProto.FLOAT)]
    inputs = [helper.make_tensor_value_info(name, kind, [] if name != "value" else None) for name, kind in ends]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, [] if name != "value" else None)
               for name, kind in ends[1:]]  # fmt: skip
    steps = [helper.make_node("Identity", ["go"], ["go_out"]), helper.make_node("Abs", ["value"], ["value_out"])]
    body = helper.make_graph(steps, "body", inputs, outputs)
    loop = helper.make_node("Loop", ["rounds", "begin", "means"], ["last"], body=body)
    if in_branch:
        loop.output[0] = "looped"
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("looped", "same")]
        steps = [[loop], [helper.make_node("Identity", ["means"], ["same"])]]
        then, other = (helper.make_graph(nodes, end.name, [], [end]) for nodes, end in zip(steps, ends, strict=True))
        is_large = [
            helper.make_node("If", ["is_large"], ["last"], then_branch=then, else_branch=other),
            helper.make_node("Cast", ["largest"], ["is_large"], to=TensorProto.BOOL),
            helper.make_node("ReduceMax", ["means"], ["largest"], keepdims=0),
        ]
        return changed(path, is_large, {"rounds": np.int64(rounds), "begin": True})
    return changed(path, [loop], {"rounds": np.int64(rounds), "begin": True})


def large(path: Path, gigabytes: float, *, constant: bool) -> Path:
    """A graph with a tensor of this size, that is known when it is loaded or only when it runs."""
    count = int(gigabytes * 2**30 / 4 / 32)
    nodes = [
        helper.make_node("Add", ["means", "rest"], ["last"]),
        helper.make_node("ReduceMax", ["wide", "both"], ["rest"], keepdims=0),
        helper.make_node("Expand", ["one" if constant else "sums", "shape"], ["wide"]),
        helper.make_node("ReduceMax", ["means"], ["sums"], keepdims=0),
    ]
    shape = np.array([count, 32], dtype=np.int64)
    return changed(path, nodes, {"shape": shape, "one": np.float32(0), "both": np.array([0, 1], dtype=np.int64)})
