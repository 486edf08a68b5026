"""Recipes: the paper's table, overriding, and what can't be asked for."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

import conftest
from training.small import windows
from zipbrain.errors import OptionError
from zipbrain.paper import DATASETS, MODELS
from zipbrain.training import TrainingSettings, paper_settings, scratch_settings
from zipbrain.training.model_setup import build_model
from zipbrain.training.settings import masked_tokens_settings, parse_settings, token_learning_settings
from zipbrain.training.settings_table import PAPER

SCHEDULES = {"Cosine": "cosine", "OneCycleLR": "onecycle", "/": "constant", "Custom": "cosine"}


def rows() -> list[dict[str, str]]:
    table = conftest.SHARED / "spec" / "tables" / "finetune.csv"
    if not table.exists():
        pytest.skip(f"the paper's table was not found at {table}")
    with table.open() as lines:
        return list(csv.DictReader(lines))


def test_every_printed_number_is_the_papers() -> None:
    seen = 0
    for row in rows():
        settings = paper_settings(row["model"], row["dataset"])
        if row["optimizer"] == "/":
            assert settings.origin == "official"  # the paper took released weights
            continue
        seen += 1
        expected: dict[str, Any] = {
            "origin": "paper",
            "optimizer": row["optimizer"].lower(),
            "schedule": SCHEDULES[row["scheduler"]],
            "seed": int(row["seed"]),
            "batch_size": int(row["batch_size"]),
            "epochs": int(row["epochs"]),
            "lr": float(row["lr"]),
        }
        if row["warmup"] != "/":
            expected["warmup_epochs"] = float(row["warmup"])
        if row["weight_decay"]:
            expected["weight_decay"] = float(row["weight_decay"])
            expected["layer_decay"] = float(row["layer_decay"]) or 1.0  # the table writes 0 for off
            expected["drop_path"] = float(row["drop_path"])
        assert {name: getattr(settings, name) for name in expected} == expected, row
    assert seen == 18


def test_all_twenty_pairs_are_there_and_what_the_table_omits_is_set() -> None:
    assert set(PAPER) == {(model, dataset) for model in MODELS for dataset in DATASETS}
    labram, eegpt = paper_settings("labram", "tuab"), paper_settings("EEGPT", "TUEV")
    probe, biot, tfm = (
        paper_settings("eegpt", "eareeg"),
        paper_settings("biot", "isruc"),
        paper_settings("tfm", "eegmat"),
    )
    assert (labram.amp, labram.selection, labram.final_lr, labram.head_scale) == ("fp16", "accuracy", 1e-6, 0.001)
    assert (labram.decay_all, labram.drop_last, labram.label_smoothing) == (False, True, 0.1)
    assert eegpt.inert == ("layer_decay", "drop_path")
    assert eegpt.applied("layer_decay") is None
    assert eegpt.options == {"front_end": "tuev"}
    assert (probe.frozen, probe.options, probe.selection) == (("target_encoder.",), {"head": "probe"}, "last")
    assert (probe.binary_loss, probe.label_smoothing, probe.drop_last) == ("ce", 0.0, False)
    assert (biot.weight_decay, biot.patience, biot.stop_metric, biot.selection) == (1e-5, 5, "main", "last")
    assert tfm.final_lr > tfm.lr  # the rate rises, as written
    assert (tfm.frozen, tfm.selection, tfm.label_smoothing) == (("tokenizer.",), "main", 0.1)
    assert (token_learning_settings().epochs, masked_tokens_settings().epochs) == (100, 50)
    assert token_learning_settings().betas == (0.9, 0.99)


@pytest.mark.parametrize("model", MODELS)
def test_from_scratch_nothing_learns_at_another_rate_and_heads_start_ordinarily(model: str) -> None:
    settings = scratch_settings(model)
    assert (settings.origin, settings.layer_decay, settings.dataset) == ("scratch", 1.0, None)
    assert settings.head_scale in (None, 1.0)
    assert settings.frozen == (("tokenizer.",) if model == "TFM-Tokenizer" else ())


def test_overriding_is_recorded_shortens_the_warm_up_and_wakes_inert_settings() -> None:
    settings = paper_settings("eegpt", "tuab").override(epochs=10, layer_decay=0.8)
    assert (settings.epochs, settings.warmup_epochs, settings.layer_decay) == (10, 1.0, 0.8)
    assert set(settings.changed) == {"epochs", "layer_decay", "warmup_epochs"}
    assert settings.inert == ("drop_path",)
    assert paper_settings("labram", "tuab").override(epochs=100).warmup_epochs == 1


def test_settings_survive_json() -> None:
    settings = paper_settings("eegpt", "isruc").override(lr=1e-3, betas=[0.8, 0.9])
    assert TrainingSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_settings_are_read_from_words() -> None:
    found = parse_settings(["lr=1e-3", "amp=no", "patience=none", "drop-last=false", "betas=[0.8, 0.9]", "epochs=3"])
    assert found == {
        "lr": 1e-3, "amp": "no", "patience": None, "drop_last": False, "betas": [0.8, 0.9], "epochs": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lr", "write name=value"),
        ("momentum=0.9", "known settings are epochs"),
        ("epochs=many", "epochs is a number"),
        ("epochs=none", "can't be switched off"),
        ("model=biot", "known settings are"),
        ("drop_last=0", "drop_last is true or false"),
        ("decay_all=maybe", "decay_all is true or false"),
    ],
)
def test_bad_words_are_refused(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_settings([words])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs: got 0"),
        ({"epochs": 10**20}, "epochs: got 100000000000000000000, but .* from 1 to 100,000"),
        ({"seed": 10**20}, "seed: got 100000000000000000000, but .* from 0 to"),
        ({"seed": 2**63}, "seed: got 9223372036854775808"),
        ({"pretrain_steps": 10**20}, "pretrain_steps: got 100000000000000000000"),
        ({"batch_size": 1.5}, "whole number"),
        ({"lr": -1.0}, "at least 0"),
        ({"layer_decay": 0.0}, "1 is off"),
        ({"schedule": "linear"}, "cosine, onecycle, constant"),
        ({"selection": "auroc"}, "accuracy, main, last"),
        ({"warmup_epochs": 50}, r"below epochs \(50\)"),
        ({"patience": 0}, "at least 1"),
        ({"label_smoothing": 1.0}, "below 1"),
        ({"momentum": 0.9}, "known settings"),
        ({"options": 5}, "names and values"),
        ({"betas": 0.9}, "two numbers"),
        ({"betas": [0.9, 1.0]}, "two numbers"),
        ({"dropout": 2}, "below 1"),
        ({"drop_path": -0.1}, "at least 0"),
        ({"drop_last": "no"}, "true or false"),
        ({"frozen": 3}, "list of names"),
        ({"patience": 1.5}, "whole number"),
        ({"grad_clip": float("nan")}, "above 0"),
        ({"head_scale": "small"}, "a number"),
        ({"lr": True}, "a number"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        paper_settings("labram", "tuab").override(**settings)


def test_unknown_models_and_corpora_are_refused() -> None:
    with pytest.raises(OptionError, match="model: got 'bendr'"):
        scratch_settings("bendr")
    with pytest.raises(OptionError, match="dataset: got 'mumtaz'"):
        paper_settings("labram", "mumtaz")


@pytest.mark.parametrize(("word", "meaning"), [("False", False), ("no", False), ("TRUE", True), ("Yes", True)])
def test_true_and_false_are_words_in_any_case(word: str, meaning: bool) -> None:
    assert parse_settings([f"drop_last={word}", f"decay_all={word}"]) == {"drop_last": meaning, "decay_all": meaning}


def test_one_name_is_a_list_of_one() -> None:
    settings = scratch_settings("tfm").override(**parse_settings(["frozen=encoder."]))
    assert settings.frozen == ("encoder.",)


@pytest.mark.parametrize(("model", "rates"), [("eegpt", (1.0, 128.0, 500.0)), ("biot", (1.0, 256.0))])
def test_a_rate_that_the_model_does_not_read_is_refused(model: str, rates: tuple[float, ...]) -> None:
    for rate in rates:
        given = windows(4)
        given.sfreq = rate
        with pytest.raises(OptionError, match=rf"sfreq: got {rate}, .*resample"):
            build_model(scratch_settings(model), given)


def test_an_inert_setting_that_the_model_lacks_is_refused_when_it_is_asked_for() -> None:
    settings = paper_settings("eegpt", "tuev").override(drop_path=0.1)
    with pytest.raises(OptionError, match=r"drop_path: got 0.1, but EEGPT has no drop path"):
        build_model(settings, windows(4))
