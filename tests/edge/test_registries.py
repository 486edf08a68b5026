"""A format and a runtime from outside: one class and one registration each, then `predict` uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge import tiny_onnx
from zipbrain.cli import main
from zipbrain.edge import EdgeModel, predict
from zipbrain.edge.description import OUTPUT
from zipbrain.edge.formats import FORMATS, Format, register
from zipbrain.edge.prediction import Prediction
from zipbrain.edge.runtimes import RUNTIMES, OnnxRuntime, Runtime
from zipbrain.edge.runtimes import register as register_runtime
from zipbrain.errors import MissingExtra, OptionError

edfio = pytest.importorskip("edfio")


class Lines(Format):
    name = "lines"

    def file_names(self, stem: str) -> dict[str, str]:
        return {"lines": f"{stem}_zipbrain.lines"}

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        return {"lines": "\n".join(prediction.labels).encode()}


class AlwaysSecond(Runtime):
    name, title, package = "always-second", "Always the second class", "numpy"

    def __init__(self, content: bytes, path: str, *, threads: int) -> None:
        self.label, self.outputs, self.threads = "always-second 1.0", (OUTPUT,), threads
        self.input_shape, self.output_shape = (None, 16, 800), (None, 2)

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        return np.tile(np.array([-1.0, 1.0], np.float32), (len(x), 1))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    names = tiny_onnx.convention().ch_names
    x = 30 * np.random.default_rng(5).normal(size=(len(names), 20 * 200))
    signals = [
        edfio.EdfSignal(row, 200, label=name, physical_dimension="uV") for name, row in zip(names, x, strict=True)
    ]
    edfio.Edf(signals).write(tmp_path / "a.edf")
    return tmp_path / "a.edf"


def test_a_new_format_is_written_and_known_to_the_command(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, Lines.name, FORMATS["csv"])  # taken back after the test
    register(Lines)
    model, out = tiny_onnx.save(tmp_path / "m.onnx"), tmp_path / "out"
    assert main(["predict", str(recording), "--model", str(model), "--out", str(out), "--format", "lines"]) == 0
    found = predict(recording, model)
    assert (out / "a_zipbrain.lines").read_text().split("\n") == found.labels
    assert (out / "a_zipbrain.json").is_file()
    monkeypatch.setattr(Lines, "refusal_of", lambda *_: "it is Sunday")
    with pytest.raises(OptionError, match="formats: got 'lines', but it is Sunday"):
        predict(recording, model, out, formats=["lines"])
    monkeypatch.undo()
    monkeypatch.setitem(FORMATS, Lines.name, Lines())
    monkeypatch.setattr(Lines, "package", "not_there_at_all")
    with pytest.raises(MissingExtra, match="a lines needs not_there_at_all"):
        predict(recording, model, out, formats=["lines"])


def test_a_new_runtime_answers_for_the_model_and_the_command(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUNTIMES, AlwaysSecond.name, OnnxRuntime)  # taken back after the test
    register_runtime(AlwaysSecond)
    model, out = tiny_onnx.save(tmp_path / "m.onnx"), tmp_path / "out"
    found = EdgeModel(model, runtime="always-second", threads=3)
    assert (found.runtime, found._runtime.threads) == ("always-second 1.0", 3)
    assert predict(recording, found).labels == ["arithmetic"] * 9
    command = ["predict", str(recording), "--model", str(model), "--out", str(out), "--format", "csv"]
    assert main([*command, "--runtime", "always-second"]) == 0
    assert "always-second 1.0" in (out / "a_zipbrain.json").read_text()
    with pytest.raises(OptionError, match="Always the second class runs on cpu; take runtime 'onnxruntime' for cuda"):
        EdgeModel(model, runtime="always-second", provider="cuda")


def test_what_was_never_run_is_said_by_the_runtime_itself() -> None:
    assert "never run" in OnnxRuntime.providers["cuda"]
    assert not any(fact for kind in RUNTIMES.values() for place, fact in kind.providers.items() if place == "cpu")
