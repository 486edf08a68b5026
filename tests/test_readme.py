"""The README stays true: its Python runs, its commands run, its links lead somewhere, its table is the stored one."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def execute(code: list[str]) -> str:
    """Run the blocks of one page one after the other; returns what they print."""
    assert code
    run = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_python_of_the_readme_runs_and_prints_what_its_comments_say() -> None:
    run = execute(blocks(README, "python"))
    assert "12 torch encoder layer blocks" in run
    assert "[230, 215, 200," in run
    assert ", 50]" in run


@pytest.mark.parametrize("page", ["method", "mass", "seams", "models", "compare", "search", "report"])
def test_the_python_of_every_page_of_the_documentation_runs(page: str) -> None:
    execute(blocks((ROOT / "docs" / f"{page}.md").read_text(), "python"))


def test_every_zipbrain_command_of_the_readme_runs(tmp_path: Path) -> None:
    commands = re.findall(r"^\$ (zipbrain .*)$", README, re.MULTILINE)
    assert commands
    for command in commands:
        quick = ["--windows", "12", "--ratios", "0.8", "--rounds", "1"]
        arguments = [sys.executable, "-m", "zipbrain", *command.split()[1:], *quick]
        run = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        assert "ZIPBrain" in run.stdout


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z]+)", README))
    assert {"demo", "test", "bench", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_to_a_file() -> None:
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_the_table_holds_the_stored_figures() -> None:
    stored = ROOT / "benchmarks" / "results" / "overhead.csv"
    with stored.open() as lines:
        rows = {(r["encoder"], r["batch"], r["method"]): r for r in csv.DictReader(lines)}
    for method in ("original", "ZIPBrain", "ToMe", "ToFu", "EViT", "DART"):
        line = re.search(rf"^\| {re.escape(method)} \|(.*)\|$", README, re.MULTILINE)
        assert line, method
        cells = [cell.strip() for cell in line[1].split("|")]
        for cell, (encoder, batch) in zip(
            cells, [("LaBraM", "1"), ("LaBraM", "32"), ("BIOT", "1"), ("BIOT", "32")], strict=True
        ):
            found = rows[encoder, batch, method]
            assert cell == f"{float(found['to_slicing']):.2f} ({float(found['to_original']):.2f})"


@pytest.mark.parametrize("name", ["CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_the_files_a_reader_looks_for_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200
