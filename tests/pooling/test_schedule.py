"""Schedules: integers before any forward, exactly as the contract says."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conftest
from zipbrain.errors import OptionError
from zipbrain.pooling import as_method
from zipbrain.pooling.flops import BlockShape, network_macs
from zipbrain.pooling.registry import build
from zipbrain.pooling.schedule import (
    Constant,
    FlopsBudget,
    LinearSchedule,
    Maximum,
    PerLayer,
    Ratio,
    Schedule,
    as_schedule,
)

LABRAM = BlockShape(200, 10, 20, 800)
FREE = as_method("zipbrain").limit


def removals(schedule: Schedule, n: int, depth: int, limit: object = FREE) -> tuple[int, ...]:
    return schedule.removals(n, (True,) * depth, limit, LABRAM, 1)  # type: ignore[arg-type]


def test_ratio_rounds_half_up_per_layer() -> None:
    assert removals(Ratio(0.8), 230, 12) == (15,) * 12  # 15.33
    assert removals(Ratio(0.2), 230, 12) == (4,) * 12  # 3.83
    assert removals(Ratio(0.5), 4, 4) == (1, 1, 1, 0)  # exactly 0.5 rounds up; then one token stays
    assert removals(Ratio(0.1), 4, 4) == (0,) * 4
    assert removals(Ratio(0), 230, 12) == (0,) * 12
    assert removals(Ratio(0.3), 5, 1) == (2,)  # 1.5, which 0.3 * 5 in binary is not


def test_every_count_of_the_papers_table_is_reproduced() -> None:
    table = conftest.SHARED / "spec" / "tables" / "initial_tokens.csv"
    if not table.exists():
        pytest.skip(f"the paper's table was not found at {table}")
    with Path(table).open() as lines:
        for row in csv.DictReader(lines):
            n, layers = int(row["paper_N"]), int(row["reductions_l"])
            assert Maximum().requested(n, layers)[0] == int(row["r_max_strict"])
            assert n - sum(removals(Maximum(), n, layers)) == int(row["tokens_left"])
            for share in (20, 40, 60, 80):
                assert Ratio(share / 100).requested(n, layers)[0] == int(row[f"r_{share}pct"])


def test_tome_and_tofu_are_cut_to_half_in_each_layer() -> None:
    counts = [304]
    for r in removals(Maximum(), 304, 4, as_method("tome").limit):
        counts.append(counts[-1] - r)
    assert counts == [304, 229, 154, 79, 40]  # the paper's maximum would end at 4


@given(n=st.integers(1, 400), depth=st.integers(1, 24), ratio=st.integers(0, 100))
@settings(max_examples=300)
def test_one_token_always_stays_and_counts_are_whole(n: int, depth: int, ratio: int) -> None:
    for schedule in (Ratio(ratio / 100), Maximum(), Constant(ratio), LinearSchedule(ratio, -0.5)):
        for method in ("zipbrain", "tome"):
            removed = removals(schedule, n, depth, as_method(method).limit)
            assert len(removed) == depth
            assert all(isinstance(r, int) and r >= 0 for r in removed)
            assert sum(removed) <= n - 1


@given(n=st.integers(20, 300), percent=st.integers(56, 99))
@settings(max_examples=100)
def test_a_flops_budget_takes_the_smallest_constant_r_that_meets_it(n: int, percent: int) -> None:
    removed = removals(FlopsBudget(percent / 100), n, 12)
    full = network_macs(LABRAM, n, (0,) * 12, 1)
    assert network_macs(LABRAM, n, removed, 1) * 100 <= full * percent
    smaller = removals(Constant(removed[0] - 1), n, 12)
    assert network_macs(LABRAM, n, smaller, 1) * 100 > full * percent


def test_a_budget_that_no_r_meets_is_refused() -> None:
    with pytest.raises(OptionError, match=r"share: got 0.01, but even the largest r leaves 0\.\d+"):
        removals(FlopsBudget(0.01), 230, 12)


def test_the_hand_count_is_the_formula_of_the_paper_shape() -> None:
    n, d = 231, 200
    assert network_macs(LABRAM, 230, (0,) * 12, 1) == 12 * (4 * n * d * d + 2 * n * n * d + 8 * n * d * d)
    linear = BlockShape(256, 8, 32, 1024, linear=True)
    assert network_macs(linear, 304, (0,), 0) == 12 * 304 * 256 * 256 + 2 * 304 * 256 * 32


def test_blocks_that_do_not_reduce_remove_nothing() -> None:
    reducing = (False, True) * 4  # EEGPT: blocks 2, 4, 6, 8
    assert Maximum().removals(20, reducing, FREE) == (0, 4) * 4
    assert Maximum().removals(4, reducing, FREE) == (0, 1, 0, 1, 0, 1, 0, 0)


def test_a_list_is_padded_and_must_not_be_too_long() -> None:
    assert removals(PerLayer((3, 5)), 50, 4) == (3, 5, 0, 0)
    with pytest.raises(OptionError, match=r"r: got \[1, 2, 3\], but there are 2 reducing layers"):
        PerLayer((1, 2, 3)).requested(50, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"ratio, r, schedule: got 'none of them', but exactly one"),
        ({"ratio": 0.5, "r": 3}, r"got 'ratio=0.5, r=3'"),
        ({"ratio": 1.5}, r"ratio: got 1.5, but it must be a number from 0 to 1"),
        ({"ratio": "all"}, r"ratio: got 'all', but .* or 'max'"),
        ({"ratio": float("nan")}, r"ratio: got nan"),
        ({"r": -1}, r"r: got -1, but it must be a whole number of at least 0"),
        ({"r": 2.0}, r"r: got 2.0"),
        ({"r": True}, r"r: got True"),
        ({"r": [1, -2]}, r"r: got -2"),
        ({"schedule": 5}, r"schedule: got 5"),
    ],
)
def test_bad_amounts_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        as_schedule(**options)


@pytest.mark.parametrize(
    "schedule",
    [Ratio(0.8), Maximum(), Constant(5), PerLayer((1, 2)), LinearSchedule(8, -0.5), FlopsBudget(0.7)],
    ids=lambda s: s.name,
)
def test_a_schedule_survives_json(schedule: Schedule) -> None:
    import json

    assert build(json.loads(json.dumps(schedule.to_dict())), "schedule") == schedule
