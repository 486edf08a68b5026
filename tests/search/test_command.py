"""`zipbrain search`: real runs of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zipbrain
from search import small
from zipbrain import jobs
from zipbrain.cli import main
from zipbrain.search import scorer
from zipbrain.search.space import Point

FEW = [Point("x", "q", "x", rho) for rho in (0.0, 0.5, 1.0)] + [Point("v", "k", "x", rho) for rho in (0.0, 0.5, 1.0)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "stage_1", lambda: list(FEW))


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    model, data = small.checkpoint(tmp_path / "model"), small.prepared(tmp_path / "data")
    out = ["--out", str(tmp_path / "out"), "--device", "cpu", "--backend", "sequential"]
    return ["search", str(model), "--data", str(data), *out]


def test_a_search_prints_its_table_and_writes_its_files(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "BIOT on toy, chosen on validation: 24 windows" in said
    assert "30 of 30 results" in said
    assert "On the test split, scored once" in said
    (folder,) = (tmp_path / "out").glob("search-biot-toy-max-val-*")
    assert {path.name for path in folder.iterdir()} == {"ranking.csv", "recipe.json", "heatmap.png", "heatmap.svg"}
    model = zipbrain.compress(zipbrain.from_pretrained(tmp_path / "model"), str(folder / "recipe.json"))
    assert zipbrain.summary(model).method["name"] == "zipbrain"

    assert main([*arguments, "--split", "test", "--mass", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["select_on"], found["mass"], found["complete"], found["test"]) == ("test", True, True, None)
    assert found["recipe"]["split"] == "test"
    assert len(found["ranking"]) == 10
    assert Path(found["files"]["ranking.csv"]).parent.name.startswith("search-biot-toy-max-mass-test-")


def test_a_target_out_of_reach_is_code_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--target", "latency<=0.00001", "--ratios", "max"]) == 1
    assert "no recipe meets latency<=1e-05" in capsys.readouterr().out


def test_a_search_that_stops_shows_a_partial_table_and_code_one(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dies(function: Any, items: Any, **options: Any) -> Any:
        yield 0, function(items[0])
        raise jobs.JobsFailed("the cluster is gone")

    with monkeypatch.context() as patch:
        patch.setattr(scorer, "run_jobs", dies)
        assert main(arguments) == 1
    said = capsys.readouterr()
    assert "PARTIAL, 1 of 30 results" in said.out.replace("\n", " ")
    assert said.err.startswith("error: the cluster is gone")
    assert len(said.err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("out/search-*"))  # files of a whole search are not replaced by a part of one
    with monkeypatch.context() as patch:
        patch.setattr(scorer, "run_jobs", dies)
        assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["complete"] is False
    assert main(arguments) == 0


def test_a_cluster_that_is_not_there_is_one_line_and_code_one(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr(jobs, "_CONNECT", 1.0)
    assert main([*arguments[:-1], "dask", "--scheduler", "tcp://127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in error
    assert len(error.strip().splitlines()) == 1


def test_mistakes_are_one_line_and_code_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lone = small.prepared(tmp_path / "lone", splits=("test",))
    for more, words in (
        (["--ratio", "0.001"], "removes none of the 9 tokens"),
        (["--ratio", "most"], "ratio: got 'most'"),
        (["--target", "fast"], "target: got 'fast'"),
        (["--backend", "cloud"], "loky, threading, dask, ray, sequential"),
        (["--backend", "dask"], "its scheduler's address"),
        (["--data", str(lone)], "--split test"),
        (["--data", str(tmp_path / "none")], "there is no such folder"),
    ):
        assert main([*arguments, *more]) == 2, more
        error = capsys.readouterr().err
        assert words in error, more
        assert len(error.strip().splitlines()) == 1, error


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    assert "zipbrain search runs/eegmat --data windows/eegmat" in " ".join(capsys.readouterr().out.split())
