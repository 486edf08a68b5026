"""`tune`: from windows without labels to a recipe and a certificate, stopped, repeated and asked wrong."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tuning.conftest import TOKENS, WIDTH, Small, balanced, fake_times, make_windows

import zipbrain
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.metrics import decisions
from zipbrain.tuning import Tuned, tune
from zipbrain.tuning.logit_cache import LogitCache, run_network
from zipbrain.tuning.times import Times
from zipbrain.tuning.tune import WORK

FAST: dict[str, Any] = {"backend": "sequential", "threads": 1, "methods": ["twins", "zipbrain"]}


@pytest.fixture(scope="module")
def windows() -> tuple[np.ndarray, np.ndarray]:
    return make_windows(24, 40)


@pytest.fixture(scope="module")
def tuned(small: Small, windows: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tuning in whose runtime time follows the tokens: a network this small gains none in any real one."""
    out = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        fake_times(patch)
        found = tune(small, windows[0], groups=windows[1], agree=0.95, out=out, **FAST)
    found.save(out)
    return found, out


def test_the_recipe_keeps_the_answers_it_counted(
    small: Small, windows: tuple[np.ndarray, np.ndarray], tuned: tuple[Tuned, Path]
) -> None:
    found, _ = tuned
    x = windows[0]
    before = run_network(small, x)
    with torch.inference_mode():
        after = zipbrain.compress(copy.deepcopy(small), found.recipe)(torch.from_numpy(x)).numpy()
    agreement = (decisions(before) == decisions(after)).mean()
    assert found.chosen.removes
    assert found.operations < 1
    assert agreement >= 0.95
    assert found.certificate.agreement == pytest.approx(agreement, abs=0.03)
    assert found.certificate.agree <= found.certificate.agreement
    assert str(found).startswith(found.headline)


def test_the_same_times_give_the_same_bytes(
    small: Small, windows: tuple[np.ndarray, np.ndarray], tuned: tuple[Tuned, Path], tmp_path: Path
) -> None:
    _, out = tuned
    (tmp_path / WORK).mkdir()
    shutil.copy(out / WORK / "times.json", tmp_path / WORK)
    again = tune(small, windows[0], groups=windows[1], agree=0.95, out=tmp_path, **FAST)
    for path in again.save(tmp_path):
        assert path.read_bytes() == (out / path.name).read_bytes(), path.name


def test_answers_are_kept_and_damaged_ones_computed_again(
    small: Small, windows: tuple[np.ndarray, np.ndarray], tuned: tuple[Tuned, Path], tmp_path: Path
) -> None:
    found, out = tuned
    shutil.copytree(out / WORK, tmp_path / WORK)
    stored = sorted((tmp_path / WORK).glob("*.npy"))
    stored[0].write_bytes(b"no array")
    stored[1].write_bytes(stored[1].read_bytes()[:50])
    for path in stored[2:]:
        logits = np.load(path)
        if logits.ndim == 2:  # answers, not the windows
            np.save(path, np.full_like(logits, np.nan))
    said: list[str] = []
    again = tune(
        small,
        windows[0],
        groups=windows[1],
        agree=0.95,
        out=tmp_path,
        progress=lambda what, done, total: said.append(f"{what} {total}"),
        **FAST,
    )
    assert again.recipe == found.recipe
    assert not [line for line in said if line.startswith("timing")]


def test_workers_give_the_same_answers_as_this_process(small: Small, tmp_path: Path) -> None:
    x, _ = make_windows(4, 60)
    rows, recipe = np.arange(len(x)), zipbrain.Recipe({"name": "twins"}, {"name": "constant", "r": 3}, True)

    def answered(folder: Path, **jobs: Any) -> list[np.ndarray]:
        made = LogitCache(small, x, folder, "token", jobs, lambda what, done, total: None)
        return made.of([None, recipe], rows, "both")

    here = answered(tmp_path / "here", backend="sequential", workers=None, address=None)
    there = answered(tmp_path / "there", backend="loky", workers=2, address=None)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_most_faithful_recipe_at_a_time(
    small: Small, windows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(monkeypatch)  # what is chosen takes 0.7
    found = tune(small, windows[0], groups=windows[1], time=0.75, **FAST)
    assert found.agree is None
    assert found.chosen.time <= 0.75
    assert found.is_kept
    slower = tune(small, windows[0], groups=windows[1], time=0.95, **FAST)
    assert slower.certificate.agreement >= found.certificate.agreement
    late = tune(small, windows[0], groups=windows[1], time=0.05, **FAST)
    assert not late.is_kept
    assert any("no recipe was found" in note for note in late.notes)


def test_further_candidates_are_timed_where_the_first_are_slower_than_expected(
    small: Small, windows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(monkeypatch)
    as_expected = Times.relative
    finals: list[list[float]] = []

    def slow_at_first(times: Times, recipes: list[Any], x: np.ndarray, what: str) -> list[float]:
        found = as_expected(times, recipes, x, what)
        if what != "finalists":
            return found
        finals.append(found if finals else [1.5] * len(found))
        return finals[-1]

    monkeypatch.setattr(Times, "relative", slow_at_first)
    found = tune(small, windows[0], groups=windows[1], agree=0.95, **FAST)
    assert len(finals) == 2
    assert found.chosen.removes


def test_the_original_is_returned_where_nothing_gains(
    small: Small, windows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Times, "relative", lambda self, recipes, x, what: [2.0] * len(recipes))
    found = tune(small, windows[0], groups=windows[1], agree=0.99, **FAST)
    assert any("nothing gains" in note for note in found.notes)
    assert (found.time, found.operations) == (1.0, 1.0)
    with torch.inference_mode():
        x = torch.from_numpy(windows[0][:8])
        after = zipbrain.compress(copy.deepcopy(small), found.recipe)(x)
        torch.testing.assert_close(after, small(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"time": 0.5}, {"agree": 0.95}], ids=["time", "agree"])
def test_one_note_says_that_what_was_chosen_is_slower_than_the_original(
    small: Small, windows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    fake_times(monkeypatch)
    monkeypatch.setattr(Times, "_timed", lambda times, calls, what: {"tuned": 1.02})
    found = tune(small, windows[0], groups=windows[1], **options, **FAST)
    notes = [note for note in found.notes if "time" in note]
    assert len(notes) == 1, notes
    assert notes[0].endswith("so the original is returned")
    assert "102%" in notes[0]
    assert ("99" in notes[0], "50%" in notes[0]) == (False, "time" in options)
    assert not found.chosen.removes
    assert found.is_kept is ("agree" in options)


def test_too_few_people_can_promise_nothing_and_hear_how_many_are_needed(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(monkeypatch)
    x, groups = make_windows(6, 40)
    found = tune(small, x, groups=groups, agree=0.99, **FAST)
    assert not found.certificate.is_promise
    assert not found.is_kept
    assert any(word.isdigit() for word in str(found).replace(",", "").split())


class OneClass(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.tensor([99.0, 0.0, 0.0])


class Twice(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.encoder(x)
        return super().forward(x)


class Broken(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.nan


class Sequence(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def _many() -> tuple[np.ndarray, np.ndarray]:
    return make_windows(10, 20)


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (Small, {"agree": 1.0}, "agree"),
        (Small, {"agree": "much"}, "agree"),
        (Small, {"time": 1.5}, "time"),
        (Small, {"batch": 0}, "batch"),
        (Small, {"runtime": "abacus"}, "runtime"),
        (Small, {"groups": ["me"] * 200}, "groups"),
        (Small, {"groups": ["me"] * 3}, "groups"),
        (Small, {"groups": ["me", "you"] * 100}, "groups"),
        (Twice, {}, "times for a window"),
        (Small, {"groups": None}, "groups"),
        (Small, {"groups": [None, "you"] * 100}, "groups"),
        (Small, {"groups": 5}, "groups"),
        (Small, {"threads": 0}, "threads"),
        (Small, {"seed": -1}, "seed"),
        (Small, {"thresholds": 0.5}, "thresholds"),
        (Small, {"methods": []}, "methods"),
        (Small, {"thresholds": [1.5]}, "thresholds"),
        (Small, {"scaling": "hundred"}, "scaling"),
        (OneClass, {}, "one class"),
        (Broken, {}, "NaN"),
        (Sequence, {}, "classes"),
    ],
)
def test_wrong_use_is_refused_in_one_line(model: type[Small], options: dict[str, Any], named: str) -> None:
    x, groups = _many()
    with pytest.raises(ZipbrainError, match=named) as refused:
        tune(balanced(model), x, **{"groups": groups, **FAST, **options})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "windows",
    [np.zeros((0, TOKENS, WIDTH)), np.zeros(5), np.zeros((12, TOKENS, WIDTH))],
    ids=["none", "no windows", "too few"],
)
def test_too_few_windows_are_refused(small: Small, windows: np.ndarray) -> None:
    with pytest.raises(OptionError, match="windows"):
        tune(small, windows, groups=np.arange(len(windows)) % 4, **FAST)


def test_windows_without_subjects_are_no_people(small: Small) -> None:
    from zipbrain.data import Windows

    x, _ = make_windows(4, 30)
    names = [f"E{number}" for number in range(TOKENS)]
    windows = Windows.from_arrays(x * 20, np.arange(len(x)) % 3, ch_names=names, sfreq=200, check=False)
    with pytest.raises(OptionError, match="groups"):
        tune(small, windows, scaling="hundred", **FAST)


def test_networks_with_the_same_weights_are_told_apart(tmp_path: Path) -> None:
    x, groups = make_windows(10, 24)
    one, other = balanced(Small), balanced(Small)
    for layer in other.encoder.layers:
        layer.self_attn.num_heads, layer.self_attn.head_dim = 4, WIDTH // 4
    before = {name: run_network(model, x) for name, model in (("one", one), ("other", other))}
    assert np.abs(before["one"] - before["other"]).max() > 0.01
    out = tmp_path / "both"
    tokens = []
    for model in (one, other):
        tune(model, x, groups=groups, agree=0.9, out=out, **FAST)
        tokens.append({path.name for path in (out / WORK).glob("*.npy")})
    assert len(tokens[1]) > len(tokens[0])


def test_a_tuned_recipe_says_for_which_weights_it_is(tuned: tuple[Tuned, Path]) -> None:
    found, out = tuned
    assert json.loads((out / "recipe.json").read_text())["promise"]["agree"] == found.certificate.agree
    with pytest.warns(UserWarning, match="other weights"):
        zipbrain.compress(Small(), found.recipe)


@pytest.mark.slow
def test_a_killed_tuning_goes_on_to_the_same_recipe(tmp_path: Path) -> None:
    from tests.tuning.kills import kill_until_done

    assert kill_until_done(tmp_path, kills=3) == []


def test_a_model_at_chance_is_said(small: Small, windows: tuple[np.ndarray, np.ndarray]) -> None:
    from zipbrain.tuning.model_checks import note_chance

    logits = run_network(small, windows[0])
    found = [note_chance(logits, np.random.default_rng(seed).integers(0, 3, len(logits))) for seed in range(8)]
    assert sum(any("chance" in note for note in notes) for notes in found) >= 7  # one in 40 is better by luck
    assert note_chance(logits, decisions(logits)) == []
    assert note_chance(logits, None) == []
    rare = np.arange(600) % 20 == 0  # the most frequent class would be right more often
    better = np.where(rare, 1.5, -1.0)[:, None] + np.random.default_rng(0).normal(size=(600, 1)) * 2
    assert note_chance(better.astype(np.float32), rare.astype(np.int64)) == []


def test_outputs_that_are_probabilities_are_said(
    small: Small, windows: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(monkeypatch)
    x, groups = windows
    softmax = torch.nn.Sequential(copy.deepcopy(small), torch.nn.Softmax(1))
    found = tune(softmax, x[:480], groups=groups[:480], agree=0.9, **FAST)
    assert any("probabilities" in note for note in found.notes)
    assert not any(
        "probabilities" in note for note in tune(small, x[:480], groups=groups[:480], agree=0.9, **FAST).notes
    )
