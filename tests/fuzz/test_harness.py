"""The harness itself: every bad end of a case is a finding of that case, and the next cases run."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from random import Random

import pytest
from tests.fuzz.harness import Target, run

from zipbrain.errors import DataError

_ENDS = ("fine", "refused", "foreign", "empty", "implausible", "warning", "slow", "large", "died", "fine")


def _use(path: Path) -> None:
    match path.read_text():
        case "refused":
            raise DataError(f"{path}: no such thing; use another")
        case "foreign":
            raise KeyError("signals")
        case "empty":
            raise DataError("")
        case "implausible":
            raise AssertionError("n_times is 0")
        case "warning":
            warnings.warn("overflow encountered in multiply", RuntimeWarning, stacklevel=1)
        case "busy":
            began = time.process_time()
            while time.process_time() < began + 0.6:
                pass
        case "slow":
            time.sleep(60)
        case "large":
            assert sum(bytearray(b"\1" * 60_000_000)[:9]) == 9
        case "died":
            os._exit(3)


def _mutate(rng: Random) -> bytes:
    return str(rng.random()).encode()


ODD = Target(lambda: b"fine", _mutate, _use, len(_ENDS))
BROKEN = Target(lambda: b"foreign", _mutate, _use, 1)
HERE = "tests.fuzz.test_harness"


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("cases")
    for place, end in enumerate(_ENDS):
        (folder / f"{place:02}").write_text(end)
    return sorted(folder.iterdir())


def test_every_bad_end_is_found_and_the_next_case_runs(ends: list[Path]) -> None:
    summary = run("odd", f"{HERE}:ODD", ends, memory=50_000_000, patience=5)
    assert (summary.cases, summary.accepted, summary.refused) == (len(_ENDS), 2, 1)
    found = {_ENDS[finding.case]: finding.what for finding in summary.findings}
    assert list(found) == list(_ENDS[2:-1])
    assert found["foreign"].startswith("KeyError: 'signals' (test_harness.py:")
    assert "not one readable line" in found["empty"]
    assert "n_times is 0" in found["implausible"]
    assert "overflow" in found["warning"]
    assert found["slow"] == found["died"] == "no answer in 5 s, or its process died"
    assert found["large"].startswith("took 1")  # 120 MB


def test_processor_time_is_what_counts(tmp_path: Path) -> None:
    (tmp_path / "case").write_text("busy")
    (finding,) = run("odd", f"{HERE}:ODD", [tmp_path / "case"], seconds=0.3).findings
    assert finding.what.startswith("took 0.")


def test_a_target_whose_sample_is_not_accepted_tries_nothing() -> None:
    summary = run("broken", f"{HERE}:BROKEN", range(1))
    assert (summary.cases, len(summary.findings)) == (0, 1)


def test_a_case_depends_on_its_number_and_the_seed_alone() -> None:
    one = [ODD.build("odd", 3, case) for case in range(5)]
    assert one == [ODD.build("odd", 3, case) for case in range(5)]
    assert len({*one, ODD.build("odd", 4, 0), ODD.build("even", 3, 0)}) == 7
