"""`ablate`: variants and seeds against direct runs, spreads, the paper's values, the store, refusals."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import zipbrain
from training.small import BIOT, windows
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation import ablate
from zipbrain.evaluation.ablation import Spread
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial, recipe_for
from zipbrain.pooling import DART, ZIPBrain, ablations

NAMES = ["uncompressed", *ablations()]


def data(classes: int = 2, name: str = "arrays") -> Windows:
    found = windows(40, classes, channels=5)
    found.name = name
    found.subjects = np.array([f"s{i % 8}" for i in range(40)])
    return found


def network(outputs: int = 1) -> Any:
    torch.manual_seed(0)
    return zipbrain.models.BIOT(outputs, 5, 400, **BIOT).eval()


def test_every_variant_is_run_and_random_ones_over_their_seeds() -> None:
    model, split, setting = network(), data(), ZIPBrain("k", "v", "x", 0.3)
    found = ablate(model, split, ratio=0.6, setting=setting, seeds=3, device="cpu")
    assert [row.name for row in found.rows] == NAMES
    assert [row.runs for row in found.rows] == [1, 1, 3, 3, 1, 1, 1]
    trial = Trial(model, split, device="cpu")
    full = trial.run(recipe_for(model, setting, ratio=0.6))
    for row in found.rows[1:]:
        seeds = range(3) if row.name.startswith("random") else [0]
        runs = [trial.run(recipe_for(model, ablations(setting, seed)[row.name], ratio=0.6)) for seed in seeds]
        for metric, spread in row.scores.items():
            values = [run.scores[metric] for run in runs]
            assert spread.mean == pytest.approx(np.mean(values))
            assert (spread.low, spread.high) == (min(values), max(values))
            if len(values) > 1:
                assert spread.deviation == pytest.approx(np.std(values, ddof=1))
            else:
                assert np.isnan(spread.deviation)
            assert row.to_full[metric] == pytest.approx(np.mean(values) - full.scores[metric])
        assert row.agreement.mean == pytest.approx(np.mean([run.agreement for run in runs]))
        assert row.token_counts == runs[0].token_counts
        assert row.operations == pytest.approx(np.mean([run.operations for run in runs]))
        assert 0 < row.operations < 1
        assert bool(row.intervals) == (len(values) == 1)
    logits = [trial.run(recipe_for(model, ablations(setting, s)["random matching"], ratio=0.6)).logits for s in (0, 1)]
    assert not np.array_equal(*logits)  # seeds are different draws
    assert found.rows[0].to_full == {}
    assert [table.columns[1] for table in found.tables()] == ["opera-\ntions"] * 2
    assert found.rows[0].agreement.mean == 1


def test_few_windows_and_the_true_removal_are_said() -> None:
    found = ablate(network(), data(), ratio=0.8, seeds=2, device="cpu")
    assert any(note.startswith("Few windows: 40") for note in found.notes)
    title = found.tables()[0].title
    assert f"80 % asked, {100 * found.rows[1].removed:.1f} % removed" in title


def test_the_papers_ablation_stands_beside_ours() -> None:
    found = ablate(network(6), data(6, "TUEV"), ratio="max", seeds=2, device="cpu")
    paper = {row.name: row.paper for row in found.rows}
    assert paper["full"] == 0.5103
    assert paper["random matching"] == 0.4927
    assert paper["uncompressed"] is None
    assert paper["pruning"] is None
    text = found.to_markdown()
    assert "-3.45%" in text  # of the printed values; the paper's own column says -3.47
    assert any("ratio that it does not state" in note for note in found.notes)
    assert any("paper's setting for BIOT on TUEV" in note for note in found.notes)
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [line["variant"] for line in lines] == NAMES
    assert float(lines[2]["kappa_deviation"]) == pytest.approx(found.rows[2].scores["kappa"].deviation)
    assert (lines[1]["kappa_deviation"], lines[0]["ratio"]) == ("", "")
    latex = found.to_latex()
    assert latex.count(r"\begin{table}") == 2
    assert r"$\pm$" in latex


def test_the_table_fits_into_a_hundred_columns() -> None:
    found = ablate(network(), data(name="EEGMAT"), ratio=0.6, seeds=2, device="cpu")
    console = Console(width=100, record=True, file=io.StringIO())
    for grid in found.tables():
        console.print(grid.to_rich())
    text = console.export_text()
    assert "…" not in text
    for label in ("Original", "full ZIPBrain", "random grouping", "random matching", "simple merge", "regular pivots"):
        assert any(line.strip().startswith(f"{label}  ") and "0." in line for line in text.splitlines()), label


def test_a_second_run_computes_only_new_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = network(), data()
    first = ablate(model, split, ratio=0.6, seeds=2, device="cpu", store=Store(tmp_path))
    records = Store(tmp_path).records()
    assert {record["kind"] for record in records} == {"ablate"}
    assert [r["extra"]["seed"] for r in records if r["label"] == "random grouping"] == [0, 1]
    run, ran = Trial.run, []

    def counted(self: Trial, recipe: Any, *more: Any, **named: Any) -> Any:
        ran.append(recipe)
        return run(self, recipe, *more, **named)

    monkeypatch.setattr(Trial, "run", counted)
    again = ablate(model, split, ratio=0.6, seeds=2, device="cpu", store=Store(tmp_path))
    assert ran == []
    assert again.to_csv() == first.to_csv()
    ablate(model, split, ratio=0.6, seeds=3, device="cpu", store=Store(tmp_path))
    assert len(ran) == 2


def test_ablations_of_two_settings_in_one_store_are_apart(tmp_path: Path) -> None:
    model, split = network(), data()
    settings = [ZIPBrain("k", "v", "x", 0.3), ZIPBrain("k", "v", "q", 0.3)]  # random matching needs no z3
    together = Store(tmp_path / "both")
    for setting in settings:
        alone = Store(tmp_path / setting.z3)
        first = ablate(model, split, ratio=0.6, setting=setting, seeds=2, device="cpu", store=alone)
        second = ablate(model, split, ratio=0.6, setting=setting, seeds=2, device="cpu", store=together)
        assert second.to_csv() == first.to_csv()
        of = recipe_for(model, setting, ratio=0.6).key()
        labels = [record["label"] for record in together.records() if record["extra"].get("of") == of]
        assert labels == [record["label"] for record in alone.records()][1:]
    recipes = [record["recipe"] for record in together.records() if record["label"].startswith("random matching")]
    assert recipes[:2] == recipes[2:]  # the same run, a variant of either
    assert [record["label"] for record in together.records() if "of" not in record["extra"]] == ["uncompressed"]


def test_a_spread_of_undefined_numbers_is_undefined() -> None:
    for values in ([np.nan, 1.0, 2.0], [1.0, np.nan]):
        spread = Spread.of(values)
        assert np.isnan([spread.mean, spread.deviation, spread.low, spread.high]).all()
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 1.0, 3.0)


def test_nonsense_is_refused() -> None:
    model, split = network(), data()
    for options, words in (
        ({"ratio": 80}, "0.8 for 80 %"),
        ({"seeds": 0}, "at least 1"),
        ({"setting": recipe_for(model, DART(), ratio=0.5)}, "a recipe of zipbrain"),
        ({"setting": "paper"}, "the paper has no setting"),
    ):
        with pytest.raises(OptionError, match=words):
            ablate(model, split, device="cpu", **options)


def test_one_seed_and_nothing_removed_are_said() -> None:
    found = ablate(network(), data(), ratio=0.05, seeds=1, device="cpu")
    assert any("one seed only" in note for note in found.notes)
    assert any("r = 0 at 5 %" in note for note in found.notes)
    assert all(value == 0 for row in found.rows[1:] for value in row.to_full.values())
