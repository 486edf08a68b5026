"""Time and memory of a model's file: an endless loop ends, no graph fills the memory, and both bounds can be lifted."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from edge import tiny_onnx
from edge.test_predict import save_edf, signal
from zipbrain.cli import main
from zipbrain.edge import EdgeModel, Limits
from zipbrain.edge.archive import predict_archive
from zipbrain.edge.description import Description
from zipbrain.edge.limits import bounded_memory
from zipbrain.edge.predict_batch import predict_many
from zipbrain.errors import ModelFileError, OptionError

X = np.ones((1, 16, 800), dtype=np.float32)
RUNTIMES = ["onnxruntime", "openvino"]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's private memory")


def test_an_endless_loop_is_stopped_and_named(tmp_path: Path) -> None:
    path = tiny_onnx.looping(tmp_path / "m.onnx", 2**62)
    begin = time.perf_counter()
    with pytest.raises(ModelFileError, match=r"1 windows took it more than 0\.5 s.*--time-limit"):
        EdgeModel(path, limits=Limits(seconds=0.5)).logits(X)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("backend", ["sequential", "threading"])
@pytest.mark.parametrize("predict_all", [predict_many, predict_archive])
def test_a_model_that_is_too_slow_ends_the_run_at_the_first_recording(
    predict_all: Callable[..., object], backend: str, tmp_path: Path
) -> None:
    path = tiny_onnx.looping(tmp_path / "m.onnx", 2**62)
    save_edf(tmp_path / "raw" / "0.edf", signal(8))
    for number in range(1, 30):
        os.link(tmp_path / "raw" / "0.edf", tmp_path / "raw" / f"{number}.edf")
    options = {"limits": Limits(seconds=0.5), "backend": backend, "workers": 2}
    begin = time.perf_counter()
    with pytest.raises(ModelFileError, match="--time-limit"):
        predict_all([tmp_path / "raw"], path, tmp_path / "out", **options)
    assert time.perf_counter() - begin < 7  # not 30 times, by one or two workers


def test_a_model_that_was_stopped_runs_again_and_one_that_ends_in_time_is_not_stopped(tmp_path: Path) -> None:
    model = EdgeModel(tiny_onnx.looping(tmp_path / "m.onnx", 10), limits=Limits(seconds=0.5))
    expected = EdgeModel(tiny_onnx.save(tmp_path / "plain.onnx")).logits(X)
    before = threading.active_count()
    for _ in range(3):
        np.testing.assert_array_equal(model.logits(X), expected)
        time.sleep(0.3)  # a timer that is left over would stop a later call
    assert threading.active_count() <= before


@pytest.mark.parametrize("in_branch", [False, True])
def test_openvino_refuses_a_loop_that_it_could_not_stop(in_branch: bool, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = tiny_onnx.looping(tmp_path / "m.onnx", 10, in_branch=in_branch)
    with pytest.raises(ModelFileError, match="OpenVINO can't be stopped in the loop"):
        EdgeModel(path, runtime="openvino")
    trusted = EdgeModel(path, runtime="openvino", limits=Limits(None, None))
    assert np.isfinite(trusted.logits(X)).all()


@needs_linux
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_graph_that_asks_for_too_much_memory_is_refused(runtime: str, constant: bool, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    path = tiny_onnx.large(tmp_path / "m.onnx", 2, constant=constant)
    code = (
        "import re, sys, numpy as np\n"
        "from zipbrain.edge import EdgeModel, Limits\n"
        "try:\n"
        "    EdgeModel(sys.argv[1], runtime=sys.argv[2], threads=1, limits=Limits(memory=2**28))"
        ".logits(np.ones((1, 16, 800)))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path, runtime], capture_output=True, text=True, check=True)
    said, peak = done.stdout.strip().splitlines()
    assert said.startswith("ModelFileError")
    assert "it may add 0.25 GB: raise --memory-limit" in said
    assert int(peak) < 700_000  # kB, of which the runtime itself takes some 150,000


@needs_linux
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_bounds_leave_no_trace(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    path = tiny_onnx.large(tmp_path / "m.onnx", 0.01, constant=False)
    bounded, free = EdgeModel(path, runtime=runtime), EdgeModel(path, runtime=runtime, limits=Limits(None, None))
    np.testing.assert_array_equal(bounded.logits(X), free.logits(X))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@needs_linux
def test_calls_at_the_same_time_share_a_bound() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded_memory(Limits(memory=2**30)):
        shared = resource.getrlimit(resource.RLIMIT_DATA)
        with bounded_memory(Limits(memory=2**32)):
            assert resource.getrlimit(resource.RLIMIT_DATA) == shared
        assert resource.getrlimit(resource.RLIMIT_DATA) == shared != before
        with pytest.raises(MemoryError):
            np.ones(2**31, dtype=np.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_limits_that_are_none_are_refused() -> None:
    wrong = [("seconds", 0), ("seconds", -1.0), ("seconds", 1e300), ("memory", float("nan")), ("memory", "much")]
    for name, value in (*wrong, ("memory", 1e300)):
        with pytest.raises(OptionError, match=rf"limits\.{name}: got"):
            Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("option", ["--time-limit", "--memory-limit"])
def test_limits_of_any_size_are_one_line_or_an_answer(
    option: str, runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(runtime)
    model, recording = tiny_onnx.save(tmp_path / "m.onnx"), save_edf(tmp_path / "a.edf", signal(8))
    command = ["predict", str(recording), "--model", str(model), "--out", str(tmp_path / "out"), "--format", "csv"]
    for value in ("inf", "nan", "-1", "1e300", "1000001"):
        assert main([*command, option, value, "--runtime", runtime]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: Invalid value for '{option}'")
        assert said.count("\n") == 1
    assert main([*command, option, "1000000", "--runtime", runtime]) == 0


def test_a_limit_below_a_byte_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Limits] = []

    def remember(*_: object, limits: Limits, **__: object) -> list[object]:
        given.append(limits)
        return []

    monkeypatch.setattr("zipbrain.edge.predict_batch.predict_many", remember)
    for value in ("1e-12", "0"):
        main(["predict", "a.edf", "--model", "m.onnx", "--out", str(tmp_path), "--memory-limit", value, "--json"])
    assert [limits.memory for limits in given] == [1, None]


def test_a_changed_graph_is_refused_by_its_hash(tmp_path: Path) -> None:
    from zipbrain.edge.onnx_file import graph_sha256

    plain = tiny_onnx.graph(tiny_onnx.description())
    said: Description = tiny_onnx.description(graph_sha256=graph_sha256(plain.SerializeToString()))
    path = tiny_onnx.save(tmp_path / "m.onnx", said)
    assert EdgeModel(path).logits(X).shape == (1, 2)
    content = path.read_bytes()
    place = content.index(numpy_helper.to_array(plain.graph.initializer[1]).tobytes()) + 5
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(ModelFileError, match="not the one that was exported"):
        EdgeModel(path)
