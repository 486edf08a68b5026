"""Commands that are killed and run again, in short; `python -m tests.killed all` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .measured import content_of, differences

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("blow", ["KILL", "INT"])
def test_a_command_that_is_killed_and_run_again_gives_what_an_unbroken_run_gives(tmp_path: Path, blow: str) -> None:
    command = [sys.executable, "-m", "tests.killed", "prepare", "finetune", "--kills", "3", "--signal", blow]
    said = subprocess.run([*command, "--home", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    rows = [[cell.strip() for cell in line.split("|")] for line in said.stdout.splitlines()[2:]]
    assert [row[1:3] for row in rows] == [["prepare", "3"], ["finetune", "3"]]


def test_only_measured_fields_may_differ(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, seconds, loss in ((one, 1.0, 0.5), (other, 2.0, 0.5)):
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"loss": loss, "inside": [{"seconds": seconds}]}))
        (folder / "log.csv").write_text(f"epoch,loss,seconds\n1,{loss},{seconds}\n")
        (folder / "compare.md").write_text(f"| time to original | AUROC |\n| --: | --: |\n| {seconds} | {loss} |\n")
        (folder / "file.onnx").write_bytes(b"same")
    assert differences(content_of(one), content_of(other)) == []
    for name in ("run.json", "log.csv", "compare.md"):
        (other / name).write_text((other / name).read_text().replace("0.5", "0.6"))
    (other / "file.onnx").write_bytes(b"other")
    (other / ".left.0123abcd.part").touch()
    found = differences(content_of(other), content_of(one))
    assert found == [
        "only here: .left.0123abcd.part",
        *(f"differs: {name}" for name in ("compare.md", "file.onnx", "log.csv", "run.json")),
    ]
