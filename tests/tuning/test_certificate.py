"""The certificate: what it counts, what it refuses to promise, and the files and screens it becomes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from zipbrain.errors import OptionError
from zipbrain.recipe import Recipe
from zipbrain.tuning.certificate import Certificate, ComparedLogits, certify
from zipbrain.tuning.evidence import weigh
from zipbrain.tuning.groups import halves, stretches

PEOPLE = np.repeat([f"p{number:02d}" for number in range(10)], 60)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def _logits(decided: np.ndarray, outputs: int = 3) -> np.ndarray:
    return np.eye(outputs)[decided] * 3.0


def _once(before: np.ndarray, after: np.ndarray) -> ComparedLogits:
    """Of a recipe without a second look."""
    return ComparedLogits(before, after, after)


def _decisions(count: int = 600) -> np.ndarray:
    return np.arange(count) % 3


def _certificate(flipped: list[int], groups: np.ndarray = PEOPLE, **options: object) -> Certificate:
    before = _decisions(len(groups))
    after = before.copy()
    after[flipped] = (after[flipped] + 1) % 3
    first = np.where(np.arange(len(before)) % 20 == 0, (before + 1) % 3, after)
    return certify(ComparedLogits(_logits(before), _logits(after), _logits(first)), groups, **options)


def test_flips_are_counted_against_the_uncompressed_model() -> None:
    found = _certificate([7, 8])
    assert (found.flips, found.windows, found.groups) == (2, 600, 10)
    assert found.agreement == pytest.approx(598 / 600)
    assert found.is_promise
    assert found.agree < found.agreement
    assert found.worst == {"name": "p00", "windows": 60, "agreement": pytest.approx(58 / 60)}


def test_the_promise_is_the_bound_rounded_down() -> None:
    found = _certificate([7])
    exact = found.evidence.bound()
    assert found.agree == pytest.approx(exact, abs=0.001)
    assert found.agree <= exact
    assert round(found.agree, 3) == found.agree


def test_flips_without_a_second_look_say_how_people_differ() -> None:
    before = _decisions()
    looks = {"all": np.arange(600) % 20 == 0, "one": np.arange(600) < 30}
    bounds = {}
    for name, doubtful in looks.items():
        first = np.where(doubtful, (before + 1) % 3, before)
        bounds[name] = certify(ComparedLogits(_logits(before), _logits(before), _logits(first)), PEOPLE).agree
    assert bounds["one"] < bounds["all"]


def test_classes_are_the_uncompressed_models_and_rare_ones_get_no_promise() -> None:
    before = np.where(np.arange(600) % 25 == 0, 2, np.arange(600) % 2)
    after = np.where(before == 2, 0, before)  # every decision of the rare class is lost
    found = certify(_once(_logits(before), _logits(after)), PEOPLE, classes=["rest", "spike", "seizure"])
    rest, _, seizure = found.classes
    assert seizure == {"name": "seizure", "windows": 24, "agreement": 0.0, "agree": None}
    assert rest["agreement"] == 1
    assert 0 < rest["agree"] < 1
    assert found.agreement > 0.95


def test_a_class_whose_flips_are_a_few_peoples_gets_less_than_one_whose_flips_are_spread() -> None:
    before = np.arange(600) % 2
    after = before.copy()
    ones, zeros = np.flatnonzero(before == 1), np.flatnonzero(before == 0)
    after[ones[:90:3]] = 0  # of three people
    after[zeros[::10]] = 1  # of all
    found = certify(_once(_logits(before, 2), _logits(after, 2)), PEOPLE)
    assert found.classes[0]["agreement"] == found.classes[1]["agreement"]
    assert found.classes[1]["agree"] < found.classes[0]["agree"]


def test_every_certificate_can_be_written_as_json() -> None:
    before = _logits(np.arange(600) % 2, 2)
    flipped = before[:, ::-1]
    for after, groups in ((before, PEOPLE), (flipped, PEOPLE), (flipped, np.arange(600)), (before, np.arange(600))):
        json.dumps(certify(_once(before, after), groups).to_dict(), allow_nan=False)


def test_a_class_that_is_never_answered_has_no_agreement() -> None:
    before = np.arange(600) % 2
    found = certify(_once(_logits(before), _logits(before)), PEOPLE)
    assert found.classes[2]["agreement"] is None
    assert any("class 2" in line for line in found.lines())


def test_fewer_than_five_people_are_an_estimate() -> None:
    found = _certificate([1], PEOPLE[:240])
    assert not found.is_promise
    assert next(iter(found.lines())).startswith("Estimate, no promise")
    assert all(one["agree"] is None for one in found.classes)
    assert "at least 5" in next(iter(found.explain_shortfall(0.9)))


def test_threshold_crossings_count_windows_whose_alarm_changes() -> None:
    before, after = np.full((600, 1), 1.0), np.full((600, 1), 1.0)
    before[::2], after[::2] = -1.0, -1.0
    after[:60:2] = -3.0  # the decision stays, the probability falls from 0.27 to 0.05
    found = certify(_once(before, after), PEOPLE, thresholds=(0.2,))
    assert found.crossings == {"0.5": 1.0, "0.2": pytest.approx(570 / 600)}
    assert found.flips == 0


def test_labels_give_the_change_of_the_score() -> None:
    pytest.importorskip("sklearn")
    found = _certificate(list(range(60)), labels=_decisions())
    assert found.score == {"metric": "kappa", "before": 1.0, "after": pytest.approx(0.85)}
    one = _certificate([1], labels=np.zeros(600, dtype=int))
    json.dumps(one.to_dict(), allow_nan=False)


def test_a_recipe_carries_it_and_gives_it_back() -> None:
    found = _certificate([7], thresholds=(0.3,), looked_twice=0.11, runtime="onnxruntime")
    recipe = Recipe(method={"name": "twins"}, schedule={"name": "ratio", "ratio": 0.8}, promise=found.to_dict())
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert Certificate.from_dict(again.promise) == found
    assert Certificate.from_dict({**again.promise, "of_a_newer_version": 1}) == found
    with pytest.raises(OptionError, match="no agree"):
        Certificate.from_dict({"windows": 3})


def test_the_screen_says_for_whom_and_what_it_takes() -> None:
    found = _certificate([7])
    screen = "\n".join(found.lines())
    assert "for people like these" in screen
    assert "p00" in screen
    words = "\n".join(found.explain_shortfall(0.998))
    assert "can't prove more than" in words
    assert f"about {found.evidence.groups_needed(0.998)} people" in words
    assert list(found.explain_shortfall(found.agree)) == []
    assert "more windows won't change that" in "\n".join(found.explain_shortfall(0.9999))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: {**given, "after": given["after"][:, :2]}, "same windows"),
        (lambda given: {**given, "groups": given["groups"][:-1]}, "same windows"),
        (lambda given: {**given, "groups": np.zeros(600)}, "one person"),
        (lambda given: {**given, "groups": np.arange(600) // 60 - 1}, "stretches apart"),
        (lambda given: {**given, "first": given["first"] * np.nan}, "not finite for 600 of 600"),
        (lambda given: {**given, "before": np.tile([1.0, 0.0, 0.0], (600, 1))}, "agreement is trivial"),
        (lambda given: {**given, "classes": ["a", "b"]}, "between 3"),
        (lambda given: {**given, "thresholds": (1.5,)}, "between 0 and 1"),
        (lambda given: {**given, "labels": [1, 2]}, "one label"),
        (lambda given: {**given, "before": np.zeros(600)}, "shape"),
    ],
)
def test_what_can_not_be_certified_is_refused(change: object, words: str) -> None:
    logits = _logits(_decisions())
    given = change({"before": logits, "after": logits, "first": logits, "groups": PEOPLE})  # type: ignore[operator]
    with pytest.raises(OptionError, match=words):
        certify(ComparedLogits(*(given.pop(name) for name in ("before", "after", "first"))), **given)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_window_without_a_finite_answer_counts_as_changed(outputs: int) -> None:
    """Also where its logits were tied before, so that no other finite ones are surely another decision."""
    before = np.zeros((600, 1)) if outputs == 1 else _logits(_decisions() % outputs, outputs)
    before[::3] = -1.0 if outputs == 1 else 0.0  # of two outputs or more: a tie, class 0
    after = before.copy()
    after[30:33] = np.nan
    found = certify(_once(before, after), PEOPLE, thresholds=(0.2,), labels=_decisions() % max(outputs, 2))
    assert found.flips == 3
    assert found.worst["windows"] - round(found.worst["windows"] * found.worst["agreement"]) == 3
    assert found.crossings == {"0.5": pytest.approx(597 / 600), "0.2": pytest.approx(597 / 600)}
    assert found.score is not None
    assert found.score["after"] is None


def test_stretches_last_a_minute_and_share_no_sample() -> None:
    starts, seconds, reach = np.arange(100) * 10.0, 10.0, 3.0
    found = stretches(starts, seconds, reach=reach)
    assert found.max() >= 10
    for number in range(found.max() + 1):
        begins = starts[found == number]
        assert begins[-1] + seconds - begins[0] >= 60
        later = starts[found > number]
        assert not len(later) or later.min() >= begins[-1] + seconds + seconds + reach
    assert (found == -1).sum() < 30


def test_stretches_follow_recordings_and_any_order() -> None:
    starts = np.concatenate([np.arange(30) * 4.0, np.arange(30) * 4.0])
    recordings = np.repeat(["b", "a"], 30)
    order = np.random.default_rng(0).permutation(60)
    found = stretches(starts, 4.0, recordings=recordings)
    assert not {*found[:30]} & {*found[30:]} - {-1}
    mixed = stretches(starts[order], 4.0, recordings=recordings[order])
    np.testing.assert_array_equal(mixed, found[order])
    np.testing.assert_array_equal(stretches([0.0, 4.0], 4.0), [0, 0])
    with pytest.raises(OptionError, match="longer than 0 s"):
        stretches([0.0], 0.0)


def test_halves_are_whole_groups_of_equal_weight_and_follow_the_seed() -> None:
    sizes = [5, 200, 60, 33, 90, 12, 60, 71, 40]
    groups = np.repeat([f"s{number}" for number in range(9)], sizes)
    choosing, certifying = halves(groups, seed=3)
    assert not {*groups[choosing]} & {*groups[certifying]}
    assert sorted([*choosing, *certifying]) == list(range(len(groups)))
    assert abs(len(choosing) - len(certifying)) < 40
    np.testing.assert_array_equal(halves(groups, seed=3)[0], choosing)
    assert len({*groups[certifying]}) == 5
    assert any({*groups[halves(groups, seed)[0]]} != {*groups[choosing]} for seed in range(10))
    with pytest.raises(OptionError, match="at least two"):
        halves(["one"] * 4)


def test_the_simulation_counts_as_the_certificate_does() -> None:
    pytest.importorskip("scipy")
    simulation = pytest.importorskip("benchmarks.fidelity.certificate")
    rng = np.random.default_rng(5)
    sizes = simulation.group_sizes(rng, 7, 400, "unequal", 12)
    remaining, doubtful = simulation.simulate(rng, sizes, 0.1, 0.08, (0.7, "by person"))
    found = simulation.bounds(remaining, sizes, simulation.dispersion(remaining, doubtful, sizes))
    for run in range(12):
        whose = np.repeat(np.arange(7), sizes[run].astype(int))
        place = np.concatenate([np.arange(size) for size in sizes[run].astype(int)])
        one = weigh(place < remaining[run][whose], whose, place < doubtful[run][whose])
        assert one.bound() == pytest.approx(found[run], abs=1e-7)


def test_stored_coverage_is_what_the_certificate_says() -> None:
    with (RESULTS / "certificate.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {int(row["groups"]) for row in rows} == {5, 7, 10, 20, 50}
    assert all(int(row["runs"]) >= 4000 for row in rows)
    assert min(float(row["coverage"]) for row in rows) >= 0.945


def test_the_pages_tables_are_the_stored_ones() -> None:
    pytest.importorskip("scipy")
    simulation = pytest.importorskip("benchmarks.fidelity.certificate")
    results = pytest.importorskip("benchmarks.shared.results")
    assert results.shown_table("coverage") == simulation.coverage_table()
    assert results.shown_table("people") == simulation.people_table()
