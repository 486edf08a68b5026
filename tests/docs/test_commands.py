"""README and documentation can be followed: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from conftest import SHARED
from zipbrain.cli import app

from .stand_ins import example_data

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_python_of_the_readme_tunes_and_compresses(tmp_path: Path) -> None:
    code = "\n".join(blocks(README, "python"))
    fewer = code.replace("n_subjects=300, windows_per_subject=10", "seconds=2, n_subjects=60, windows_per_subject=4")
    fewer = fewer.replace("example_model()", "example_model(seconds=2)")
    assert "seconds=2)" in fewer
    assert "seconds=2, n_subjects" in fewer
    shown = fewer + "\nprint(zipbrain.summary(model))"
    run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "12 timm-like blocks" in run.stdout


WHOLE = (  # pages that need nothing else
    *("explanation/" + name for name in ("method", "mass", "seams")),
    *("guides/" + name for name in ("models", "compare", "search", "report", "training")),
)


@pytest.mark.parametrize("page", WHOLE)
def test_the_python_of_a_page_runs(page: str) -> None:
    code = "\n".join(blocks(PAGES[page], "python"))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_python_of_get_started_runs_on_recordings_or_stand_ins(tmp_path: Path) -> None:
    given = SHARED / "data" / "eegmat"
    folder = given if given.is_dir() else example_data.make_stand_ins(tmp_path)
    code = "\n".join(blocks(PAGES["get_started"], "python"))
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ZIPBRAIN_EEGMAT": str(folder)},
    )
    assert run.returncode == 0, run.stderr
    if folder == given:
        printed = {line.strip() for line in run.stdout.splitlines()}
        shown = [line.strip() for text in blocks(PAGES["get_started"], "text") for line in text.splitlines()]
        stable = [line for line in shown if not line[:1].isdigit() and "..." not in line]  # counts and times may differ
        assert [line for line in stable if line not in printed] == []


def test_every_zipbrain_command_of_the_pages_has_the_options_it_is_given() -> None:
    text = "\n".join([README, *PAGES.values()])
    shown = re.sub(r"\\\n\s*", "", "\n".join([*blocks(text, "bash"), *blocks(text, "console")]))
    commands = re.findall(r"^(?:\$ )?(zipbrain .*)$", shown, re.MULTILINE)
    assert len(commands) > 10
    for shown_line in commands:
        line = shown_line.partition(" > ")[0]
        if "--install-completion" in line:  # does its work while options are read
            continue
        words, command = shlex.split(line, comments=True)[1:], typer.main.get_command(app)
        while hasattr(command, "commands") and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    texts = [README, (ROOT / "CONTRIBUTING.md").read_text(), *PAGES.values()]
    targets = {target for text in texts for target in re.findall(r"(?:^|`|\$ )make ([a-z]+)", text, re.MULTILINE)}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_every_script_and_result_that_a_page_names_exists() -> None:
    for name, text in {"README": README, **PAGES}.items():
        for path in re.findall(r"(?:tests/)?benchmarks/[a-z_/]+\.(?:py|csv|json|png)", text):
            assert (ROOT / path).is_file(), f"{name}: {path}"
        for module in re.findall(r"python -m (benchmarks\.[a-z_.]+)", text):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"{name}: {module}"


@pytest.mark.parametrize("name", ["CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_the_files_a_reader_looks_for_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200


def test_every_name_of_the_api_page_exists() -> None:
    module, listed = "zipbrain", 0
    for line in PAGES["reference/api"].splitlines():
        if found := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        elif found := re.match(r"   (\w+(?:\.\w+)*)$", line):
            owner: Any = importlib.import_module(module)
            for part in found[1].split("."):
                owner = getattr(owner, part)
            listed += 1
    assert listed > 80
