"""The space of the search is the paper's: its pairs, their order, its two stages, its size."""

from __future__ import annotations

import csv

import pytest

from conftest import SHARED
from zipbrain.pooling import as_method
from zipbrain.pooling.spaces import SPACES, canonical_space
from zipbrain.search.space import PAIRS, RHOS, Point, full_grid, stage_1, stage_2


def test_pairs_are_those_of_the_paper_in_its_order() -> None:
    path = SHARED / "spec" / "tables" / "search_pairs.csv"
    if not path.is_file():
        pytest.skip(f"the paper's pairs are not at {path}: set ZIPBRAIN_SHARED to the folder that holds spec/")
    with open(path, newline="") as file:
        rows = [(canonical_space("z1", row["z1"]), canonical_space("z2", row["z2"])) for row in csv.DictReader(file)]
    assert list(PAIRS) == rows


def test_pairs_mix_neither_suffixes_nor_q_with_k() -> None:
    assert len(PAIRS) == len(set(PAIRS)) == 27
    for z1, z2 in PAIRS:
        assert "x" in (z1, z2) or z1.endswith("h") == z2.endswith("h")
        assert {z1[0], z2[0]} != {"q", "k"}


def test_stage_1_is_every_pair_with_every_rho_and_x() -> None:
    points = stage_1()
    assert len(points) == len(set(points)) == 297
    assert [point.rho for point in points[:11]] == list(RHOS) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert points[11] == Point("x", "q", "x", 0.0)
    assert {point.z3 for point in points} == {"x"}


def test_stage_2_is_the_leaders_with_the_six_other_spaces() -> None:
    leaders = [Point("x", "q", "x", 0.3), Point("kh", "vh", "x", 1.0)]
    points = stage_2(leaders)
    assert len(points) == 12
    assert [point.z3 for point in points[:6]] == [space for space in SPACES if space != "x"]
    assert {(point.z1, point.z2, point.rho) for point in points[6:]} == {("kh", "vh", 1.0)}


def test_the_whole_grid_has_every_setting_once() -> None:
    points = full_grid()
    assert len(points) == len(set(points)) == 3773
    assert set(stage_1()) <= set(points)


def test_a_point_is_a_method() -> None:
    method = as_method(Point("q", "vh", "k", 0.7).method)
    assert str(method).startswith("ZIPBrain(z1='q', z2='vh', z3='k', rho=0.7")
