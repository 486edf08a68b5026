"""Models with a second look are scored, counted, timed, stored and compared as what they are."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zipbrain
from promises import promising
from seams.small_models import varied
from training.small import BIOT, windows
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation import compare
from zipbrain.evaluation.report import build
from zipbrain.evaluation.result import Result, results_of
from zipbrain.evaluation.second_look import SplitCall
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial, recipe_for
from zipbrain.metrics import decisions
from zipbrain.models import create
from zipbrain.profiling.flops import hand_flops
from zipbrain.profiling.latency import Timing
from zipbrain.recipe import Recipe
from zipbrain.seal import Promise, sealed
from zipbrain.seams.second_look import margins
from zipbrain.training import predict

QUICK: dict[str, Any] = {"device": "cpu", "latency_batch": 4, "latency_rounds": 2, "intervals": False}
UNTIMED: dict[str, Any] = {"latency": False, "device": "cpu"}


def network(outputs: int = 3) -> torch.nn.Module:
    return varied(create("biot", n_outputs=outputs, n_chans=3, n_times=400, **BIOT), 0)


def split(n: int = 30, classes: int = 3) -> Windows:
    return windows(n, classes)


def recipe(model: torch.nn.Module, margin: float | None, **more: Any) -> Recipe:
    return recipe_for(model, "zipbrain", ratio=0.8, second_look=margin, **more)


def middle_margin(model: torch.nn.Module, given: Windows) -> float:
    """A margin below which half of the windows look twice."""
    logits = Trial(model, given, device="cpu").run(recipe(model, None)).logits
    assert logits is not None
    return float(margins(torch.from_numpy(logits)).median())


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_trial_gives_the_answers_of_both_passes_and_the_share_that_had_two(outputs: int) -> None:
    model, given = network(outputs), split(classes=max(2, outputs))
    margin = middle_margin(model, given)
    trial = Trial(model, given, device="cpu", batch_size=7)
    once = trial.run(recipe(model, None))  # leaves prefixes behind, of whole batches
    found = trial.run(recipe(model, margin))
    assert once.logits is not None
    doubtful = (margins(torch.from_numpy(once.logits)) < margin).numpy()
    assert 0 < doubtful.sum() < len(given)
    assert found.looked == doubtful.mean()
    assert found.logits is not None
    assert trial.original.logits is not None
    np.testing.assert_allclose(found.logits[doubtful], trial.original.logits[doubtful], atol=1e-5)
    np.testing.assert_array_equal(found.logits[~doubtful], once.logits[~doubtful])
    direct = predict(zipbrain.compress(model, recipe(model, margin)), given, batch_size=7, device="cpu")
    np.testing.assert_array_equal(found.logits, direct)
    assert found.agreement == (decisions(direct) == decisions(trial.original.logits)).mean() >= once.agreement
    assert math.isnan(once.looked)
    assert math.isnan(trial.original.looked)
    assert found.key != once.key


def test_a_model_that_folds_patches_into_the_batch_and_has_a_lossless_tail_is_counted_as_it_runs() -> None:
    names = ["C3", "C4", "O1", "O2", "F3", "F4", "P3", "P4"]
    torch.manual_seed(0)
    model = create("eegpt", n_outputs=3, n_times=512, ch_names=names).eval()
    x = np.random.default_rng(0).normal(0, 30, (6, 8, 512)).astype(np.float32)
    given = Windows.from_arrays(x, [0, 1, 2] * 2, ch_names=names, sfreq=256, classes=["a", "b", "c"])
    trial = Trial(model, given, device="cpu", batch_size=4)
    found = trial.run(recipe_for(model, "tome", ratio=0.5, second_look=1e9))
    assert found.looked == 1
    assert found.logits is not None
    assert trial.original.logits is not None
    np.testing.assert_allclose(found.logits, trial.original.logits, atol=1e-5)
    once = trial.run(recipe_for(model, "tome", ratio=0.5)).operations
    # Of eight blocks the second pass runs all but the first and the attention of the second, and a part of the last.
    assert 5.5 / 8 < found.operations - once < 6.9 / 8
    assert trial.original.operations == 1


def test_operations_are_those_of_both_passes_and_of_pooling() -> None:
    model, given = network(), split()
    trial = Trial(model, given, device="cpu")
    once, twice, every = (
        trial.run(recipe(model, margin, layers=[2])) for margin in (None, middle_margin(model, given), 1e9)
    )
    zipbrain.compress(model, recipe(model, 1.0, layers=[2]))
    summary = zipbrain.summary(model, 9)
    shape = zipbrain.seams.forward.plan_of(model).shape
    assert summary.macs is not None
    assert summary.original_macs is not None
    assert summary.pooling_macs is not None
    assert once.operations == (summary.macs + summary.pooling_macs) / summary.original_macs
    # Block 1 and the attention of block 2 are known.
    known = 2 * shape.attention_macs(9) + shape.feed_forward_macs(9)
    again = (summary.original_macs - known) / summary.original_macs
    assert twice.operations == pytest.approx(once.operations + twice.looked * again)
    assert every.looked == 1
    assert every.operations == pytest.approx(once.operations + again)
    assert trial.original.operations == 1
    assert hand_flops(zipbrain.restore(model), 9).operations() == 1


def test_a_record_keeps_them_and_one_without_is_read(tmp_path: Path) -> None:
    model = network()
    found = replace(Trial(model, split(), device="cpu").run(recipe(model, 1.0)), logits=None)
    plain = replace(Trial(model, split(), device="cpu").run(recipe(model, None)), logits=None)
    for one in (found, plain):
        Store(tmp_path).add(one.to_record())
    kept, odd = results_of(Store(tmp_path).records())
    assert odd == []
    assert (kept[0].looked, kept[0].operations) == (found.looked, found.operations)
    assert math.isnan(kept[1].looked)
    old = {name: value for name, value in found.to_record().items() if name not in ("looked", "operations")}
    assert math.isnan(Result.of(old).looked)
    assert results_of([old])[1] == []
    assert "looked" in results_of([{**found.to_record(), "looked": "often"}])[1][0]


def test_a_second_look_is_timed_apart_for_the_windows_that_a_call_has() -> None:
    model = zipbrain.compress(network(), recipe(network(), 0.5))
    x = torch.randn(8, 3, 400)
    for looked, some in ((0.01, 1), (0.5, 4), (1.0, 8)):
        call = SplitCall.of(model, x, looked)
        with torch.inference_mode():
            logits = call.again()
            first = call.first()
        assert isinstance(logits, torch.Tensor)
        assert isinstance(first, torch.Tensor)
        assert len(logits) == some
        assert call.weight * some == pytest.approx(8 * looked)
        with torch.inference_mode():
            torch.testing.assert_close(logits, network()(x[:some]), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(first, zipbrain.compress(network(), recipe(network(), None))(x))
    assert zipbrain.seams.forward.plan_of(model).second_look == 0.5
    assert SplitCall.of(model, x, 0.0).weight == 0


def test_times_of_two_passes_add_up_round_by_round() -> None:
    first, again, original = (Timing(name, tuple(s)) for name, s in (("a", [1, 2]), ("b", [4, 4]), ("c", [4, 8])))
    assert first.plus(again, 0.25).seconds == (2, 3)
    assert first.plus(again, 0.25).ratio(original) == pytest.approx((2 / 4 + 3 / 8) / 2)
    assert math.isnan(first.noise(original))
    even = Timing("d", (1.0,) * 8)
    assert even.noise(even) == 0
    assert Timing("e", (1.0, 1.1) * 8).noise(Timing("f", (1.0,) * 16)) == pytest.approx(1.96 * 1.25 * 0.1 / 1.35 / 4)


def test_a_tuned_recipe_is_a_row_of_its_own_with_its_promise_beside_what_was_measured(tmp_path: Path) -> None:
    model, given = network(), split()
    promise = {"agree": 0.99, "confidence": 0.95, "is_promise": True, "groups": 12}
    weights = Trial(model, given, device="cpu").task["weights_sha256"]
    margin = middle_margin(model, given)
    tuned = sealed(recipe(model, margin, weights=weights, dataset="arrays", split="val"), promise)
    path = tuned.save(tmp_path / "tuned.json")
    store = Store(tmp_path / "results")
    found = compare(model, given, methods=["tome"], ratios=[0.4], mass="off", tuned=path, store=store, **QUICK)
    assert [(row.label, row.ratio) for row in found.rows] == [("Original", None), ("ToMe", 0.4), ("Tuned", None)]
    row = found.rows[2]
    assert row.recipe == tuned.to_dict()
    assert row.latency is not None
    assert row.looked == pytest.approx(0.5, abs=0.1)
    scores, costs = found.tables()[:2]
    assert scores.columns[:3] == ("Method", "times\nas fast", "opera-\ntions")
    assert costs.columns[costs.columns.index("decisions\nunchanged") + 1] == "looked\ntwice"
    place = costs.columns.index("looked\ntwice")
    assert [cells[place] for cells in costs.rows] == ["-", "-", f"{100 * row.looked:.1f} %"]
    said = " ".join(found.notes)
    assert "at least 99 % of the decisions unchanged (promised at 95 % confidence for people like the 12 it" in said
    assert f"measured here: {round(30 * row.agreement)} of 30 windows" in said
    assert "timed apart" in said
    assert json.dumps(found.to_dict()["rows"][2]["recipe"]["promise"]) == json.dumps(tuned.promise)
    others = replace(tuned, weights="0" * 64)
    found = compare(model, given, methods=["tome"], ratios=[0.4], mass="off", tuned=others, **UNTIMED)
    assert "tuned for other weights, so it promises nothing here" in " ".join(found.notes)
    assert "promised at" not in " ".join(found.notes)
    changed = replace(tuned, second_look=margin / 2)
    found = compare(model, given, methods=["tome"], ratios=[0.4], mass="off", tuned=changed, **UNTIMED)
    assert "changed after it was tuned, so it promises nothing here" in " ".join(found.notes)
    plain = compare(model, given, methods=["tome"], ratios=[0.4], mass="off", **UNTIMED)
    assert "looked\ntwice" not in plain.tables()[1].columns
    with pytest.raises(OptionError, match="give it as tuned"):
        compare(model, given, setting=tuned, **QUICK)
    (section,) = build(store.records()).sections
    table = section.inside[0].tables[0]
    assert [line[table.columns.index("looked twice")] for line in table.rows] == ["-", "-", f"{100 * row.looked:.1f} %"]
    assert any("promised at 95 %" in line for line in section.inside[0].text)


def test_the_promise_says_when_fewer_answers_stayed_and_whether_chance_allows_it() -> None:
    promise = Promise.of(promising(agree=0.99, confidence=0.95))
    assert promise is not None
    assert promise.beside(1.0, 120).endswith("120 of 120 windows (100.0 %)")
    assert promise.beside(118 / 120, 120).endswith("as chance allows with so few windows")
    assert promise.beside(0.9, 120).endswith("fewer than that")
    few = Promise.of(promising(agree=0.9, confidence=0.95, is_promise=False, groups=3))
    assert few is not None
    assert "estimated, not promised: the 3 it was counted on are too few" in few.beside(1.0, 9)
    for odd in (None, {}, {"promise": 3}, promising(agree="all", confidence=0.95), promising(agree=2)):
        assert Promise.of(odd) is None
    assert Promise.of(promising(agree=0.99, confidence=0.95, precision="float16")) is None
    sure = promising(agree=0.99, confidence=0.95)
    for change in ({"weights": None}, {"schedule": {"name": "ratio", "ratio": 0.1}}, {"mass": True}):
        assert Promise.of({**sure, **change}) is None
    assert Promise.of(sure, "cd" * 32) is None
