"""What a release needs agrees: versions, Python versions, and the commands that workflows call."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import zipbrain

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def test_versions_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert {PROJECT["version"], cited} == {zipbrain.__version__}


def test_workflows_try_every_python_that_is_promised() -> None:
    promised = {word.rsplit(" ", 1)[1] for word in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", word)}
    assert set(WORKFLOWS["tests"]["jobs"]["quick"]["strategy"]["matrix"]["python-version"]) == promised


def test_workflows_call_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]
    called = {word for step in steps for word in re.findall(r"\bmake ([a-z]+)", step.get("run", ""))}
    assert called
    assert called <= targets
