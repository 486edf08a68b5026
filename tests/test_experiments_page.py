"""The page of experiments stays true: its tables are made from the stored figures, and those from what was measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("experiments.md", "twins.md")}
PAGE = PAGES["experiments.md"]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts that made the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import experiments_intervals
    import experiments_report
    import experiments_tables

    return SimpleNamespace(report=experiments_report, tables=experiments_tables, intervals=experiments_intervals)


@pytest.mark.parametrize("page", PAGES)
def test_every_table_between_markers_is_made_from_the_stored_figures(page: str, scripts: Any) -> None:
    shown, wanted = scripts.report.tables_of(PAGES[page]), scripts.report.PAGES[page]
    assert set(shown) == set(wanted)
    for name, make in wanted.items():
        assert shown[name] == make(), f"table {name}: run `python benchmarks/experiments_report.py page`"


def test_filling_a_page_replaces_old_tables_and_nothing_else(scripts: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    spoiled = re.sub(r"(?m)^\| Twins \|.*$", "| Twins | wrong |", PAGE)
    assert spoiled != PAGE
    page.write_text(spoiled)
    scripts.report.fill(page, scripts.tables.TABLES)
    assert page.read_text() == PAGE
    page.write_text(PAGE.replace("<!-- table: search -->", ""))
    with pytest.raises(SystemExit, match="no place for the table search"):
        scripts.report.fill(page, scripts.tables.TABLES)


def test_the_figures_in_the_leads_are_the_stored_ones(scripts: Any) -> None:
    before_and_after = re.findall(r"(ZIPBrain|ToMe|ToFu) (-0\.\d{4}) to (-0\.\d{4})", PAGE)
    assert len(before_and_after) == 3
    for method, without, with_mass in before_and_after:
        for label, value in ((method, without), (f"{method} + mass", with_mass)):
            row = scripts.tables.found("overall", "all", label, "0.8")
            assert f"{float(row['change']):.4f}" == value


def test_the_figures_said_of_the_second_twins_are_the_stored_ones(scripts: Any) -> None:
    import twins_tables

    def of(method: str, group: str, name: str, ratio: str = "0.8") -> float:
        return float(twins_tables.found("overall", group, method, ratio, "twins_kept")[name])

    def times(method: str, group: str) -> str:
        return f"{np.exp(-of(method, group, 'twins_log_error')):.1f}"

    first, groups = "Twins, first version", ("softmax", "linear")
    errors = " (softmax) and ".join(times(first, group) for group in groups)
    more = " and ".join(f"{of(first, group, 'twins_agreement'):.3f}" for group in groups)
    page = " ".join(PAGES["twins.md"].split())
    assert f"{errors} times (linear) less logit error and {more} more of the same decisions" in page
    assert f"plain mean has {times('Twins, plain mean everywhere', 'softmax')} times the error" in page
    assert f"norm has {times('Twins, mean norm everywhere', 'linear')} times that" in page
    least = [f"{of(method, 'linear', 'logit_error', 'max'):.3f}" for method in ("Twins", "ToMe + mass")]
    assert f"({' against '.join(least)})" in page
    assert 3 * of("Twins", "all", "logit_error", "max") < of(first, "all", "logit_error", "max")


def test_the_means_without_the_pair_that_dominates_them_are_the_stored_ones(scripts: Any) -> None:
    _, _, rest = " ".join(PAGE.split()).partition("without it the mean at 80 % is ")
    said, _, _ = rest.partition("Where this pair")

    def of(method: str, digits: int = 2, digits_with: int = 2) -> tuple[str, str]:
        errors = [
            float(row["logit_error"])
            for task in scripts.tables.TASKS
            for model in scripts.tables.MODELS
            if (task, model) != ("events", "tfm") and (row := scripts.tables.found(task, model, method, "0.8"))
        ]
        assert len(errors) == 19
        every = scripts.tables.found("overall", "all", method, "0.8")
        return f"{np.mean(errors):.{digits}f}", f"{float(every['logit_error']):.{digits_with}f}"

    without, every = of("ZIPBrain")
    assert said.startswith(f"{without} for ZIPBrain instead of {every}, ")
    for name, (without, every) in {
        "its searched setting": of("ZIPBrain, searched"), "random grouping": of("random grouping", 3),
        "ZIPBrain + mass": of("ZIPBrain + mass"), "ToMe + mass": of("ToMe + mass", 3, 3), "Twins": of("Twins", 4, 4),
    }.items():  # fmt: skip
        assert f"{without} instead of {every} for {name}" in said
    (evit, with_evit), (dart, with_dart) = of("EViT"), of("DART")
    assert f"{evit} and {dart} instead of {with_evit} and {with_dart} for EViT and DART" in said


def test_the_figures_of_twins_in_the_readme_are_those_of_the_new_networks(scripts: Any) -> None:
    import twins_tables

    def of(method: str, group: str, name: str) -> float:
        return float(twins_tables.found("overall", group, method, "0.8")[name])

    def decisions(method: str) -> tuple[str, str]:
        return f"{of(method, 'softmax', 'agreement'):.3f}", f"{of(method, 'linear', 'agreement'):.3f}"

    readme = " ".join((ROOT / "README.md").read_text().split())
    twins, paper = (f"{of(method, 'all', 'change'):.4f}" for method in ("Twins", "ZIPBrain"))
    assert f"changes the score by {twins} (the paper's method by {paper})" in readme
    softmax, linear = decisions("Twins")
    others = " and ".join(decisions("ZIPBrain"))
    wanted = f"keeps {softmax} of the decisions with softmax attention and {linear} with linear attention ({others})"
    assert f"{wanted}, at a logit error of {of('Twins', 'all', 'logit_error'):.4f}" in readme
    for method in ("ZIPBrain", "ZIPBrain + mass", "random grouping", "random grouping + mass", "ToMe + mass"):
        assert of(method, "all", "twins_change_low") > 0, method
        for group in ("softmax", "linear"):
            assert of(method, group, "twins_agreement_low") > 0, (method, group)
            assert of(method, group, "twins_log_error_high") < 0, (method, group)
    runs = twins_tables.found("overall", "all", "Twins", "0.8")["runs"]
    assert f"on {runs} networks" in readme


def test_runs_with_a_failure_are_in_no_row_of_that_kind(scripts: Any) -> None:
    broken = {
        scripts.tables.run_of(row) for row in scripts.tables.stored("experiments_runs") if row["compare"] == "False"
    }
    assert len(broken) == 9, "the page says: two broke off, seven have failures"
    kinds = {row["kind"] for row in scripts.tables.stored("experiments") if scripts.tables.run_of(row) in broken}
    assert kinds == {"original", "ablate", "layers", "candidate"}


def test_intervals_hold_what_was_measured_and_overall_rows_are_means_over_cells(scripts: Any) -> None:
    rows = scripts.tables.stored("experiments_intervals")
    for row in rows:
        for name in ("change", "agreement", "logit_error"):
            if row[name]:
                value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
                assert low - 1e-3 <= value <= high + 1e-3
    cells = [
        row for row in rows
        if (row["label"], row["ratio"]) == ("Twins", "0.8") and row["task"] not in ("overall", "eegmat-fixed")
    ]  # fmt: skip
    overall = scripts.tables.found("overall", "all", "Twins", "0.8")
    assert len(cells) == len({(row["task"], row["model"]) for row in cells}) == 20
    for name in ("change", "agreement", "logit_error"):
        assert np.mean([float(row[name]) for row in cells]) == pytest.approx(float(overall[name]), abs=2e-4)
    in_full = [
        row for row in scripts.tables.stored("experiments")
        if (row["kind"], row["label"], row["ratio"]) == ("compare", "Twins", "0.8")
    ]  # fmt: skip
    means = scripts.tables.over_cells(in_full, ("change", "agreement", "logit_error"))
    for name, value in means.items():
        assert value == pytest.approx(float(overall[name]), abs=2e-4)


def test_resampled_figures_are_those_of_drawing_subjects_one_by_one(scripts: Any, tmp_path: Path) -> None:
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
    run = scripts.report.Run("eyes", "labram", 0, None, [original, twins], stored)
    found = scripts.intervals.resampled(run)["compare", "Twins", "0.8", False]
    times = np.random.default_rng(run.draw).multinomial(4, np.full(4, 0.25), size=scripts.intervals.DRAWS)
    for number in (0, 1, 7, 500):
        drawn = np.concatenate(
            [np.flatnonzero(subjects == name) for name, n in zip("abcd", times[number], strict=True) for _ in range(n)]
        )
        change = roc_auc_score(labels[drawn], new[drawn, 0]) - roc_auc_score(labels[drawn], old[drawn, 0])
        assert found["change"][number + 1] == pytest.approx(change)
        assert found["agreement"][number + 1] == pytest.approx(((new >= 0) == (old >= 0))[drawn].mean())
        assert found["logit_error"][number + 1] == pytest.approx(((new - old)[drawn] ** 2).mean() / old.var())
    assert found["logit_error"][0] == pytest.approx(measured["logit_error"])


def test_differences_are_paired_and_use_the_same_runs(scripts: Any) -> None:
    twins, other = ("compare", "Twins", "0.8", False), ("compare", "DART", "0.8", False)
    base = {name: np.array([0.5, 0.4, 0.6]) for name in ("score", "change", "agreement", "logit_error")}
    moved = {name: value * 0.5 for name, value in base.items()}
    found = scripts.intervals.of_cell([{twins: base, other: moved}], other)
    assert found["twins_agreement"].tolist() == pytest.approx([0.25, 0.2, 0.3])
    assert found["twins_log_error"].tolist() == pytest.approx([np.log(2)] * 3)
    assert "twins_change" not in scripts.intervals.of_cell([{twins: base}], twins)


def test_random_seeds_become_one_row_with_their_spread(scripts: Any, tmp_path: Path) -> None:
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
    facts = scripts.report.facts(scripts.report.Run("events", "biot", 0, None, rows, stored))
    assert [each["label"] for each in facts] == ["original", "default: random grouping"]
    assert facts[0]["commonest"] == "1.000"
    assert [float(facts[1][name]) for name in ("change", "change_sd", "agreement")] == pytest.approx([-0.1, 0.1, 0.4])
    assert facts[1]["tokens"] == "8 2"
    failed = scripts.report.Run("events", "biot", 0, None, [*rows, {"kind": "ablate", "failed": "no memory"}], stored)
    assert not failed.complete("ablate")
    assert not failed.complete("compare")


def test_the_saved_flops_are_those_of_the_token_counts(scripts: Any) -> None:
    with (RESULTS / "experiments_flops.csv").open(newline="") as lines:
        stored = list(csv.DictReader(lines))
    assert stored == scripts.report.flops()


def test_every_file_of_the_page_exists() -> None:
    names = re.findall(r"`(?:benchmarks/(?:results/)?)?(experiments\w*\.(?:py|csv))`", PAGE)
    assert len(set(names)) >= 7
    for name in names:
        assert (RESULTS / name).is_file() or (ROOT / "benchmarks" / name).is_file(), name
    assert (RESULTS / "experiments.png").stat().st_size < 500_000
