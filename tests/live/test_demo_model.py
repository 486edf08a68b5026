"""The demo's exported file comes out of its packed graph and the demo's weights."""

from __future__ import annotations

import numpy as np
import pytest

from zipbrain.edge import EdgeModel
from zipbrain.errors import DataError
from zipbrain.live.demo_model import demo_bytes, pack_demo, unpack_demo


def test_the_demos_file_runs(tmp_path):
    model = EdgeModel(unpack_demo(tmp_path / "demo.onnx"), threads=1)
    assert model.description.looks_twice
    x = np.zeros((1, len(model.description.convention.ch_names), model.description.convention.n_times))
    assert np.isfinite(model.probabilities(x)).all()


def test_packing_is_undone_to_the_byte(monkeypatch, tmp_path):
    import json
    import struct

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(20, 30)).astype("<f2"), rng.normal(size=40).astype("<f2")
    facts = {"one": {"dtype": "F16", "shape": [20, 30], "data_offsets": [0, 1200]}}
    facts["other"] = {"dtype": "F16", "shape": [40], "data_offsets": [1200, 1280]}
    header = json.dumps(facts).encode()
    weights = struct.pack("<Q", len(header)) + header + one.tobytes() + other.tobytes()
    content = b"graph" + one.T.astype("<f4").tobytes() + b"between" + other.astype("<f4").tobytes() + b"end"
    folder = tmp_path / "demo_model"
    folder.mkdir()
    packed = pack_demo(content, weights)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "live.onnx.xz").write_bytes(packed)
    monkeypatch.setattr("zipbrain.live.demo_model.files", lambda name: tmp_path)
    assert len(packed) < len(content) / 2
    assert demo_bytes() == content
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"x")
    with pytest.raises(DataError):
        demo_bytes()
