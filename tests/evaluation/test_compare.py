"""`compare`: every number against a direct computation, the store, the marks, the paper's values, refusals."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields, replace
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
from zipbrain.evaluation import compare
from zipbrain.evaluation.bootstrap import intervals
from zipbrain.evaluation.comparison import Comparison
from zipbrain.evaluation.comparison_notes import notes
from zipbrain.evaluation.options import zipbrain_setting
from zipbrain.evaluation.report.sections import chosen_on
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.timings import Candidate
from zipbrain.evaluation.trial import Trial, recipe_for
from zipbrain.metrics import decisions, probabilities, scores
from zipbrain.models import CBraMod
from zipbrain.pooling import DART, EViT, ToMe, ZIPBrain
from zipbrain.profiling.flops import GraphCount
from zipbrain.recipe import Recipe
from zipbrain.training import predict

QUICK: dict[str, Any] = {"latency": False, "device": "cpu"}


def data(classes: int = 2, name: str = "arrays", subjects: int = 8) -> Windows:
    found = windows(40, classes)
    found.name = name
    found.subjects = np.array([f"s{i % subjects}" for i in range(40)])
    return found


def network(classes: int = 2) -> Any:
    torch.manual_seed(0)
    return zipbrain.models.BIOT(1 if classes == 2 else classes, 3, 400, **BIOT).eval()


def by_name(found: Comparison) -> dict[tuple[str, Any, bool], Any]:
    return {(row.method, row.ratio, row.mass): row for row in found.rows}


@pytest.mark.parametrize("classes", [2, 3])
def test_numbers_are_those_of_a_direct_computation(classes: int) -> None:
    model, split = network(classes), data(classes)
    found = compare(model, split, methods=["zipbrain", "tome"], ratios=[0.4, "max"], **QUICK)
    assert len(found.rows) == 1 + 2 * 2 * 2
    plain = predict(model, split, device="cpu")
    for row in found.rows:
        logits = plain
        if row.ratio is not None:
            zipbrain.compress(model, row.method, ratio=row.ratio, mass=row.mass)
            logits = predict(model, split, device="cpu")
            with zipbrain.trace(model) as traced:
                model(torch.zeros(1, 3, 400))
            assert row.token_counts == tuple(traced.token_counts)
            summary = zipbrain.summary(model)
            assert row.hand is not None
            assert (row.hand.macs, row.hand.original) == (summary.macs, summary.original_macs)
            assert row.fewer == summary.cut
            zipbrain.restore(model)
        chances = probabilities(logits)
        assert row.scores == pytest.approx(scores(split.labels, chances), nan_ok=True)
        expected = intervals(split.labels, chances, split.subjects)
        for metric, pair in row.intervals.items():
            assert pair == pytest.approx(expected[metric])
        assert row.agreement == (decisions(logits) == decisions(plain)).mean()
        assert row.removed == 1 - row.token_counts[-1] / row.token_counts[0]
    assert {"auroc", "pr_auc"} <= found.original.scores.keys() or classes == 3
    assert found.original.agreement == 1
    assert found.original.logit_error == 0


def test_what_reaches_less_than_asked_has_a_star_and_its_true_share() -> None:
    found = compare(network(), data(), methods=["zipbrain", "tome", "evit"], ratios=["max"], mass="off", **QUICK)
    rows = {row.method: row for row in found.rows}
    assert rows["zipbrain"].token_counts == rows["evit"].token_counts == (9, 5, 1)
    assert rows["tome"].token_counts == (9, 5, 3)
    assert [rows[name].fewer for name in ("zipbrain", "tome", "evit")] == [False, True, False]
    text = found.to_markdown()
    assert r"ToMe\*" in text
    assert "66.7 %" in text
    assert any(note.startswith("* fewer tokens") for note in found.notes)
    assert "ToMe*" in "".join(line.cells[0] for grid in found.tables() for part in grid.groups for line in part.rows)


def test_a_model_that_calls_all_windows_one_class_is_said_to() -> None:
    model = network()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(5)
    found = compare(model, data(), methods=["tome"], ratios=[0.4], mass="off", **QUICK)
    assert all(row.agreement == 1 for row in found.rows)
    assert any(note.startswith("All windows are called class 1 by every row") for note in found.notes)
    assert any(note.startswith("Few windows") for note in found.notes)
    assert any(note.startswith("All windows are called") for note in found.to_dict()["notes"])


def test_a_ratio_that_rounds_to_nothing_is_said() -> None:
    found = compare(network(), data(), methods=["tome"], ratios=[0.1], mass="off", **QUICK)
    assert found.rows[1].removed == 0
    assert found.rows[1].agreement == 1
    assert any("r = 0 at 10 %" in note for note in found.notes)


def test_methods_that_only_drop_have_no_row_with_mass_because_it_changes_nothing() -> None:
    model, split = network(), data()
    found = compare(model, split, methods=["dart", EViT(fuse=False), "tofu"], ratios=[0.6], **QUICK)
    kinds = [(row.method, row.mass) for row in found.rows[1:]]
    assert kinds == [("dart", False), ("evit", False), ("tofu", False), ("tofu", True)]
    trial = Trial(model, split, device="cpu")
    for method in (DART(), EViT(fuse=False)):
        assert not method.merges
        plain, weighed = (trial.run(recipe_for(model, method, ratio=0.6, mass=mass)) for mass in (False, True))
        np.testing.assert_allclose(weighed.logits, plain.logits, atol=1e-5)
    assert EViT().merges
    assert ZIPBrain().merges
    assert any("DART and EViT" in note for note in found.notes)


@pytest.mark.parametrize("mass", ["both", "on", "off"])
def test_a_method_that_uses_all_mass_by_itself_has_one_row(mass: str) -> None:
    found = compare(network(), data(), methods=["twins", "tome"], ratios=[0.4], mass=mass, **QUICK)
    expected = {"both": [False, True], "on": [True], "off": [False]}[mass]
    assert [(row.label, row.mass) for row in found.rows[1:]] == [("Twins", False), *(("ToMe", one) for one in expected)]
    assert any(note.startswith("Twins: mass is used") for note in found.notes) == (mass != "off")


def test_a_recipe_that_no_row_would_use_is_refused(tmp_path: Path) -> None:
    model = network()
    chosen = recipe_for(model, ZIPBrain("k"), ratio=0.5)
    for setting in (chosen, chosen.save(tmp_path / "recipe.json"), ZIPBrain("k")):
        with pytest.raises(OptionError, match="got 'tome, dart', but the recipe or setting given") as refusal:
            compare(model, data(), methods=["tome", "dart"], ratios=[0.5], setting=setting, **QUICK)
        assert "\n" not in str(refusal.value)
    compare(model, data(), methods=["tome"], ratios=[0.5], setting="default", **QUICK)


def test_counts_of_other_versions_are_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(*_: object) -> GraphCount:
        counted.append(1)
        return GraphCount(1000)

    monkeypatch.setattr("zipbrain.evaluation.costs.onnx_tool_flops", count)
    for version, expected in (("1.0", 2), ("1.0", 2), ("1.1", 4)):
        monkeypatch.setattr("zipbrain.evaluation.costs._version", lambda _, version=version: version)
        compare(
            network(), data(), methods=["dart"], ratios=[0.5], onnx_tool=True, store=Store(tmp_path), **QUICK
        )  # fmt: skip
        assert len(counted) == expected


def test_a_second_run_computes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = network(), data()
    options: dict[str, Any] = {"ratios": [0.4, "max"], "mass": "off", "device": "cpu", "latency_rounds": 1}
    first = compare(model, split, methods=["zipbrain"], store=Store(tmp_path), **options)
    ran: list[str] = []
    run = Trial.run

    def counted(self: Trial, recipe: Recipe, *more: Any, **named: Any) -> Any:
        ran.append(recipe.method["name"])
        return run(self, recipe, *more, **named)

    monkeypatch.setattr(Trial, "run", counted)
    again = compare(model, split, methods=["zipbrain"], store=Store(tmp_path), **options)
    assert ran == []
    assert again.to_csv() == first.to_csv()  # latencies too
    assert again.notes == first.notes
    longer = compare(model, split, methods=["zipbrain", "dart"], store=Store(tmp_path), **options)
    assert ran == ["dart", "dart"]
    assert longer.rows[1] == first.rows[1]
    other = windows(40, 2, seed=1)
    compare(model, other, methods=["dart"], store=Store(tmp_path), **options)
    assert len(ran) == 4  # other windows


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = network(), data()
    run, left = Trial.run, [2]

    def stop(self: Trial, *given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return run(self, *given, **named)

    options: dict[str, Any] = {"methods": ["zipbrain", "tome", "dart"], "ratios": [0.4], "mass": "off", **QUICK}
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            compare(model, split, store=Store(tmp_path), **options)
    assert [record["label"] for record in Store(tmp_path).records()] == ["Original", "ZIPBrain", "ToMe"]
    left[0] = 1
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "run", stop)
        found = compare(model, split, store=Store(tmp_path), **options)
    assert found.to_csv() == compare(model, split, **options).to_csv()
    record = Store(tmp_path).records()[1]
    assert record["kind"] == "compare"
    assert record["ratio"] == 0.4
    assert record["task"]["model"] == "BIOT"
    assert Recipe.from_dict(record["recipe"]).method["name"] == "zipbrain"


def test_what_a_store_holds_that_could_not_be_used_is_said(tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": ["tome"], "ratios": [0.4], "mass": "off", **QUICK}
    first = compare(network(), data(), store=Store(tmp_path), **options)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    changed = json.loads(lines[-1])
    changed["scores"] = {"balanced_accuracy": [1]}
    path.write_text("\n".join([lines[0], lines[0][:80], *["<<<"] * 12, json.dumps(changed)]) + "\n")
    again = compare(network(), data(), store=Store(tmp_path), **options)
    assert [row.scores for row in again.rows] == [row.scores for row in first.rows]
    said = [note for note in again.notes if note not in first.notes]
    assert len(said) == 2
    assert "13 lines are no records, left out and kept in the file: 2, 3, 4, 5" in said[0]
    assert "is left out: its scores" in said[1]


def test_intervals_can_be_left_out_and_added_later(tmp_path: Path) -> None:
    model, split = network(), data()
    options: dict[str, Any] = {"methods": ["tome"], "ratios": [0.4], "mass": "off", "store": Store(tmp_path), **QUICK}
    assert not any(row.intervals for row in compare(model, split, intervals=False, **options).rows)
    assert all(row.intervals for row in compare(model, split, **options).rows)
    assert not any(row.intervals for row in compare(model, split, intervals=False, **options).rows)
    alone = compare(model, data(subjects=1), methods=["tome"], ratios=[0.4], mass="off", **QUICK)
    assert not any(row.intervals for row in alone.rows)
    assert "No intervals: all windows are of one subject." in alone.notes


def test_latencies_come_with_their_surroundings_and_with_slicing_to_the_same_counts() -> None:
    found = compare(
        network(), data(), methods=["zipbrain", "tome"], ratios=["max"], mass="off", device="cpu", latency_batch=2,
        latency_rounds=2,
    )  # fmt: skip
    for row in found.rows[1:]:
        assert row.latency is not None
        assert all(0 < value < 1000 for value in row.latency.values())
    assert found.original.latency is None
    assert (found.timing["batch"], found.timing["rounds"]) == (2, 2)
    assert found.timing["cpu"]
    assert found.timing["zipbrain"] == zipbrain.__version__
    assert any("batch 2, 1 thread, CPU" in note for note in found.notes)
    assert {"latency_to_original", "latency_to_slicing"} <= next(csv.DictReader(io.StringIO(found.to_csv()))).keys()


def test_the_papers_values_stand_beside_ours_and_its_copied_row_is_marked() -> None:
    found = compare(network(), data(name="tuab"), methods=["zipbrain", "tome"], ratios=[0.2, "max"], **QUICK)
    rows = by_name(found)
    assert found.task["dataset"] == "TUAB"
    assert rows["original", None, False].paper["auroc"].value == 0.8782
    assert rows["tome", 0.2, False].paper["auroc"].value == 0.8786
    assert rows["tome", "max", False].paper["auroc"].value == 0.8767
    assert rows["tome", "max", True].paper == {}  # the paper has no mass
    ours = rows["zipbrain", "max", False]
    assert ours.paper["auroc"].doubt == ""
    assert ours.paper["accuracy"].doubt
    for text in (found.to_markdown(), "".join(str(line) for grid in found.tables() for line in grid.groups)):
        assert "0.7989†" in text
        assert "0.7989 " not in text
    assert r"0.7989$^\dagger$" in found.to_latex()
    assert any(note.startswith("† no comparison") for note in found.notes)
    assert any("paper's setting for BIOT on TUAB" in note for note in found.notes)
    lines = {
        (line["method"], line["ratio"], line["mass"]): line for line in csv.DictReader(io.StringIO(found.to_csv()))
    }
    line = lines["zipbrain", "max", "False"]
    assert (line["auroc_paper"], line["accuracy_paper"]) == ("0.8797", "")
    assert "accuracy 0.7989" in line["paper_note"]
    assert json.loads(line["options"])["z1"] == "v"  # the paper's setting was run


def test_a_recipe_brings_its_method_and_its_layers_and_the_ratio_varies(tmp_path: Path) -> None:
    model, split = network(), data()
    chosen = recipe_for(
        model, ZIPBrain("k", "v", "q", 0.2), ratio=0.9, layers=[2], dataset="arrays", split="test"
    )  # fmt: skip
    path = chosen.save(tmp_path / "recipe.json")
    found = compare(model, split, methods=["zipbrain", "dart"], ratios=[0.5], mass="off", setting=path, **QUICK)
    ours, dart = found.rows[1:]
    assert ours.recipe is not None
    assert ours.recipe["method"]["z1"] == "k"
    assert ours.recipe["schedule"] == {"name": "ratio", "ratio": 0.5}
    assert ours.token_counts == (9, 9, 4)
    assert dart.token_counts == (9, 7, 5)
    assert any("chosen on these very windows" in note for note in found.notes)
    stranger = Recipe({"name": "zipbrain"}, {"name": "maximum"}, model="LaBraM")
    with pytest.raises(OptionError, match="the checkpoint is BIOT"):
        compare(model, split, setting=stranger, **QUICK)


def test_what_is_stored_says_on_what_a_recipe_was_chosen(tmp_path: Path) -> None:
    model = network()
    chosen = recipe_for(
        model, ZIPBrain("k", "v", "q", 0.2), ratio=0.5, dataset="EEGMAT", split="val", metric="auroc", score=0.75
    )  # fmt: skip
    compare(
        model, data(), methods=["zipbrain", "tome"], ratios=[0.25, 0.5], setting=chosen, store=Store(tmp_path), **QUICK
    )
    rows = {(row["label"], row["ratio"], row["extra"]["mass"]): row["recipe"] for row in Store(tmp_path).records()[1:]}
    about = {"dataset": "EEGMAT", "split": "val", "metric": "auroc"}
    assert rows["ZIPBrain", 0.5, False].items() >= {**about, "score": 0.75}.items()
    for key in (("ZIPBrain", 0.5, True), ("ZIPBrain", 0.25, False)):  # not what the score was reached with
        assert rows[key].items() >= about.items()
        assert "score" not in rows[key]
    assert not rows["ToMe", 0.5, False].keys() & {*about, "score"}
    assert chosen_on(Result.of({"recipe": rows["ZIPBrain", 0.25, False]})) == "chosen on EEGMAT, val split"


def test_a_recipe_with_mass_has_its_own_uses_of_it() -> None:
    model = network()
    chosen = recipe_for(model, ZIPBrain(), ratio=0.9, mass={"readout": True})
    found = compare(model, data(), methods=["zipbrain"], ratios=[0.5], setting=chosen, **QUICK)
    plain, weighed = (row.recipe for row in found.rows[1:])
    assert plain is not None
    assert weighed is not None
    assert not any(plain["mass"].values())
    assert weighed["mass"] == {"attention": False, "merge": False, "readout": True}


def test_a_recipes_axis_and_every_other_field_but_method_and_amount_are_run_at_any_ratio() -> None:
    model = CBraMod(2, 4, 1600, depth=2, head_layers=0).eval()
    where = {"layers": [2], "protected": (1, 0), "tokens": 8, "within": "blocks", "axis": "time", "dataset": "EEGMAT"}
    chosen = recipe_for(model, ToMe(), ratio=0.9, **where)
    chosen = replace(chosen, second_look=0.5, promise={"agree": 0.99}, weights="f00", score=0.7)
    setting = zipbrain_setting(chosen, "CBraMod", "EEGMAT")
    run = setting.recipe(model, 0.4, mass=False, method=DART())
    other = {"method", "schedule", "mass", "second_look", "promise", "weights", "score"}
    for name in {item.name for item in fields(Recipe)} - other:
        assert getattr(run, name) == getattr(chosen, name), name
    assert (run.method["name"], run.schedule["ratio"], any(run.mass.values())) == ("dart", 0.4, False)
    assert (run.second_look, run.promise, run.weights, run.score) == (None, None, None, None)


def test_free_slicing_is_timed_along_the_axis_of_the_recipe() -> None:
    model = CBraMod(2, 4, 1600, depth=2, head_layers=0).eval()
    recipe = recipe_for(model, ToMe(), r=2, axis="time", layers=[2])
    options = Candidate(model, recipe, (8, 8, 6)).slicing()
    assert options is not None
    sliced = zipbrain.compress(model, "free_slicing", **options)
    model(torch.zeros(1, 4, 1600))
    found = zipbrain.summary(sliced)
    assert (found.units, found.token_counts) == ("time steps", [8, 8, 6])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratios": [80]}, "0.8 for 80 %"),
        ({"ratios": [0]}, "above 0"),
        ({"ratios": ["most"]}, "or max"),
        ({"ratios": [float("nan")]}, "above 0"),
        ({"ratios": []}, "at least one"),
        ({"methods": ["tomme"]}, "did you mean 'tome'"),
        ({"methods": []}, "zipbrain, tome"),
        ({"mass": "some"}, "off, on, both"),
        ({"setting": "paper"}, "the paper has no setting for BIOT on arrays"),
        ({"setting": "best"}, "auto, paper, default"),
        ({"latency_rounds": 0}, "at least 1"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "_pass", lambda *given: pytest.fail("something ran"))
    with pytest.raises(OptionError, match=words.replace("(", r"\(")):
        compare(network(), data(), **{**QUICK, **options})


def test_undefined_metrics_are_dashes_with_a_note() -> None:
    found = compare(network(), data(), methods=["tome"], ratios=[0.4], mass="off", **QUICK)
    rows = [replace(row, scores={**row.scores, "auroc": math.nan}) for row in found.rows]
    odd = Comparison(found.task, rows, [])
    odd = replace(odd, notes=notes(odd, [], [False]))
    table = odd.tables()[0]
    place = table.columns.index("AUROC")
    assert [line.cells[place] for part in table.groups for line in part.rows if not line.quiet] == ["-", "-"]
    assert any(note.startswith("-: not defined") for note in odd.notes)
    assert next(csv.DictReader(io.StringIO(odd.to_csv())))["auroc"] == ""
    assert r"- \-: not defined" in odd.to_markdown()


def test_tables_fit_into_a_hundred_columns_and_are_sound_latex() -> None:
    found = compare(network(), data(name="EEGMAT"), ratios=[0.8, "max"], device="cpu", latency_rounds=1)
    console = Console(width=100, record=True, file=io.StringIO())
    for grid in found.tables():
        console.print(grid.to_rich())
    text = console.export_text()
    assert "…" not in text
    for row in found.rows:  # no label was broken over two lines
        label = f"{row.label}{' + mass' * row.mass}"
        assert any(line.strip().startswith(label) and "0." in line for line in text.splitlines()), label
    latex = found.to_latex()
    tables = [line for line in latex.splitlines() if not line.startswith("%")]
    body = "\n".join(tables).replace(r"\{", "").replace(r"\}", "")
    assert body.count("{") == body.count("}")
    assert body.count(r"\begin{table}") == body.count(r"\end{table}") == 2
    assert not any(character in body for character in "†→")
    assert all(line.count(" & ") in (6, 8) for line in tables if line.endswith(r"\\") and "multicolumn" not in line)


def test_the_model_given_stays_as_it_is() -> None:
    model = network()
    zipbrain.compress(model, "tome", ratio=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = compare(model, data(), methods=["zipbrain"], ratios=["max"], mass="off", device="cpu", latency_rounds=1)
    assert zipbrain.summary(model).method["name"] == "tome"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert any("came compressed" in note for note in found.notes)
