"""What `import zipbrain` costs and what it says when torch is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import zipbrain

ROOT = Path(__file__).resolve().parents[1]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_costs_at_most_two_tenths_of_a_second_over_torch() -> None:
    code = "import torch, time; t = time.perf_counter(); import zipbrain; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.2
    used = code.replace("import zipbrain;", "import zipbrain; zipbrain.compress, zipbrain.ZIPBrain;")
    assert min(float(run(used)) for _ in range(3)) < 0.5


def test_import_alone_does_not_import_torch() -> None:
    assert run("import sys, zipbrain; print('torch' in sys.modules)") == "False"


def test_a_missing_torch_is_named_with_the_extra_that_brings_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import zipbrain\n"
        "try: zipbrain.compress\n"
        "except ImportError as error: print(error)"
    )
    assert run(code) == "zipbrain.compress needs torch, which is not installed: pip install 'zipbrain[torch]'"


def test_every_public_name_exists_and_unknown_ones_are_attribute_errors() -> None:
    for name in zipbrain.__all__:
        assert getattr(zipbrain, name) is not None
    assert set(zipbrain.__all__) <= set(dir(zipbrain))
    with pytest.raises(AttributeError, match="no attribute 'zip'"):
        zipbrain.zip  # noqa: B018


def test_every_extra_that_a_message_names_exists() -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert declared == {
        "torch",
        "train",
        "report",
        "export",
        "openvino",
        "live",
        "cluster",
        "hub",
        "archive",
        "all",
        "dev",
        "docs",
    }
    named: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        for names in re.findall(r"zipbrain\[([a-z,]+)\]", text):
            named |= set(names.split(","))
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "MissingExtra":
                extra = call.args[1]
                named |= {extra.value} if isinstance(extra, ast.Constant) else set()
    assert {"torch", "report", "export"} <= named <= declared
