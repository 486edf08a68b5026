"""Numbers from outside: one exact meaning before and after JSON, and none that hangs or fills the memory."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipbrain import Recipe, ZIPBrain
from zipbrain.errors import OptionError
from zipbrain.files import parse_json
from zipbrain.numerals import exact_fraction, whole_number
from zipbrain.pooling.schedule import as_schedule
from zipbrain.pooling.steps import exact_share, pivot_count

HUGE = ["1e999999999", "1E+99999999", "0." + "3" * 10**6, "9" * 10**6, "1/" + "7" * 10**5, 10**4000, "1e400"]


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.3, (3, 10)),
        ("0.3", (3, 10)),
        (0.1 * 3, (3, 10)),
        (sum([0.1] * 10), (1, 1)),
        ("5/6", (5, 6)),
        (Fraction(5, 6), (5, 6)),
        (5 / 6, (5, 6)),
        (1 - 1 / 6, (5, 6)),
        (127 / 353, (127, 353)),
        (np.float32(0.3), (3, 10)),
        (np.float64(0.7), (7, 10)),
        (1, (1, 1)),
        (0.0, (0, 1)),
        ("-0.5", (-1, 2)),
        (0.333333333333333, (333333333333333, 10**15)),
        (1e-7, (1, 10**7)),
    ],
)
def test_a_number_is_the_fraction_it_was_meant_as(value: object, exact: tuple[int, int]) -> None:
    assert exact_fraction("rho", value) == Fraction(*exact)


@given(st.floats(0, 1))
def test_any_number_means_the_same_after_json(value: float) -> None:
    once = exact_share("rho", value)
    assert exact_share("rho", json.loads(json.dumps(float(once)))) == once
    assert abs(once - Fraction(value)) <= Fraction(2) ** -49 * Fraction(value) + Fraction(2) ** -1074


@given(st.integers(1, 10_000).flatmap(lambda d: st.tuples(st.integers(0, d), st.just(d))))
def test_a_simple_fraction_survives_json_exactly(pair: tuple[int, int]) -> None:
    fraction = Fraction(*pair)
    method = ZIPBrain(rho=f"{fraction.numerator}/{fraction.denominator}")  # type: ignore[arg-type]
    again = ZIPBrain(rho=json.loads(json.dumps(method.to_dict()))["rho"])
    # A denominator of ten thousand may fall on a decimal of fifteen digits; both then mean that decimal.
    assert again.share == method.share
    assert pivot_count(360, 0, method.share) == pivot_count(360, 0, fraction)


def test_pivots_are_as_many_after_json_and_however_rho_was_computed() -> None:
    counts = {rho: pivot_count(36, 30, ZIPBrain(rho=rho).share) for rho in ("5/6", 5 / 6)}  # type: ignore[arg-type]
    form = json.loads(json.dumps(ZIPBrain(rho="5/6").to_dict()))  # type: ignore[arg-type]
    assert {*counts.values(), pivot_count(36, 30, ZIPBrain(rho=form["rho"]).share)} == {5}
    assert pivot_count(30, 20, ZIPBrain(rho=0.1 * 3).share) == pivot_count(30, 20, ZIPBrain(rho=0.3).share) == 3
    recipes = [Recipe({"name": "zipbrain", "rho": rho}, {"name": "ratio", "ratio": rho}) for rho in (0.1 * 3, 0.3)]
    assert recipes[0].key() == recipes[1].key()


@pytest.mark.parametrize("value", [*HUGE, "", "nan", "inf", "1/0", "0x10", "1_0", True, None, [1], "١"])
def test_a_number_of_no_usual_size_is_refused_at_once(value: Any) -> None:
    begin = time.perf_counter()
    with pytest.raises(OptionError, match="rho: got") as refusal:
        exact_fraction("rho", value)
    assert time.perf_counter() - begin < 0.5
    assert len(str(refusal.value)) < 500


NAMES = ["method.rho", "schedule.ratio", "schedule.share", "schedule.inflect"]


@pytest.mark.parametrize(
    ("where", "value"),
    [*((name, value) for name in NAMES for value in (HUGE[0], HUGE[2], 10**300)), ("schedule.r", 10**300)],
)
def test_a_recipe_with_a_huge_number_is_refused_at_once(where: str, value: Any, tmp_path: Path) -> None:
    part, option = where.split(".")
    forms: dict[str, Any] = {"method": {"name": "zipbrain"}, "schedule": {"name": "linear"}}
    forms[part][option] = value
    (tmp_path / "recipe.json").write_text(json.dumps(forms))
    begin = time.perf_counter()
    with pytest.raises(OptionError, match=option):
        Recipe.load(tmp_path / "recipe.json")
    assert time.perf_counter() - begin < 0.5


def test_whole_numbers_have_bounds() -> None:
    assert whole_number("r", np.int64(3)) == 3
    for value in (-1, 2.0, True, "3", None, 2**31, 10**5000):
        with pytest.raises(OptionError, match="r: got"):
            whole_number("r", value)
    with pytest.raises(OptionError, match="thousands of digits"):
        exact_fraction("rho", 10**5000)
    with pytest.raises(OptionError, match="from 1 to 16"):
        whole_number("n_chans", 17, 1, 16)
    with pytest.raises(OptionError, match="r: got"):
        as_schedule(r=10**400)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 40 + "]" * 40, "deep"),
        ('{"a":' * 20_000, "deep"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("[" + "1," * 10**6 + "1]", "bytes"),
        ("[" + "1" * 5000 + "]", "digits"),
        (b"\xff\xfe", "utf-8"),
        ("{", "line 1"),
    ],
)
def test_a_json_text_from_outside_is_bounded(text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)
    assert parse_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
