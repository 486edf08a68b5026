"""`zipbrain compare` and `zipbrain ablate`: real runs of the command line on a small model."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import zipbrain
from zipbrain import Recipe
from zipbrain.cli import main
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.metrics import probabilities, scores
from zipbrain.models import Task
from zipbrain.seal import sealed
from zipbrain.training import finetune, predict, scratch_settings
from zipbrain.training.checkpoints import run_scaling
from zipbrain.training.window_sources import WindowSource
from zipbrain.weights import fingerprint

DATA = ["--data", "synthetic-events", "--device", "cpu"]


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.data.synthetic import Synthetic

    def small(task: str, **options: Any) -> Synthetic:
        return Synthetic(task, n_subjects=8, windows_per_subject=12, seconds=2, **options)

    monkeypatch.setattr("zipbrain.training.window_sources.Synthetic", small)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.manual_seed(0)
    model = zipbrain.models.BIOT(6, 16, 400, dim=16, heads=2, depth=2)
    return str(zipbrain.save_pretrained(model, tmp_path / "run" / "model").parent)


def test_compare_prints_tables_and_writes_every_form(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "results"
    command = ["compare", checkpoint, *DATA, "--methods", "zipbrain,tome", "--ratios", "0.4, max", "--out", str(out)]
    command += ["--rounds", "1", "--latency-batch", "2", "--threads", "1"]
    assert main(command) == 0
    said = capsys.readouterr()
    for words in (
        "Kappa",
        "40 % asked, 41.7 % removed (r = 10)",
        "maximum asked, 72.9 to 95.8 % removed (r = 23)",
        "ZIPBrain + mass",
        "ToMe*",
        "as fast",
        "48→2",
        "48→13",
    ):
        assert words in said.out, words
    assert max(map(len, said.out.splitlines()[:-1])) <= 100  # the last line names the files
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == [
        "compare.csv", "compare.md", "compare.tex", "results.jsonl",
    ]  # fmt: skip
    lines = list(csv.DictReader((out / "compare.csv").open()))
    assert len(lines) == 9
    assert lines[0]["checkpoint"] == checkpoint

    monkeypatch.setattr(Trial, "run", lambda *given: pytest.fail("it was computed already"))
    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    words = "note: the checkpoint does not say what its classes are: those of synthetic-events were taken"
    assert said.err.splitlines() == [words]
    assert len(found["rows"]) == 9
    assert found["task"]["dataset"] == "synthetic-events"
    assert found["timing"]["batch"] == 2
    assert found["rows"][1]["hand"]["saved"] > 0
    assert {record["kind"] for record in Store(out).records()} == {"compare", "latency"}


def test_ablate_prints_tables_and_writes_every_form(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "results"
    command = ["ablate", checkpoint, *DATA, "--ratio", "0.5", "--seeds", "2", "--out", str(out), "--limit", "24"]
    assert main(command) == 0
    said = capsys.readouterr().out
    for words in ("full ZIPBrain", "random grouping", "sd of 2", "least, most", "to full", "regular pivots"):
        assert words in said, words
    assert len(list(csv.DictReader((out / "ablate.csv").open()))) == 7
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["runs"] for row in found["rows"]] == [1, 1, 2, 2, 1, 1, 1]
    assert (out / "ablate.tex").read_text().count("toprule") == 2


def test_a_recipe_is_used_for_zipbrain(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Recipe({"name": "zipbrain", "z1": "k"}, {"name": "maximum"}, model="BIOT").save(tmp_path / "best.json")
    command = [
        "compare",
        checkpoint,
        *DATA,
        "--ratios",
        "0.5",
        "--methods",
        "zipbrain",
        "--no-mass",
        "--no-latency",
    ]
    assert main([*command, "--no-intervals", "--recipe", str(path), "--out", str(tmp_path / "o"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][1]
    assert row["recipe"]["method"]["z1"] == "k"
    assert row["intervals"] == {}
    assert row["latency"] is None


@pytest.fixture
def tuned(checkpoint: str, tmp_path: Path) -> Path:
    weights = fingerprint(zipbrain.from_pretrained(Path(checkpoint) / "model").state_dict())
    schedule = {"name": "allocation", "r": [20, 10], "tokens": 48}
    promise = {"agree": 0.97, "confidence": 0.95}
    recipe = Recipe({"name": "twins"}, schedule, model="BIOT", second_look=0.05, weights=weights)
    return sealed(recipe, promise).save(tmp_path / "tuned.json")


def test_a_tuned_recipe_has_a_row_of_its_own(
    checkpoint: str, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    command = ["compare", checkpoint, *DATA, "--ratios", "0.5", "--methods", "zipbrain", "--no-mass"]
    command += ["--rounds", "1", "--latency-batch", "2", "--threads", "1", "--recipe", str(tuned)]
    command += ["--method-options", "default", "--out", str(tmp_path / "o")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert " Tuned " in said
    assert "as tuned, 62.5 % removed" in said
    assert "twice" in said
    assert "at least 97 % of the decisions unchanged" in " ".join(said.split())
    assert max(map(len, said.splitlines()[:-1])) <= 100
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["label"] for row in rows] == ["Original", "ZIPBrain", "Tuned"]
    assert rows[2]["token_counts"] == [48, 28, 18]
    assert rows[2]["latency"]["to_original"] > 0
    assert 0 <= rows[2]["looked"] <= 1
    assert rows[1]["recipe"]["method"]["name"] == "zipbrain"
    lines = list(csv.DictReader((tmp_path / "o" / "compare.csv").open()))
    assert float(lines[2]["operations"]) == pytest.approx(rows[2]["operations"])
    assert float(lines[2]["looked_twice"]) == rows[2]["looked"]
    assert lines[1]["looked_twice"] == ""


def test_evaluate_says_what_a_recipe_keeps_and_promises(
    checkpoint: str, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", checkpoint, *DATA]
    assert main([*command, "--recipe", str(tuned), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plain, pooled = found["scores"]
    model = zipbrain.from_pretrained(Path(checkpoint) / "model")
    windows = WindowSource("synthetic-events", "biot").split("test")
    trial = Trial(model, windows, device="cpu")
    expected = trial.run(Recipe.load(tuned))
    assert (plain["compression"], plain["operations"], plain["same_answer"]) == ("none", 1.0, None)
    assert pooled["same_answer"] == expected.agreement
    assert pooled["looked_twice"] == expected.looked
    assert pooled["operations"] == expected.operations
    assert pooled["kappa"] == expected.scores["kappa"]
    promised = "at least 97 % of the decisions unchanged (promised at 95 % confidence for people like those it was"
    assert any(promised in note and f"of {len(windows)} windows" in note for note in found["notes"])
    # A model that was saved compressed has the same two rows.
    folder = zipbrain.save_pretrained(zipbrain.compress(model, Recipe.load(tuned)), tmp_path / "saved")
    assert main(["evaluate", str(folder), *DATA, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["scores"]
    assert again == found["scores"]


def test_evaluate_without_a_second_look_has_no_column_for_it(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["evaluate", checkpoint, *DATA, "--ratio", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "unchanged" in said
    assert "twice" not in said


def test_a_recipe_tuned_for_other_weights_is_said_to_be(
    checkpoint: str, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = replace(Recipe.load(tuned), weights="0" * 64).save(tmp_path / "stranger.json")
    assert main(["evaluate", checkpoint, *DATA, "--recipe", str(stranger), "--json"]) == 0
    said = capsys.readouterr()
    assert "note: the recipe was tuned for other weights" in said.err
    assert not any("promised" in note for note in json.loads(said.out)["notes"])


def test_mistakes_are_one_line_and_code_two(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = Recipe({"name": "zipbrain"}, {"name": "maximum"}, model="LaBraM").save(tmp_path / "other.json")
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    one = zipbrain.save_pretrained(zipbrain.models.BIOT(1, 16, 400, dim=16, heads=2, depth=1), tmp_path / "one")
    out = ["--out", str(tmp_path / "out")]
    for arguments, words in (
        (["compare", checkpoint, *DATA, "--ratios", "80"], "0.8 for 80 %"),
        (["compare", checkpoint, *DATA, "--ratios", "0"], "above 0"),
        (["compare", checkpoint, *DATA, "--methods", "tome,tomato"], "known names are"),
        (["compare", checkpoint, *DATA, "--split", "all"], "train, val, test"),
        (["compare", checkpoint, *DATA, "--method-options", "paper"], "no setting for BIOT on synthetic-events"),
        (["compare", checkpoint, *DATA, "--recipe", str(stranger)], "a recipe for LaBraM"),
        (["compare", checkpoint, *DATA, "--recipe", str(damaged)], "damaged"),
        (["compare", checkpoint, *DATA, "--recipe", str(tmp_path / "no.json")], "no such file"),
        (["compare", checkpoint, *DATA, "--recipe", str(stranger), "--method-options", "default"], "give one of them"),
        (["compare", str(tmp_path / "nothing"), *DATA], "no such folder"),
        (["evaluate", checkpoint, *DATA, "--recipe", str(stranger)], "a recipe for LaBraM"),
        (["evaluate", checkpoint, *DATA, "--recipe", str(damaged)], "damaged"),
        (["evaluate", checkpoint, *DATA, "--recipe", str(stranger), "--ratio", "0.5"], "give one of them"),
        (["compare", str(one), *DATA], "the model has 1 output"),
        (["ablate", checkpoint, *DATA, "--ratio", "most"], "or max"),
        (["ablate", checkpoint, *DATA, "--recipe", str(stranger)], "a recipe for LaBraM"),
        (["ablate", checkpoint, "--data", str(tmp_path / "nothing")], "there is no such folder"),
    ):
        assert main([*arguments, *(out if arguments[0] != "evaluate" else [])]) == 2, arguments
        error = capsys.readouterr().err
        assert words in error, (arguments, error)
        assert len(error.strip().splitlines()) == 1, error
    assert not (tmp_path / "out").exists()


def test_windows_of_one_class_are_refused_in_one_line(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", checkpoint, *DATA, "--limit", "1", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "two classes" in error
    assert len(error.strip().splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_named(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    command = ["compare", checkpoint, *DATA, "--methods", "tome", "--ratios", "0.5", "--no-latency"]
    assert main([*command, "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert len(error.strip().splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compare", "ablate"):
        assert main([command, "--help"]) == 0
        assert f"zipbrain {command} runs" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["evaluate", "compare", "ablate", "search"])
@pytest.mark.parametrize("folder", ["run", "run/model"])
def test_windows_are_scaled_as_in_the_run_that_trained_the_model(
    command: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.search import scorer
    from zipbrain.search.space import Point

    monkeypatch.setattr(scorer, "stage_1", lambda: [Point("x", "q", "x", rho) for rho in (0.0, 0.2, 0.5, 0.8)])
    source = WindowSource("synthetic-events", "biot")
    split = source.split("val" if command == "search" else "test")
    chosen = scratch_settings("biot").override(epochs=2, lr=1e-2, options={"dim": 16, "heads": 2, "depth": 2})
    trained = finetune(
        "biot", source.split("train"), settings=chosen, scaling="zscore", out=tmp_path / "run", device="cpu"
    )
    right, usual = (
        scores(split.labels, probabilities(predict(trained.model, split, device="cpu", scaling=scaling)))["kappa"]
        for scaling in ("zscore", None)
    )
    assert abs(right - usual) > 0.01  # else nothing would be seen
    out = [] if command == "evaluate" else ["--out", str(tmp_path / "results")]
    more = {"search": ["--backend", "sequential"], "compare": ["--no-latency", "--methods", "dart", "--ratios", "0.5"]}
    assert main([command, str(tmp_path / folder), *DATA, *out, *more.get(command, []), "--json"]) == 0
    if command == "evaluate":
        found = json.loads(capsys.readouterr().out)["scores"][0]
    else:
        found = next(row for row in Store(tmp_path / "results").records() if row["recipe"] is None)["scores"]
    assert found["kappa"] == pytest.approx(right)


@pytest.mark.parametrize("command", ["evaluate", "compare", "ablate", "search"])
def test_a_model_of_another_task_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = zipbrain.models.BIOT(6, 16, 400, dim=16, heads=2, depth=2)
    task = Task(("W", "N1", "N2", "N3", "REM", "other"), "nights")
    folder = zipbrain.save_pretrained(model, tmp_path / "model", task=task)
    out = [] if command == "evaluate" else ["--out", str(tmp_path / "results")]
    assert main([command, str(folder), *DATA, *out]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "error: data: got 'classes SPSW, GPED, PLED, EYEM, ARTF, BCKG', but the model was trained on nights for W, N1, "
        "N2, N3, REM, other; if these are the same under other names, rename them in the data"
    ]
    assert not (tmp_path / "results").exists()


def test_the_scaling_of_a_run_is_not_that_of_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"scaling": "hundred"}))
    assert run_scaling(tmp_path) == run_scaling(tmp_path / "model") == "hundred"
    assert run_scaling(tmp_path / "other") is None
    for damaged in ("[]", "{}", "{", "3"):
        (tmp_path / "run.json").write_text(damaged)
        assert run_scaling(tmp_path / "model") is None
    task = Task(("a", "b"), scaling="zscore")
    zipbrain.save_pretrained(zipbrain.models.BIOT(1, 2, 400, dim=16, depth=1), tmp_path / "model", task=task)
    assert run_scaling(tmp_path) == run_scaling(tmp_path / "model") == "zscore"  # what lies with the weights
