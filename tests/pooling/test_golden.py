"""Agreement with vectors made by the official implementations."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import check


@pytest.mark.parametrize("name", ["pool_dev.npz", "tome.npz", "evit.npz"])
def test_every_golden_case_agrees(golden: Path, name: str, path: str) -> None:
    outcomes = check(golden / name)
    assert len(outcomes) >= 12
    assert [f"{o.case}: {o.fault} ({o.error:.1e})" for o in outcomes if o.fault] == []
