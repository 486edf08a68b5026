"""A command that lacks a package says in one line how to install it, or does without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli import without_packages

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages_of(extra: str) -> set[str]:
    found = set()
    for requirement in EXTRAS[extra]:
        name = re.match(r"[\w-]+", requirement)[0]  # type: ignore[index]
        inner = re.findall(r"zipbrain\[(.+)\]", requirement)
        found |= {name}.union(*(packages_of(one) for names in inner for one in names.split(",")))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    script, folder = Path(without_packages.__file__), tmp_path_factory.mktemp("runs")
    code = f"import sys; sys.path[:0] = {sys.path!r}; sys.argv[1:] = [{str(folder)!r}]; import runpy; "
    code += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    one = os.environ | {"OMP_NUM_THREADS": "1"}  # forked children must not inherit a pool of threads
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=one
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_command_runs_with_all_packages(runs: list[dict[str, Any]]) -> None:
    whole = {run["command"]: run for run in runs if run["without"] is None}
    assert {name: run["said"] for name, run in whole.items() if run["code"] != 0} == {}
    assert len(whole) >= 12


@pytest.mark.slow
def test_a_command_without_a_package_names_an_extra_that_brings_it_or_does_without(runs: list[dict[str, Any]]) -> None:
    poorer = [run for run in runs if run["without"] is not None]
    assert len(poorer) >= 30
    for run in poorer:
        place = f"{run['command']} without {run['without']}: {run['said']}"
        if run["code"] == 0:
            continue
        assert run["code"] == 1, place
        assert "Traceback" not in run["said"], place
        last = run["said"].strip().splitlines()[-1]
        named = re.findall(r"pip install 'zipbrain\[([\w,]+)\]'", last)
        assert len(named) == 1, place
        brought = set().union(*(packages_of(extra) for extra in named[0].split(",")))
        assert without_packages.PACKAGES[run["without"]] in brought, place
