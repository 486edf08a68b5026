"""Exported files: their description, other metadata, bytes of their graph; each is opened and predicts a recording."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.edge import tiny_onnx
from tests.fuzz.harness import Target
from tests.fuzz.json_mutations import change_json
from tests.fuzz.mutations import change_bytes
from tests.fuzz.targets.edf import write

from zipbrain.edge import EdgeModel, Limits, predict
from zipbrain.edge.description import KEY

_PAIR = ("C3", "O1")
_RECIPE = {
    "method": {"name": "zipbrain", "z1": "x", "z2": "v", "z3": "x", "rho": 0.4},
    "schedule": {"name": "ratio", "ratio": 0.8}, "mass": {"attention": True}, "layers": [2, 4], "protected": [1, 0],
}  # fmt: skip
_LIMITS = Limits(seconds=2, memory=300 * 10**6)
_WORDS = ("resampling", "fft", "nearest", "zscore", "q95", "hundred", "int8-static", 50.0, 100, 256.0, [0.001, 1], 4.0)


@cache
def sample() -> bytes:
    """A model of two channels that has everything a description can have."""
    own = tiny_onnx.convention(montage=_PAIR, ch_names=_PAIR, band=(0.5, 40.0), notch=50.0)
    about = tiny_onnx.description(convention=own, recipe=_RECIPE, second_look={"share": 0.1})
    return tiny_onnx.graph(about).SerializeToString()


@cache
def _parts() -> tuple[bytes, dict[str, Any]]:
    """The model without metadata, and its description; without a hash, which would refuse every change at once."""
    import onnx

    model = onnx.load_from_string(sample())
    said = {entry.key: entry.value for entry in model.metadata_props}[KEY]
    del model.metadata_props[:]
    content: dict[str, Any] = json.loads(said)
    del content["sha256"]
    return model.SerializeToString(), content


def mutate(rng: Random) -> bytes:
    """Values of the description changed, or bytes of the metadata or of the whole file."""
    graph, said = _parts()
    way = rng.random()
    if way < 0.8:
        return graph + _entry(KEY, change_json(said, rng, _WORDS))
    if way < 0.9:
        return graph + change_bytes(_entry(KEY, json.dumps(said).encode()), rng)
    return change_bytes(sample() if rng.random() < 0.5 else graph + _entry(KEY, json.dumps(said).encode()), rng)


def _entry(key: str, value: bytes) -> bytes:
    """A field of metadata, number 14 of a model, as protobuf writes it."""
    inside = b"\x0a" + _length(len(key)) + key.encode() + b"\x12" + _length(len(value)) + value
    return b"\x72" + _length(len(inside)) + inside


def _length(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def use(path: Path) -> None:
    recording = path.with_name("night.edf")
    recording.write_bytes(write("edf"))
    model = EdgeModel(path, threads=1, limits=_LIMITS)
    found = predict(recording, model, path.parent / "out", formats=["csv", "edf", "bids"])
    decided = np.array([not flag for flag in found.flags], dtype=bool)
    assert found.probabilities.shape == (len(found.starts), len(model.description.classes))
    assert np.allclose(found.probabilities[decided].sum(axis=1), 1, atol=1e-3)
    for file in (path.parent / "out").glob("*.[ct]sv"):
        for line in file.read_text(encoding="utf-8").splitlines():
            assert line.replace("\t", " ").isprintable(), "control characters in a table"


ONNX = Target(sample, mutate, use, 10_000, ".onnx")
