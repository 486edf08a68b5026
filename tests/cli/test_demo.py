"""The command line as its users meet it: tables, JSON, exit codes, one line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zipbrain
from zipbrain.cli import main
from zipbrain.models import TokenEncoder

TINY = ("demo", "--tokens", "24", "--batch", "2", "--depth", "4", "--rounds", "1", "--threads", "1")
METHODS = ["original", "free slicing", "ZIPBrain", "ToMe", "ToFu", "EViT", "DART"]


def shell(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("zipbrain")
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*TINY, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_installed_program_prints_a_row_for_every_method_and_the_next_step():
    done = shell(*TINY)
    assert done.returncode == 0, done.stderr
    first_words = [line.strip().split("  ")[0] for line in done.stdout.splitlines()]
    assert [word for word in first_words if word in METHODS] == METHODS
    assert "nothing about accuracy" in " ".join(done.stdout.split())
    assert f"torch {torch.__version__}" in " ".join(done.stdout.split())
    assert "zipbrain.compress(model, ZIPBrain(), ratio=0.8)" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal_without_cut_words(columns):
    done = shell(*TINY, columns=columns)
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "…" not in done.stdout


def test_json_is_all_of_stdout_and_holds_every_field(capsys):
    found = run_json(capsys)
    assert found["tokens"] == 24
    assert found["batch"] == 2
    assert found["depth"] == 4
    assert found["threads"] == 1
    assert found["rounds"] == 1
    assert found["weights"] == found["data"] == "random"
    assert isinstance(found["cpu_kernel"], bool)
    assert [row["method"] for row in found["methods"]] == METHODS
    fields = {
        "method", "tokens_left", "fewer_than_asked", "gflop", "ms_per_window", "time_vs_original", "time_vs_slicing",
        "same_answer", "logit_change",
    }  # fmt: skip
    assert all(set(row) == fields for row in found["methods"])


def test_json_numbers_are_those_of_the_models(capsys):
    rows = {row["method"]: row for row in run_json(capsys, "--ratio", "0.5")["methods"]}
    assert rows["original"]["tokens_left"] == 24
    assert rows["original"]["same_answer"] == 1
    assert rows["original"]["logit_change"] == 0
    assert {rows[name]["tokens_left"] for name in METHODS[1:]} == {12}  # 24 - 4 * round-half-up(0.5 * 24 / 4)
    assert rows["original"]["time_vs_original"] == rows["free slicing"]["time_vs_slicing"] == 1
    assert all(row["ms_per_window"] > 0 and 0 <= row["same_answer"] <= 1 for row in rows.values())
    model = zipbrain.compress(TokenEncoder(depth=4), "zipbrain", ratio=0.5, tokens=24)
    cost = zipbrain.summary(model)
    assert rows["ZIPBrain"]["gflop"] == pytest.approx(2e-9 * cost.macs)
    assert rows["original"]["gflop"] == pytest.approx(2e-9 * cost.original_macs)


def test_methods_that_could_not_remove_enough_say_so(capsys):
    rows = {row["method"]: row for row in run_json(capsys, "--ratio", "1")["methods"]}
    assert rows["ToMe"]["fewer_than_asked"]
    assert rows["ToMe"]["tokens_left"] > rows["DART"]["tokens_left"]
    assert not rows["original"]["fewer_than_asked"]
    assert main([*TINY, "--ratio", "1"]) == 0
    assert "fewer than asked could go" in " ".join(capsys.readouterr().out.split())


def test_same_seed_gives_the_same_answers_and_another_seed_others(capsys):
    def changes(seed: str) -> list[float]:
        return [row["logit_change"] for row in run_json(capsys, "--seed", seed)["methods"]]

    assert changes("3") == changes("3") != changes("4")


def test_a_ratio_that_rounds_to_nothing_is_noted_on_stderr(capsys):
    assert main([*TINY, "--ratio", "0.01", "--json"]) == 0
    said = capsys.readouterr()
    assert {row["tokens_left"] for row in json.loads(said.out)["methods"]} == {24}
    assert said.err.startswith("note: ")
    assert len(said.err.splitlines()) == 1


def test_threads_are_one_or_torchs_own_choice_and_put_back_afterwards(capsys):
    before = torch.get_num_threads()
    assert run_json(capsys, "--threads", "2")["threads"] == 2
    assert torch.get_num_threads() == before
    assert main([*TINY[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] in (1, before)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--ratio", "2"),
        ("demo", "--ratio", "-0.1"),
        ("demo", "--ratio", "nan"),
        ("demo", "--tokens", "0"),
        ("demo", "--depth", "many"),
        ("demo", "--threads", "0"),
        ("demo", "--bogus"),
        ("nonsense",),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) == 1


def test_the_program_passes_its_exit_code_to_the_shell():
    done = shell("demo", "--ratio", "2", columns=40)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_without_torch_one_line_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert "pip install 'zipbrain[torch]'" in said
    assert len(said.splitlines()) == 1


def test_help_shows_an_example_without_importing_torch():
    code = "import sys; from zipbrain.cli import main; main(['demo', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "zipbrain demo --tokens" in done.stdout


def test_version_and_bare_call(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{zipbrain.__version__}\n"
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
