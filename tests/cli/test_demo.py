"""`zipbrain demo` and what all commands share, as their users meet it: tables, JSON, exit codes, one-line refusals."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import zipbrain
from zipbrain.cli import app, main
from zipbrain.cli.demo import next_commands
from zipbrain.data.synthetic import Synthetic
from zipbrain.errors import DataError
from zipbrain.evaluation.demo import RECIPE, TUNED, copy_model
from zipbrain.weights import fingerprint

METHODS = ["Original", "ZIPBrain", "ToMe", "ToFu", "EViT", "DART", "PiToMe", "Local", "Twins"]
QUICK = ("demo", "--limit", "12", "--ratios", "0.8", "--rounds", "1", "--threads", "1")
MODEL = Path(str(files("zipbrain") / "demo_model"))


def small(task: str, **options: Any) -> Synthetic:
    return Synthetic(task, n_subjects=10, windows_per_subject=9, **options)  # 18 test windows


@pytest.fixture
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipbrain.evaluation.demo.Synthetic", small)
    monkeypatch.setattr("zipbrain.evaluation.report.example.Synthetic", small)


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("zipbrain")
    environment = {**os.environ, "COLUMNS": "40", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.mark.usefixtures("small_corpus")
def test_the_demo_prints_a_table_that_fits_writes_its_files_and_says_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert main(QUICK) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines if line.split()[-1:] in (["115"], ["19"])] == METHODS
    heads = next(line.split() for line in lines if line.startswith(" Method"))
    assert heads[1:] == ["as", "fast", "tions", "unchanged", "racy", "kappa", "left"]
    assert "80 % asked, 83.5 % removed" in said.out
    assert "ZIPBrain with 19 of 115 tokens left keeps" in " ".join(said.out.split())
    assert "1 thread," in " ".join(said.out.split())
    assert "chosen on synthetic-events val" in " ".join(said.out.split())
    told = next_commands(Path("zipbrain-demo/model"), Path("zipbrain-demo"))
    stripped = [line.strip() for line in lines]
    first = stripped.index(told[0])
    assert stripped[first : first + 3] == told
    assert max(map(len, lines[:first] + lines[first + 3 :])) <= 80
    assert "…" not in said.out
    assert "Traceback" not in said.err
    folder = Path("zipbrain-demo")
    assert (folder / "figures" / "merge-map.png").stat().st_size > 10_000
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Does pooling keep what matters?" in page  # the truth of synthetic windows is known
    assert all(name in page for name in METHODS)


@pytest.mark.usefixtures("small_corpus")
def test_json_is_all_of_stdout_and_holds_what_was_measured_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--out", str(tmp_path / "a b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["label"]: row for row in found["rows"]}
    assert [label.split()[0] for label in rows] == [*METHODS, "Tuned"]
    alike = found["rows"][1:-1]
    assert found["threads"] == found["timing"]["threads"] == 1
    assert found["task"]["windows"] == 12
    assert found["task"]["checkpoint"] == found["model"] == str(tmp_path / "a b" / "model")
    assert rows["Original"]["scores"]["accuracy"] >= 0.5  # chance is 1/6
    assert {row["token_counts"][-1] for row in alike} == {19}  # 115 - 12 * round-half-up(0.8 * 115 / 12)
    assert {row["hand"]["macs"] for row in alike} == {rows["ToMe"]["hand"]["macs"]}
    assert all(row["latency"]["to_original"] > 0 for row in found["rows"][1:])
    recipe = zipbrain.Recipe.load(MODEL / RECIPE)
    assert rows["ZIPBrain"]["recipe"]["method"] == recipe.method
    assert all(Path(path).is_file() for path in found["files"])
    assert Path(found["report"]).is_file()
    assert not list(tmp_path.rglob("results.jsonl"))  # a later run finds nothing to repeat
    for command in found["next"]:
        program, name, *given = shlex.split(command)
        assert Path(program).name == "zipbrain"
        typer.main.get_command(app).commands[name].make_context(name, [*given])  # refuses options that there are not
        assert str(tmp_path / "a b" / "model") in given


@pytest.mark.usefixtures("small_corpus")
def test_a_tuned_recipe_beside_the_model_is_measured_and_the_last_line_says_what_it_gains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    recipe = zipbrain.Recipe.load(MODEL / TUNED)
    assert recipe.weights == fingerprint(zipbrain.from_pretrained(MODEL).state_dict())
    assert recipe.promise is not None
    percent = f"{100 * recipe.promise['agree']:g} %"
    assert main([*QUICK, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert max(len(line) for line in lines if "zipbrain " not in line and str(tmp_path) not in line) <= 80
    row = next(line.split() for line in lines if line.startswith(" Tuned"))
    assert row[-1] == str(115 - sum(recipe.schedule["r"]))
    last = " ".join(said.split("\n\n")[-1].split())
    kept = round(float(row[4]) * 12 / 100)
    assert f"with {percent} of the decisions unchanged (promised at 95 % confidence for people like" in last
    assert last.endswith(f"on others, now: {kept} of 12 windows ({100 * kept / 12:.1f} %))")
    assert main([*QUICK, "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tuned = found["rows"][-1]
    assert (tuned["label"], tuned["recipe"]["second_look"]) == ("Tuned", recipe.second_look)
    assert 0 <= tuned["looked"] < 1
    time = tuned["latency"]["to_original"]
    gain = f"{1 / time:.2f} times as fast" if time <= 0.98 else "No faster on this machine,"
    assert found["headline"].startswith(f"{gain} with {percent} of the decisions unchanged")


def test_the_model_that_comes_along_is_whole_float32_once_loaded_and_not_compressed(tmp_path: Path) -> None:
    model = zipbrain.from_pretrained(copy_model(tmp_path / "model"))
    assert not zipbrain.seams.is_compressed(model)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert (MODEL / "model.safetensors").stat().st_size < 12e6
    recipe = zipbrain.Recipe.load(MODEL / RECIPE)
    assert (recipe.dataset, recipe.split, recipe.model) == ("synthetic-events", "val", "LaBraM")
    assert recipe.schedule == {"name": "ratio", "ratio": 0.8}
    searched = json.loads((MODEL / "search.json").read_text())
    assert searched["recipe"] == recipe.to_dict()
    zipbrain.compress(model, recipe)


@pytest.mark.usefixtures("small_corpus")
def test_threads_are_put_back_whatever_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []

    def stop(*given: Any, **options: Any) -> None:
        seen.append(torch.get_num_threads())
        raise DataError("stopped")

    monkeypatch.setattr("zipbrain.evaluation.demo.compare", stop)
    assert main([*QUICK, "--threads", "3", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: stopped\n"
    assert seen == [3]
    assert torch.get_num_threads() == before


def test_another_model_in_the_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "model" / "config.json"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert main([*QUICK, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "model/config.json is another" in said
    assert len(said.splitlines()) == 1
    assert mine.read_text() == "mine"
    assert list(tmp_path.rglob("*.*")) == [mine]


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main([*QUICK, "--out", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert "choose another --out" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--ratios", "2"),
        ("demo", "--ratios", "0.4,-0.1"),
        ("demo", "--ratios", "nan"),
        ("demo", "--ratios", ","),
        ("demo", "--limit", "0"),
        ("demo", "--rounds", "many"),
        ("demo", "--threads", "0"),
        ("demo", "--bogus"),
        ("nonsense",),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_program_passes_its_exit_code_to_the_shell() -> None:
    done = shell("demo", "--ratios", "2")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("package", "extra"), [("torch", "torch,report"), ("matplotlib", "report"), ("sklearn", "report")]
)
def test_without_a_package_one_line_names_the_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert f"pip install 'zipbrain[{extra}]'" in said
    assert len(said.splitlines()) == 1


def test_help_shows_an_example_without_importing_torch() -> None:
    code = "import sys; from zipbrain.cli import main; main(['demo', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "zipbrain demo --ratio" in done.stdout


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{zipbrain.__version__}\n"
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
