"""How figures of the experiments are resampled, paired and summed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.fidelity import experiments_intervals as intervals
from benchmarks.fidelity import experiments_report as report
from benchmarks.fidelity import experiments_tables as tables
from benchmarks.shared.results import read_csv


def test_runs_with_a_failure_are_in_no_row_of_that_kind() -> None:
    broken = {tables.run_of(row) for row in tables.stored("experiments_runs") if row["compare"] == "False"}
    assert len(broken) == 9, "the page says: two broke off, seven have failures"
    kinds = {row["kind"] for row in tables.stored("experiments") if tables.run_of(row) in broken}
    assert kinds == {"original", "ablate", "layers", "candidate"}


def test_intervals_hold_what_was_measured_and_overall_rows_are_means_over_cells() -> None:
    rows = tables.stored("experiments_intervals")
    for row in rows:
        for name in ("change", "agreement", "logit_error"):
            if row[name]:
                value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
                assert low - 1e-3 <= value <= high + 1e-3
    cells = [
        row for row in rows
        if (row["label"], row["ratio"]) == ("Twins", "0.8") and row["task"] not in ("overall", "eegmat-fixed")
    ]  # fmt: skip
    overall = tables.found("overall", "all", "Twins", "0.8")
    assert len(cells) == len({(row["task"], row["model"]) for row in cells}) == 20
    for name in ("change", "agreement", "logit_error"):
        assert np.mean([float(row[name]) for row in cells]) == pytest.approx(float(overall[name]), abs=2e-4)
    in_full = [
        row for row in tables.stored("experiments")
        if (row["kind"], row["label"], row["ratio"]) == ("compare", "Twins", "0.8")
    ]  # fmt: skip
    means = tables.over_cells(in_full, ("change", "agreement", "logit_error"))
    for name, value in means.items():
        assert value == pytest.approx(float(overall[name]), abs=2e-4)


def test_resampled_figures_are_those_of_drawing_subjects_one_by_one(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    from zipbrain.metrics import logit_error

    rng = np.random.default_rng(3)
    labels, subjects = np.tile([0, 1], 20), np.repeat(["a", "b", "c", "d"], 10)
    before = rng.normal(size=(40, 1)).astype(np.float16)
    after = (before + 0.5 * rng.normal(size=(40, 1))).astype(np.float16)
    stored = tmp_path / "run-logits.npz"
    np.savez(stored, labels=labels, subjects=subjects, original=before, **{"compare|Twins|0.8|0": after})
    old, new = before.astype(np.float64), after.astype(np.float64)
    measured = {
        "scores": {"auroc": roc_auc_score(labels, new[:, 0])}, "logit_error": logit_error(new, old),
        "agreement": float(((new >= 0) == (old >= 0)).mean()),
    }  # fmt: skip
    original = {
        "kind": "original",
        "label": "original",
        "test": {"scores": {"auroc": roc_auc_score(labels, old[:, 0])}},
    }
    twins = {"kind": "compare", "label": "Twins", "ratio": 0.8, "mass": False, "test": measured}
    run = report.Run("eyes", "labram", 0, None, [original, twins], stored)
    found = intervals.resampled(run)["compare", "Twins", "0.8", False]
    times = np.random.default_rng(run.draw).multinomial(4, np.full(4, 0.25), size=intervals.DRAWS)
    for number in (0, 1, 7, 500):
        drawn = np.concatenate(
            [np.flatnonzero(subjects == name) for name, n in zip("abcd", times[number], strict=True) for _ in range(n)]
        )
        change = roc_auc_score(labels[drawn], new[drawn, 0]) - roc_auc_score(labels[drawn], old[drawn, 0])
        assert found["change"][number + 1] == pytest.approx(change)
        assert found["agreement"][number + 1] == pytest.approx(((new >= 0) == (old >= 0))[drawn].mean())
        assert found["logit_error"][number + 1] == pytest.approx(((new - old)[drawn] ** 2).mean() / old.var())
    assert found["logit_error"][0] == pytest.approx(measured["logit_error"])


def test_differences_are_paired_and_use_the_same_runs() -> None:
    twins, other = ("compare", "Twins", "0.8", False), ("compare", "DART", "0.8", False)
    base = {name: np.array([0.5, 0.4, 0.6]) for name in ("score", "change", "agreement", "logit_error")}
    moved = {name: value * 0.5 for name, value in base.items()}
    found = intervals.of_cell([{twins: base, other: moved}], other)
    assert found["twins_agreement"].tolist() == pytest.approx([0.25, 0.2, 0.3])
    assert found["twins_log_error"].tolist() == pytest.approx([np.log(2)] * 3)
    assert "twins_change" not in intervals.of_cell([{twins: base}], twins)


def test_random_seeds_become_one_row_with_their_spread(tmp_path: Path) -> None:
    stored = tmp_path / "run-logits.npz"
    np.savez(stored, subjects=np.array(["a", "b"]))

    def row(kind: str, label: str, score: float, **more: Any) -> dict[str, Any]:
        facts = {
            "scores": {"kappa": score},
            "agreement": score,
            "logit_error": 1 - score,
            "confusion": [[3, 0], [1, 0]],
        }
        return {"kind": kind, "label": label, "test": facts, "val": facts} | more

    rows = [row("original", "original", 0.5)]
    at = {"ratio": 0.8, "mass": False, "token_counts": [8, 2]}
    rows += [row("ablate", f"default: random grouping #{seed}", 0.3 + 0.1 * seed, **at) for seed in range(3)]
    facts = report.facts(report.Run("events", "biot", 0, None, rows, stored))
    assert [each["label"] for each in facts] == ["original", "default: random grouping"]
    assert facts[0]["commonest"] == "1.000"
    assert [float(facts[1][name]) for name in ("change", "change_sd", "agreement")] == pytest.approx([-0.1, 0.1, 0.4])
    assert facts[1]["tokens"] == "8 2"
    failed = report.Run("events", "biot", 0, None, [*rows, {"kind": "ablate", "failed": "no memory"}], stored)
    assert not failed.complete("ablate")
    assert not failed.complete("compare")


def test_the_saved_flops_are_those_of_the_token_counts() -> None:
    assert read_csv("experiments_flops") == report.flops()
