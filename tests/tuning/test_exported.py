"""The certificate of an exported file is that of its own decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import zipbrain
from zipbrain.data import Synthetic
from zipbrain.errors import OptionError
from zipbrain.metrics import decisions
from zipbrain.training import predict
from zipbrain.tuning.exported import certify_file

pytest.importorskip("onnxscript")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8-dynamic"])
def test_a_file_is_certified_by_its_own_decisions(tmp_path: Path, precision: str) -> None:
    from zipbrain.edge import EdgeModel
    from zipbrain.export import convention_of, export

    torch.manual_seed(0)
    windows = Synthetic("events", n_subjects=10, windows_per_subject=20, montage="bipolar").split("train")
    model = zipbrain.models.BIOT(6, 16, 1000, dim=32, heads=2, depth=2).eval()
    with torch.no_grad():  # so that all classes are answered
        model.head.weight *= 20
        model.head.bias -= torch.from_numpy(predict(model, windows, device="cpu")).mean(0)
    zipbrain.compress(model, "zipbrain", ratio=0.8, second_look=0.5)
    options = {"convention": convention_of(model, windows), "precision": precision, "force": precision != "float32"}
    path = export(model, windows, tmp_path / "m.onnx", **options).path
    found = certify_file(path, windows)
    file, x = EdgeModel(path), windows.take(slice(None))
    before, after = decisions(file.look(x, np.inf)[0]), decisions(file.logits(x))
    assert found.flips == int((before != after).sum())
    assert (found.windows, found.groups, found.precision) == (len(x), 6, precision)
    assert 0 < found.looked_twice < 1
    plain = export(zipbrain.restore(model), windows, tmp_path / "plain.onnx", **options).path
    with pytest.raises(OptionError, match="second look"):
        certify_file(plain, windows)
