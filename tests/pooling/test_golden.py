"""Agreement with vectors made by the official implementations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from golden import check, formula

SUBSET = Path(__file__).resolve().parents[1] / "golden"  # what lies in the repository


@pytest.mark.parametrize("name", ["pool_dev.npz", "tome.npz", "evit.npz"])
def test_every_golden_case_agrees(golden: Path, name: str, path: str) -> None:
    outcomes = check(golden / name)
    assert len(outcomes) >= (6 if golden == SUBSET else 12)
    assert [f"{o.case}: {o.fault} ({o.error:.1e})" for o in outcomes if o.fault] == []


def test_the_formula_makes_the_weights_of_the_vectors(golden: Path) -> None:
    with np.load(golden / "formula_check.npz") as file:
        fill = formula(file)
        tensors, wanted = json.loads(str(file["tensors"])), file["first_last_sum"]
    for (salt, name, shape), (first, last, total) in zip(tensors[::7], wanted[::7], strict=True):
        made = fill({name: shape}, salt)[name].astype(np.float64).ravel()
        assert (made[0], made[-1]) == (first, last), name
        assert made.sum() == pytest.approx(total, rel=1e-9, abs=1e-9), name
