"""Dates of two digits, and samples at the lower limit of a range that is not symmetric."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from zipbrain.data import Convention
from zipbrain.edge import open_edf, windows

edfio = pytest.importorskip("edfio")


def write(path: Path, x: np.ndarray, limits: tuple[float, float]) -> Path:
    signal = edfio.EdfSignal(x, 100, label="C3", physical_dimension="uV", physical_range=limits)
    edfio.Edf([signal], data_record_duration=1).write(path)
    return path


def test_a_plain_header_has_its_day_month_year_and_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.edf", np.random.default_rng(0).normal(0, 20, 400).clip(-80, 80), (-100, 100))
    content = bytearray(path.read_bytes())
    content[88:168] = b"X".ljust(80)
    content[168:184] = b"23.11.9421.43.56"
    path.write_bytes(content)
    assert open_edf(path).start == datetime(1994, 11, 23, 21, 43, 56)


@pytest.mark.parametrize(("limit", "flagged"), [(-50.0, True), (200.0, True), (50.0, False), (-49.0, False)])
def test_only_the_ends_of_the_range_are_saturation(tmp_path: Path, limit: float, flagged: bool) -> None:
    x = np.random.default_rng(1).normal(20, 15, 400).clip(-45, 190)
    x[100:320:2] = limit
    used = Convention("labram", "own", ("C3",), ("C3",), None, None, None, 100.0, 4.0, 4.0, "none")
    (batch,) = windows(open_edf(write(tmp_path / "a.edf", x, (-50, 200))), used)
    assert batch.flags == ("saturated: C3" if flagged else "",)
