"""A trial scores any recipe on one model and one set of windows, and leaves the model alone."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from torch import Tensor, nn

import zipbrain
from seams.small_models import DIM, Stack, varied
from training.small import BIOT, windows
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation.fingerprints import data_sha256
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import ANSWERS, Trial, check_fit, recipe_for
from zipbrain.metrics import logit_error
from zipbrain.models import Task, create, remember
from zipbrain.pooling import ToMe, ZIPBrain, registry
from zipbrain.recipe import Recipe
from zipbrain.training import predict
from zipbrain.training.checkpoints import weights_of
from zipbrain.training.loader import Feed
from zipbrain.weights import fingerprint


def model(outputs: int = 1, channels: int = 3, seed: int = 0) -> nn.Module:
    return varied(create("biot", n_outputs=outputs, n_chans=channels, n_times=400, **BIOT), seed)


def trial(outputs: int = 1, n: int = 11, **options: Any) -> Trial:
    given = windows(n, classes=max(2, outputs))
    return Trial(model(outputs), given, **{"device": "cpu", "batch_size": 4} | options)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_result_is_what_predict_and_scikit_learn_give(outputs: int) -> None:
    scored, network = trial(outputs), model(outputs)
    given = scored.windows
    before = predict(network, given, batch_size=4, device="cpu")
    recipe = recipe_for(network, "zipbrain", r=3)
    found = scored.run(recipe)
    after = predict(zipbrain.compress(network, recipe), given, batch_size=4, device="cpu")
    decide = (lambda x: x[:, 0] >= 0) if outputs == 1 else (lambda x: x.argmax(1))
    assert np.array_equal(scored.original.logits, before)
    assert np.array_equal(found.logits, after)
    assert found.logits.dtype == np.float32
    assert found.scores["kappa"] == cohen_kappa_score(given.labels, decide(after))
    assert found.confusion == confusion_matrix(given.labels, decide(after), labels=range(max(2, outputs))).tolist()
    assert found.agreement == (decide(after) == decide(before)).mean()
    assert found.logit_error == logit_error(after, before) > 0
    assert found.token_counts == (9, 6, 3)
    assert found.removed == pytest.approx(2 / 3)
    assert found.seconds > 0
    assert (scored.original.agreement, scored.original.logit_error, scored.original.removed) == (1, 0, 0)
    assert scored.original.token_counts == (9, 9, 9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_reusing_the_prefix_changes_no_bit(outputs: int) -> None:
    plain, quick = trial(outputs, prefix_budget=0), trial(outputs)
    for method in (ZIPBrain("kh", "v", "q", 0.3), ToMe(), "evit", "dart", "free_slicing"):
        for mass in (False, True):
            recipe = recipe_for(plain.model, method, ratio=0.6, mass=mass)
            first, second = quick.run(recipe), quick.run(recipe)
            expected = plain.run(recipe)
            assert np.array_equal(first.logits, expected.logits)
            assert np.array_equal(second.logits, expected.logits)
            assert second.scores == expected.scores
            assert second.key == expected.key
    assert plain.prefix_seconds == 0 < quick.prefix_seconds


def test_windows_that_are_streamed_or_do_not_fit_the_budget_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(model(), "zipbrain", ratio=0.6)
    expected = trial().run(recipe).logits
    assert np.array_equal(trial(prefix_budget=0).run(recipe).logits, expected)
    monkeypatch.setattr("zipbrain.training.loader._roomiest", lambda *_: "disk")
    streamed = trial()
    assert streamed._feed.stored is None
    assert np.array_equal(streamed.run(recipe).logits, expected)


def test_the_model_that_was_given_stays_as_it_is() -> None:
    network = model().train()
    scored = Trial(network, windows(8), device="cpu")
    state = fingerprint(weights_of(network))
    scored.run(recipe_for(network, "tome", ratio=0.5))
    with pytest.raises(OptionError, match="layers"):
        scored.run(recipe_for(network, "tome", ratio=0.5, layers=[9]))
    assert network.training
    assert not zipbrain.seams.is_compressed(network)
    assert not zipbrain.seams.is_compressed(scored.model)
    assert fingerprint(weights_of(network)) == state == scored.task["weights_sha256"]


def test_a_model_that_came_compressed_stays_so_and_its_original_is_not() -> None:
    network = zipbrain.compress(model(), r=4)
    scored = Trial(network, windows(8), device="cpu")
    assert zipbrain.seams.is_compressed(network)
    assert len(scored.remarks) == 1
    assert "came compressed" in scored.remarks[0]
    assert np.array_equal(scored.original.logits, trial(n=8, batch_size=128).original.logits)
    assert not trial().remarks


def test_the_task_names_model_data_and_fingerprints() -> None:
    scored = trial(3, checkpoint="runs/first", split="val")
    assert scored.task == {
        "model": "BIOT", "dataset": "arrays", "split": "val", "windows": 11, "subjects": 11,
        "classes": ["class 0", "class 1", "class 2"], "weights_sha256": fingerprint(weights_of(model(3))),
        "data_sha256": data_sha256(windows(11, classes=3)), "checkpoint": "runs/first",
    }  # fmt: skip


def test_the_key_changes_with_whatever_changes_the_answer_and_nothing_else() -> None:
    recipe = recipe_for(model(), "zipbrain", ratio=0.6)
    expected = trial().key(recipe)
    assert trial(batch_size=2, checkpoint="elsewhere", split="val").key(recipe) == expected
    assert trial().key(recipe_for(model(), ZIPBrain(), ratio=0.6, dataset="TUAB", metric="auroc")) == expected
    others = [
        trial().key(None),
        trial().key(recipe_for(model(), "zipbrain", ratio=0.7)),
        trial().key(recipe_for(model(), "zipbrain", ratio=0.6, mass=True)),
        trial(n=12).key(recipe),
        trial(scaling="none").key(recipe),
        Trial(model(seed=1), windows(11), device="cpu").key(recipe),
    ]
    assert len({expected, *others}) == 7


def arrays(**changes: Any) -> Windows:
    x: NDArray[np.float32] = np.arange(2 * 3 * 400, dtype=np.float32).reshape(2, 3, 400)
    given = {"x": x, "y": [0, 1], "ch_names": ["C3", "C4", "O1"], "sfreq": 200, "subjects": ["a", "b"]} | changes
    return Windows.from_arrays(given.pop("x"), given.pop("y"), **given)


def test_the_hash_of_data_covers_every_part_of_it() -> None:
    other = np.arange(2 * 3 * 400, dtype=np.float32).reshape(2, 3, 400)
    other[1, 2, 399] += 1
    changes: list[dict[str, Any]] = [
        {}, {"x": other}, {"y": [1, 0]}, {"subjects": ["a", "c"]}, {"ch_names": ["C3", "C4", "O2"]}, {"sfreq": 100},
        {"classes": ["0", "one"]},
    ]  # fmt: skip
    assert len({data_sha256(arrays(**change)) for change in changes}) == len(changes)
    assert data_sha256(arrays()) == data_sha256(arrays(name="another"))
    many = windows(300)  # more than one chunk
    assert data_sha256(many) == data_sha256(windows(300))
    assert data_sha256(many) != data_sha256(many.select(np.arange(299)))


def test_a_result_comes_back_from_the_store_as_it_was(tmp_path: Path) -> None:
    scored, store = trial(), Store(tmp_path)
    ran = scored.run(recipe_for(scored.model, "dart", ratio=0.5))
    for result in (scored.original, replace(ran, kind="compare", ratio=0.5, intervals={"kappa": (0.1, math.nan)})):
        store.add(result.to_record())
        (found,) = [Result.of(record) for record in Store(tmp_path).records() if record["key"] == result.key]
        assert repr(found) == repr(result)  # NaN is not equal to itself
    assert (found.method, found.kind, found.ratio, found.task) == ("dart", "compare", 0.5, scored.task)
    assert found.key == scored.key(zipbrain.Recipe.from_dict(found.recipe or {}))
    assert (scored.original.recipe, scored.original.key) == (None, scored.key(None))
    stored = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])
    assert stored["format"] == 1
    assert "logits" not in stored


def test_logit_error_by_hand() -> None:
    before = np.array([[0.0], [2.0]], dtype=np.float32)  # variance 1
    assert logit_error(before + 3, before) == 9
    assert np.isnan(logit_error(before, np.ones_like(before)))
    several = np.array([[0.0, 2.0], [2.0, 0.0]], dtype=np.float32)  # centred: -1, 1 and 1, -1
    assert logit_error(several + 5, several) == 0  # the same for all classes: the same answer
    assert logit_error(3 * several, several) == 4


def test_a_recipe_from_anything_that_compress_takes() -> None:
    network = model()
    by_name = recipe_for(network, "zipbrain", ratio=0.8)
    assert by_name.model == "BIOT"
    assert by_name.key() == recipe_for(network, ZIPBrain().to_dict(), schedule={"name": "ratio", "ratio": 0.8}).key()
    full = recipe_for(network, ToMe(), r=[3, 1], layers=range(1, 3), mass=True, dataset="tuab", score=0.5)
    assert (full.layers, full.dataset, full.score) == ((1, 2), "TUAB", 0.5)
    assert zipbrain.seams.summary(zipbrain.compress(network, full), 9).token_counts == [9, 6, 5]
    with pytest.raises(OptionError, match="exactly one"):
        recipe_for(network, "tome")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (windows(8, classes=3), "data: got '3 classes', but the model has 1 output"),
        (windows(8, channels=4), "data: got '4 channels', but the model was made for 3"),
        (windows(8).select([]), "there is none"),
        (windows(8).select([1, 3]), "windows: got \"2 windows of class 'class 1' only\""),
    ],
)
def test_windows_that_do_not_fit_are_refused_in_one_line(given: Windows, said: str) -> None:
    with pytest.raises(OptionError) as refusal:
        Trial(model(), given, device="cpu")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_windows_with_nan_are_refused_by_number() -> None:
    given = windows(8)
    x = given.take(np.arange(8))
    x[5, 1, 7] = np.nan
    broken = Windows.from_arrays(x, given.labels, ch_names=given.ch_names, sfreq=200)
    with pytest.raises(OptionError, match=r"1 of 8 windows with NaN or infinite logits \(the first is 5\)"):
        Trial(model(), broken, device="cpu").original  # noqa: B018


def test_the_same_classes_in_another_order_give_the_same_scores() -> None:
    network, given = model(3), windows(11, classes=3)
    remember(network, Task(given.classes))
    swapped = Windows.from_arrays(
        given.take(slice(None)), 2 - given.labels, ch_names=given.ch_names, sfreq=200, classes=given.classes[::-1]
    )
    one, two = (Trial(network, data, device="cpu", scaling="hundred") for data in (given, swapped))
    assert two.windows.classes == given.classes
    assert two.windows.labels.tolist() == given.labels.tolist()
    assert one.original.scores == two.original.scores
    assert one.original.confusion == two.original.confusion
    other = Windows.from_arrays(
        given.take(slice(None)), given.labels, ch_names=given.ch_names, sfreq=200, classes=["class 0", "class 1", "x"]
    )
    with pytest.raises(OptionError, match="trained for class 0, class 1, class 2"):
        Trial(network, other, device="cpu", scaling="hundred")


def test_windows_of_another_length_than_in_training_are_noted() -> None:
    network, longer = model(), windows(11, seconds=3)
    assert Trial(network, longer, device="cpu").remarks == []  # what it was trained on is not known
    remember(network, Task(longer.classes))
    (remark,) = Trial(network, longer, device="cpu").remarks
    assert "windows of 3 s, but the model was trained on windows of 2 s" in remark
    assert Trial(network, windows(11), device="cpu").remarks == []


def test_windows_filtered_otherwise_than_in_training_are_noted() -> None:
    network, given = model(), windows(11)
    remember(network, Task(given.classes, filters="from 0.1 Hz to 75 Hz, notch at 50 Hz"))
    assert Trial(network, given, device="cpu").remarks == []  # how these are filtered is not known
    given.filters = "from 0.1 Hz to 75 Hz, notch at 50 Hz"
    assert Trial(network, given, device="cpu").remarks == []
    given.filters = "from 1 Hz to 40 Hz, no notch"
    (remark,) = Trial(network, given, device="cpu").remarks
    assert "filtered from 1 Hz to 40 Hz, no notch, but the model was trained on windows filtered from 0.1 Hz" in remark


def test_a_rate_that_the_model_does_not_read_is_refused() -> None:
    given = windows(11, classes=3)
    given.sfreq = 1.0
    with pytest.raises(OptionError, match=r"sfreq: got 1\.0, but BIOT reads 200 Hz"):
        Trial(model(3), given, device="cpu")


class Foreign(nn.Module):
    """A model that is not ours: one token a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.stack, self.head = nn.Linear(3, DIM), Stack(), nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stack(self.embed(x[:, :, :40].transpose(1, 2))).mean(1))
        return logits


def test_a_foreign_model_needs_a_scaling_and_nothing_more() -> None:
    network = varied(Foreign())
    with pytest.raises(OptionError, match="Foreign is none of our models"):
        Trial(network, windows(8), device="cpu")
    check_fit(network, windows(8))
    scored = Trial(network, windows(8), device="cpu", scaling="hundred", batch_size=3)
    recipe = recipe_for(network, "zipbrain", ratio=0.5)
    found = [scored.run(recipe).logits for _ in range(2)]
    feed = Feed(windows(8), "hundred", torch.device("cpu"))
    expected = predict(zipbrain.compress(network, recipe), feed, batch_size=3)
    assert np.array_equal(found[0], expected)
    assert np.array_equal(found[1], expected)
    assert scored.task["model"] == "Foreign"


class Encoder(nn.Module):
    """Another foreign one: its state says neither heads, activation, order of norms nor window."""

    def __init__(self, heads: int = 2, shift: float = 0.0, power: int = 1, **options: Any) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, DIM), nn.Linear(DIM, 1)
        self.layer = nn.TransformerEncoderLayer(DIM, heads, 2 * DIM, batch_first=True, dropout=0.0, **options)
        self.register_buffer("shift", torch.full((DIM,), shift), persistent=False)
        self.settings = SimpleNamespace(power=power)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x[:, :, :40].transpose(1, 2)) + self.shift
        logits: Tensor = self.head(self.layer(tokens).mean(1) ** self.settings.power)
        return logits


def test_a_foreign_models_key_covers_what_its_state_lacks() -> None:
    options: list[dict[str, Any]] = [
        {}, {"heads": 4}, {"activation": "gelu"}, {"activation": torch.tanh}, {"activation": torch.sigmoid},
        {"norm_first": True}, {"layer_norm_eps": 0.1}, {"shift": 1.0}, {"power": 3},
    ]  # fmt: skip
    networks = [varied(Encoder(**given)) for given in options]
    trials = [Trial(network, windows(6), device="cpu", scaling="hundred") for network in networks]
    assert len({one.task["weights_sha256"] for one in trials}) == 1
    assert len({one.original.logits.tobytes() for one in trials}) == len(options)
    assert len({one.key(None) for one in trials}) == len(options)
    again = Trial(varied(Encoder()).train(), windows(6), device="cpu", scaling="hundred")
    assert again.key(None) == trials[0].original.key == trials[0].key(None)


def test_a_foreign_models_key_is_the_same_compressed_and_in_another_process() -> None:
    network = varied(Foreign())
    expected = Trial(network, windows(6), device="cpu", scaling="hundred").key(None)
    zipbrain.compress(network, r=2)
    assert Trial(network, windows(6), device="cpu", scaling="hundred").key(None) == expected
    code = (
        f"from {__name__} import *\n"
        "print(Trial(varied(Foreign()), windows(6), device='cpu', scaling='hundred').key(None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert done.stdout.strip() == expected


def test_the_key_changes_with_the_version_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = trial()
    before = scored.key(None)
    monkeypatch.setattr("zipbrain.evaluation.trial.ANSWERS", ANSWERS + 1)
    assert scored.key(None) != before


SOURCE = """
from dataclasses import dataclass
from zipbrain.pooling import {base}

@dataclass(frozen=True)
class Mine({base}):
    def limit(self, n): return {limit}
"""


def test_the_key_changes_with_the_code_of_a_method_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_PARTS", dict(registry._PARTS))
    scored, keys = trial(), []
    for number, limit in enumerate(("n - 1", "n - 1", "n - 2")):
        path = tmp_path / f"mine_{number}.py"
        path.write_text(SOURCE.format(base="DART", limit=limit), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        registry._PARTS.pop("mine", None)
        registry.register("mine")(importlib.import_module(path.stem).Mine)
        keys.append(scored.key(recipe_for(scored.model, "mine", ratio=0.5)))
    assert keys[0] == keys[1] != keys[2]
    namespace: dict[str, Any] = {"__name__": "prompt"}
    exec(SOURCE.format(base="DART", limit="n - 3"), namespace)  # no source to be had
    registry._PARTS.pop("mine")
    registry.register("mine")(namespace["Mine"])
    assert scored.key(recipe_for(scored.model, "mine", ratio=0.5)) not in keys
    registry._PARTS.pop("mine")  # not known here, but no reason to fail
    assert scored.key(Recipe({"name": "mine"}, {"name": "ratio", "ratio": 0.5}))


def test_progress_is_told_window_by_window() -> None:
    scored, done = trial(), []
    scored.run(recipe_for(scored.model, "tome", r=2), tick=done.append)
    assert done == [4, 4, 3]
