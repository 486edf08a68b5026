"""The study's commands: two small networks from training to tables, stopped in between; what its report counts."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fidelity.experiments import train
from benchmarks.study import networks, recipes, report

from zipbrain.data.windows import Windows
from zipbrain.recipe import Recipe
from zipbrain.training import predict

SMALL = '{"epochs": 1, "batch_size": 16, "options": {"depth": 2, "dim": 32, "heads": 2}}'


def given(out: Path, **changes: Any) -> Namespace:
    """The command's options for two small networks."""
    options: dict[str, Any] = {"packs": out, "out": out, "tasks": "events", "models": "biot", "seeds": "20,21"}
    return Namespace(**(options | {"limit": 100, "set": SMALL} | changes))


def train_balanced(job: dict[str, Any], splits: dict[str, Windows]) -> Any:
    """A small network after one epoch, its head moved so that it answers every class."""
    trained = train(job, splits)
    logits = predict(trained.model, splits["tune"])
    head = [module for module in trained.model.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        centre, scale = torch.from_numpy(logits.mean(0)), torch.from_numpy(3 / logits.std(0))
        head.bias.copy_((head.bias - centre) * scale)
        head.weight.mul_(scale[:, None])
    return trained


def test_two_small_networks_come_through_the_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "PROMISES", (0.9,))
    monkeypatch.setattr(recipes, "TIMES", (0.7,))
    monkeypatch.setattr(networks, "train", train_balanced)
    splits = networks.windows_of(networks.jobs(given(tmp_path))[0])  # the same for both networks: they take seconds
    for module in (networks, recipes):
        monkeypatch.setattr(module, "windows_of", lambda job: splits)
    todo = networks.jobs(given(tmp_path))
    assert networks.run_jobs(todo, networks.make, 1, seconds=-1.0) == 0
    assert not [job for job in todo if networks.open_network(job)], "the time was up before anything was begun"
    assert networks.run_jobs(todo, networks.make, 1, None) == 0
    for job in todo:
        job |= {"runtime": "torch", "batch": 8, "rivals": [recipes.OURS, "ToMe"], "jobs": {"backend": "sequential"}}
    assert networks.run_jobs(todo, recipes.study, 1, None) == 0
    done = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*.json")}
    assert networks.run_jobs(todo, recipes.study, 1, None) == 0
    assert {path: path.read_bytes() for path in done} == done, "what is done is not done again"
    report.collect(tmp_path, tmp_path / "results", logits=True)
    rows = report.read_csv("study_networks", tmp_path / "results")
    assert [(row["task"], row["model"], row["seed"]) for row in rows] == [("events", "biot", s) for s in ("20", "21")]
    assert report.read_csv("study_promises", tmp_path / "results")
    assert {row["title"] for row in report.read_csv("study_curves", tmp_path / "results")} == {recipes.OURS, "ToMe"}
    for name in ("events-biot-20", "events-biot-21"):
        facts = json.loads((tmp_path / "runs" / name / "tested.json").read_text())
        with np.load(tmp_path / "results" / "study_logits" / f"{name}.npz") as stored:
            for key, found in facts["results"].items():
                assert recipes.sha256(stored[key]) == found["sha256"]


def test_people_that_recipes_are_tuned_on_are_in_no_other_split(tmp_path: Path) -> None:
    (job, _) = networks.jobs(given(tmp_path))
    splits = networks.windows_of(job)
    tuned = splits["tune"].take(slice(None))
    for name in ("train", "val", "test"):
        other = splits[name].take(slice(None))
        assert not (tuned[:, None, 0, :50] == other[None, :, 0, :50]).all(2).any()


def store_run(folder: Path, name: str, kept: dict[str, list[float]], **changes: Any) -> None:
    """A network's files: agreement of each title at every time."""
    results: dict[str, Any] = {}
    for title, shares in kept.items():
        made = []
        for target, share in zip(report.TIMES, shares, strict=True):
            recipe = Recipe({"name": "tome"}, {"name": "constant", "r": len(results)})
            results[recipe.key()] = {
                "agreement": share,
                "upper": share + 0.01,
                "scores": {"kappa": 0.5},
                "error": 0.1,
                "operations": target,
                "looked": float("nan"),
                "sha256": "0" * 64,
            }
            made.append(
                {
                    "recipe": recipe.to_dict(),
                    "target": target,
                    "time": target,
                    "operations": target,
                    "tokens": 64,
                    "method": "tome",
                    "schedule": "constant",
                }
            )
        path = folder / "runs" / name / f"curve {title}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"recipes": made}))
    facts = {"windows": 100, "subjects": 5, "scores": {"kappa": 0.6}, "right": 70, "usual": 40, "answers": [40, 30, 30]}
    facts |= {"weights": "f" * 64, "runtime": "torch", "batch": 32, "results": results, **changes}
    (folder / "runs" / name / "tested.json").write_text(json.dumps(facts))


def test_networks_at_chance_or_with_one_answer_are_listed_apart_and_not_compared(tmp_path: Path) -> None:
    ours, theirs = [0.97, 0.98, 0.99], [0.92, 0.95, 0.99]
    store_run(tmp_path, "eyes-biot-20", {report.OURS: ours, "ToMe": theirs})
    store_run(tmp_path, "eyes-biot-21", {report.OURS: ours, "ToMe": theirs})
    store_run(tmp_path, "eyes-tfm-20", {report.OURS: ours, "ToMe": [1.0, 1.0, 1.0]}, right=42)
    store_run(tmp_path, "eyes-tfm-21", {report.OURS: ours, "ToMe": [1.0, 1.0, 1.0]}, answers=[98, 1, 1])
    report.collect(tmp_path, tmp_path)
    apart = [row["apart"] for row in report.read_csv("study_networks", tmp_path)]
    assert apart == ["", "", "at chance", "one class"]
    rows = {(row["title"], float(row["target"])): row for row in report.read_csv("study_rivals", tmp_path)}
    for target, gap in zip(report.TIMES, np.subtract(ours, theirs), strict=True):
        row = rows["ToMe", target]
        assert row["networks"] == "2"
        assert float(row["ahead"]) == pytest.approx(gap, abs=1e-4)
        assert float(row["low"]) == pytest.approx(gap, abs=1e-4)
