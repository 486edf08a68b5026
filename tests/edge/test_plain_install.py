"""The light install: an environment without torch, made from this tree, predicts a real recording."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SHARED
from edge import tiny_onnx

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=environment | options
    )


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the base install alone, made from a copy of this tree."""
    folder = tmp_path_factory.mktemp("light")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "*.so", "__pycache__"))
    assert run(sys.executable, "-m", "venv", folder / "venv").returncode == 0
    python = folder / "venv" / "bin" / "python"
    install = run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", folder)
    unreachable = ("Could not find a version that satisfies the requirement setuptools", "NewConnectionError")
    if install.returncode and any(words in install.stderr for words in unreachable):
        pytest.skip("no package registry can be reached from here, so no environment can be made")
    assert install.returncode == 0, install.stderr
    return python


@pytest.mark.slow
def test_a_light_environment_predicts_a_real_recording(light: Path, tmp_path: Path) -> None:
    recording = SHARED / "data" / "eegmat" / "Subject31_1.edf"
    if not recording.is_file():
        pytest.skip(f"no recording at {recording}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    names = {row["name"].lower() for row in json.loads(run(light, "-m", "pip", "list", "--format", "json").stdout)}
    assert not names & {"torch", "mne", "scipy", "onnx", "scikit-learn", "matplotlib", "joblib", "pandas"}
    model = tiny_onnx.save(tmp_path / "m.onnx")
    done = run(light.with_name("zipbrain"), "predict", recording, "--model", model, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["recordings"]
    assert row["status"] == "done"
    assert set(row["files"]) == {"csv", "edf", "bids", "bids_sidecar", "summary"}
    assert row["summary"]["windows"] == 39
    assert row["summary"]["no_decision"] == 0


@pytest.mark.slow
def test_a_light_environment_is_small_and_quick(light: Path) -> None:
    site = Path(
        run(light, "-c", "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])").stdout.strip()
    )
    tools = ("pip", "setuptools")
    size = sum(p.stat().st_size for p in site.rglob("*") if p.is_file() and p.relative_to(site).parts[0] not in tools)
    code = (
        "import time; t = time.perf_counter(); import zipbrain.edge.model, onnxruntime; print(time.perf_counter() - t)"
    )
    seconds = min(float(run(light, "-c", code).stdout) for _ in range(3))
    print(f"{size / 1e6:.0f} MB installed, {seconds:.2f} s to import")
    assert size < 400e6
    assert seconds < 2


@pytest.mark.slow
def test_commands_that_need_torch_say_so(light: Path) -> None:
    done = run(light.with_name("zipbrain"), "evaluate", "x", "--data", "synthetic-events")
    assert done.returncode == 1
    assert "pip install 'zipbrain[torch,report]'" in done.stderr
    assert "Traceback" not in done.stderr
