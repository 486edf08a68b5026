"""`zipbrain report`, from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from zipbrain.cli import main
from zipbrain.evaluation.store import Store
from zipbrain.models import create
from zipbrain.pretrained import save_pretrained


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with the result of one uncompressed and one compressed model."""
    task = {"model": "BIOT", "dataset": "synthetic-events", "split": "test", "classes": list("abcdef"), "windows": 9}
    recipe = {"format": 1, "method": {"name": "zipbrain"}, "schedule": {"name": "ratio", "ratio": 0.6}}
    store = Store(tmp_path / "results")
    for key, label, ratio, how in (("a", "Original", None, None), ("b", "ZIPBrain", 0.6, recipe)):
        scores = {"kappa": 0.3, "accuracy": 0.4}
        more = {"removed": ratio or 0.0, "token_counts": [10, 7, 4] if ratio else [10, 10, 10]}
        store.add({"key": key, "kind": "compare", "label": label, "ratio": ratio, "task": task, "recipe": how,
                   "scores": scores, "agreement": 0.9, "logit_error": 0.1, **more})  # fmt: skip
    return store.folder


def test_it_writes_and_names_its_files(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(results), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["records"] == 2
    assert all(Path(path).is_file() for path in told["files"])
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "holds no results.jsonl"),
        (["{results}", "--data", "synthetic-events"], "need CHECKPOINT (the model) too"),
        (["{results}", "x"], "need --data too"),
        (["{results}", "--checkpoint", "x"], "it belongs to --model"),
        (["{results}", "--example", "-1"], "example"),
    ],
)
def test_what_was_asked_wrong_is_told_in_one_line(
    arguments: list[str], words: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(results=results) for argument in arguments]
    assert main(["report", *given, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_with_a_checkpoint_and_synthetic_data_pictures_and_purity_come_too(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = create("biot", n_outputs=6, n_chans=16, n_times=1000, dim=16, heads=2, depth=2)
    save_pretrained(model, tmp_path / "run" / "model")
    given = [str(tmp_path / "run"), "--data", "synthetic-events", "--limit", "6", "--device", "cpu"]
    assert main(["report", str(results), "--out", str(tmp_path / "out"), *given]) == 0
    assert "report.html" in capsys.readouterr().out
    names = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"attention-1", "merge-map", "survival", "purity"} <= names
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "Does pooling keep what matters?" in text


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    assert "zipbrain report results --out report" in " ".join(capsys.readouterr().out.split())
