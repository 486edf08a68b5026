"""The paper's printed values: equal to its tables, and never shown without their doubts."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import conftest
from zipbrain.evaluation.paper_results import COPY_ERROR, RATIOS, metrics_of, reported, reported_ablation
from zipbrain.paper import DATASETS, METHODS, MODELS

TABLES = conftest.SHARED / "spec" / "tables"
METRICS = {
    "AUROC": "auroc", "PR-AUC": "pr_auc", "Kappa": "kappa", "W-F1": "weighted_f1", "Acc": "accuracy",
    "BAcc": "balanced_accuracy",
}  # fmt: skip
NAMES = {"Original": "original", "Ours": "zipbrain", "EViT": "evit", "ToMe": "tome", "ToFU": "tofu", "DART": "dart"}
VARIANTS = {
    "Original": "full", "w/ RND Group": "random grouping", "w/ RND Match": "random matching",
    "w/ Simple Merge": "simple merge",
}  # fmt: skip


def read(name: str) -> list[dict[str, str]]:
    table = TABLES / name
    if not table.is_file():
        pytest.skip(f"the paper's tables are not at {table.parent}: set ZIPBRAIN_SHARED to the folder that holds spec/")
    with Path(table).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_value_at_maximum_compression_is_the_printed_one() -> None:
    rows = read("max_compression.csv")
    assert len(rows) == 480
    for row in rows:
        found = reported(row["model"], row["dataset"], NAMES[row["method"]], "max")
        assert found[METRICS[row["metric"]]].value == float(row["value"]), row


def test_every_value_of_the_ratio_sweep_is_the_printed_one() -> None:
    rows = read("ratio_sweep.csv")
    assert len(rows) == 192
    for row in rows:
        found = reported(row["model"], row["dataset"], NAMES[row["method"]], int(row["ratio_percent"]) / 100)
        assert found[METRICS[row["metric"]]].value == float(row["value"]), row
    pairs = {(row["model"], row["dataset"]) for row in rows}
    for model in MODELS:
        for dataset in DATASETS:
            for ratio in RATIOS:
                assert bool(reported(model, dataset, "tome", ratio)) == ((model, dataset) in pairs)


def test_every_value_of_the_ablation_is_the_printed_one() -> None:
    rows = read("ablation.csv")
    for row in rows:
        assert reported_ablation(row["model"], row["dataset"])[VARIANTS[row["variant"]]] == float(row["value"])
        assert metrics_of(row["dataset"])[0] == METRICS[row["metric"]]
    assert len(rows) == sum(len(reported_ablation(m, d)) for m in MODELS for d in DATASETS)


def test_only_biots_copied_row_is_in_doubt_and_it_is_indeed_eegpts() -> None:
    doubted = set()
    for model in MODELS:
        for dataset in DATASETS:
            for method in ("original", *METHODS):
                for ratio in (*RATIOS, "max"):
                    for metric, value in reported(model, dataset, method, ratio).items():
                        if value.doubt:
                            assert value.doubt == COPY_ERROR
                            assert value.value == reported("EEGPT", dataset, method, ratio)[metric].value
                            doubted.add((model, dataset, method, ratio, metric))
    copied = ("accuracy", "balanced_accuracy")
    assert doubted == {("BIOT", dataset, "zipbrain", "max", metric) for dataset in DATASETS for metric in copied}


def test_what_the_paper_does_not_have_gives_nothing() -> None:
    assert reported("LaBraM", "synthetic-events", "tome", "max") == {}
    assert reported("CBraMod", "TUAB", "tome", "max") == {}
    assert reported("LaBraM", "TUAB", "free_slicing", "max") == {}
    assert reported("LaBraM", "TUAB", "tome", 0.8) == {}  # its sweep has two pairs only
    assert reported("LaBraM", "TUAB", "tome", None) == {}
    assert reported_ablation("LaBraM", "TUEV") == {}
    assert reported("tfm", "tuab", "original")["auroc"].value == 0.8895
