"""A method and a metric that are registered from outside are in compare, in every table and in the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import matthews_corrcoef

import zipbrain
from training.small import BIOT, windows
from zipbrain import metrics
from zipbrain.evaluation import Store, compare, write_report
from zipbrain.evaluation.tables import best_of
from zipbrain.pooling import Method, registry
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import MergeRule
from zipbrain.pooling.tokens import Tokens
from zipbrain.training import predict


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two registries with one entry more."""
    monkeypatch.setattr(registry, "_PARTS", dict(registry._PARTS))
    before = dict(metrics.METRICS)

    @registry.register("backwards")
    @dataclass(frozen=True)
    class Backwards(Method):
        """ToMe by another name."""

        title = "Backwards"

        def __call__(self, tokens: Tokens) -> Grouping:
            return zipbrain.ToMe()(tokens)

        def merge_rule(self, tokens: Tokens) -> MergeRule:
            return zipbrain.ToMe().merge_rule(tokens)

        @property
        def reads(self) -> frozenset[str]:
            return zipbrain.ToMe().reads

        def limit(self, n: int) -> int:
            return zipbrain.ToMe().limit(n)

    @metrics.register("matthews", "Matthews correlation", "MCC", form=".2f")
    def matthews(given: metrics.Checked) -> float:
        return float(matthews_corrcoef(given.labels, given.predictions))

    @metrics.register("wrong", "share of errors", "Wrong", kind="table", larger_is_better=False)
    def wrong(tables: np.ndarray) -> np.ndarray:
        return 1 - metrics.METRICS["accuracy"].function(tables)

    yield
    metrics.METRICS.clear()
    metrics.METRICS.update(before)


@pytest.mark.usefixtures("extended")
def test_a_method_and_a_metric_from_outside_are_in_compare_and_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, split = zipbrain.models.BIOT(3, 3, 400, **BIOT).eval(), windows(40, 3)
    split.subjects = np.arange(40) % 8
    options = {"methods": ["tome", "backwards"], "ratios": [0.4], "mass": "off", "latency": False, "device": "cpu"}
    found = compare(model, split, store=Store(tmp_path / "results"), **options)
    original, tome, ours = found.rows
    assert (ours.label, ours.method) == ("Backwards", "backwards")
    assert ours.scores == tome.scores
    expected = matthews_corrcoef(split.labels, metrics.decisions(predict(model, split, device="cpu")))
    assert original.scores["matthews"] == expected
    low, high = original.intervals["matthews"]
    assert low <= expected <= high
    assert original.scores["wrong"] == 1 - original.scores["accuracy"]
    accuracy = found.tables()[0]
    assert accuracy.columns[-2:] == ("MCC", "Wrong")
    assert accuracy.rows[0][-2] == f"{expected:.2f}"
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert float(lines[0]["matthews"]) == expected
    assert {"matthews_low", "wrong_high"} <= lines[0].keys()
    assert "MCC" in found.to_markdown()
    assert "MCC" in found.to_latex()

    write_report(tmp_path / "results", tmp_path / "report")
    for name in ("report.html", "report.md", "report.tex"):
        text = (tmp_path / "report" / name).read_text(encoding="utf-8")
        assert "Matthews correlation" in text
        assert "Backwards" in text
    stored = list(csv.DictReader(io.StringIO((tmp_path / "report" / "report.csv").read_text())))
    assert float(stored[0]["matthews"]) == expected
    assert stored[2]["label"] == "Backwards"


def test_a_metric_that_falls_marks_its_smallest_value() -> None:
    assert best_of([0.3, 0.1, 0.2], larger_is_better=False) == {1}


def test_scores_of_a_metric_that_is_not_registered_here_are_still_shown(tmp_path: Path) -> None:
    record = {
        "kind": "compare",
        "ratio": None,
        "recipe": None,
        "label": "Original",
        "scores": {"kappa": 0.5, "odd": 0.2},
    }
    Store(tmp_path / "results").add({"key": "a", **record})
    write_report(tmp_path / "results", tmp_path / "report")
    assert "0.5000" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_results_stored_without_a_metric_are_scored_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model, split = zipbrain.models.BIOT(3, 3, 400, **BIOT).eval(), windows(40, 3)
    options = {"methods": ["tome"], "ratios": [0.4], "mass": "off", "latency": False, "device": "cpu"}
    before = compare(model, split, store=Store(tmp_path), intervals=False, **options)
    request.getfixturevalue("extended")
    after = compare(model, split, store=Store(tmp_path), intervals=False, **options)
    assert all("matthews" not in row.scores for row in before.rows)
    assert all("matthews" in row.scores for row in after.rows)
