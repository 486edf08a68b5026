"""`zipbrain doctor`: versions, extras, kernels and runtimes as they are, and how to get what is missing."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path

import numpy
import onnxruntime
import pytest

from zipbrain.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_it_names_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["numpy"] == numpy.__version__
    assert found["computes"]["ONNX Runtime"].startswith(f"{onnxruntime.__version__}, on ")
    assert "CPU" in found["computes"]["ONNX Runtime"]
    assert {extra["name"] for extra in found["extras"]} == set(EXTRAS) - {"dev", "docs", "all"}
    assert all(extra["purpose"] for extra in found["extras"])


def test_an_extra_brings_what_its_own_extras_bring() -> None:
    from zipbrain.cli.doctor import packages_of

    assert {"torch", "safetensors", "mne", "pooch"} <= set(packages_of("train"))
    assert packages_of("unheard") == []


def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.metadata as metadata

    version = metadata.version

    def without_mne(package: str) -> str:
        if package == "mne":
            raise metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(metadata, "version", without_mne)
    assert main(["doctor"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "report lacks mne: pip install 'zipbrain[report]'" in said


def test_the_brackets_of_an_extra_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = importlib.import_module("zipbrain.cli.doctor")  # the function of that name hides it
    monkeypatch.setattr(doctor, "_runtimes", lambda: {"OpenVINO": "not here: pip install 'zipbrain[openvino]'"})
    assert main(["doctor"]) == 0
    assert "pip install 'zipbrain[openvino]'" in capsys.readouterr().out.split("extra")[0]
