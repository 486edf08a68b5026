"""The README's install lines run as written in a fresh environment, with the built wheel as their index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = sorted(set(re.findall(r"pip install (?:zipbrain|-e '[^']+')", (ROOT / "README.md").read_text())), key=len)


def run(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A shell line in the environment that lies in the folder."""
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    path = f"{folder / 'venv' / 'bin'}{os.pathsep}{outer['PATH']}"
    return subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, cwd=folder / "checkout",
        env=outer | {"PATH": path} | variables,
    )  # fmt: skip


@pytest.mark.slow
def test_every_install_line_of_the_readme_runs_and_brings_what_its_commands_need(tmp_path: Path) -> None:
    assert "pip install zipbrain" in LINES
    assert len(LINES) >= 4
    kept = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__", "_build", "results")
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=kept)
    assert run(f"{sys.executable} -m venv ../venv", tmp_path).returncode == 0
    index = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    # The newest torch on an index may be a CUDA build of gigabytes: versions are those of constraints.txt.
    index |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    built = run("pip wheel -q --no-deps -w ../wheel .", tmp_path, **index)
    if "NewConnectionError" in built.stderr or "satisfies the requirement setuptools" in built.stderr:
        pytest.skip("no package registry can be reached from here, so no environment can be made")
    assert built.returncode == 0, built.stderr
    for line in LINES:
        done = run(f"{line} -q --find-links ../wheel", tmp_path, **index)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said = run("zipbrain --version", tmp_path)
        assert said.returncode == 0, f"{line}: {said.stderr}"
    demo = run("zipbrain demo --limit 6 --ratios 0.8 --rounds 1 --threads 1 --out ../demo", tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert (tmp_path / "demo" / "report.html").is_file()
