"""The reader of CHB-MIT's files of one second: what was cut is put together again, and its unit found."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from benchmarks.data import chbmit_seconds
from benchmarks.shared.packing import for_model
from benchmarks.shared.tasks import load
from numpy.typing import NDArray

from data import tiny_corpora
from zipbrain.data.corpora.chbmit import person_of

RECORD, SEIZURE = 24 * 256, (8 * 256, 15 * 256)


def write_second(path: Path, x: NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, x)
    path.write_bytes(gzip.compress(content.getvalue(), 1))


def write_case(folder: Path, case: int, seed: int) -> NDArray[np.float64]:
    """One recording as the published script cuts it, in whole microvolts of a converter's steps; returns it."""
    steps = np.rint(tiny_corpora.noise(21, RECORD, seed) * 2.559375)
    x = np.trunc((steps + 0.5) / 2.559375)
    place, begin, end = folder / f"chb{case:02d}", *SEIZURE
    for start in range(0, end - begin, 128):
        first = begin + min(start, end - begin - 256)
        write_second(place / "seizure" / f"chb{case:02d}_03_1_{start + 1}.npy.gz", x[:, first : first + 256])
    for start in [*range(0, begin, 256), *range(end, RECORD, 256)]:
        write_second(place / "nonseizure" / f"chb{case:02d}_03_{start + 1}.npy.gz", x[:, start : start + 256])
    return x


def test_stretches_are_whole_again(tmp_path: Path) -> None:
    x = write_case(tmp_path, 1, seed=1)
    before, after, seizure = chbmit_seconds.read_stretches(tmp_path, 1)
    assert [stretch.label for stretch in (before, after, seizure)] == [0, 0, 1]
    assert [stretch.start for stretch in (before, after, seizure)] == [0, SEIZURE[1], 0]
    np.testing.assert_array_equal(before.x, x[:, : SEIZURE[0]])
    np.testing.assert_array_equal(after.x, x[:, SEIZURE[1] :])
    np.testing.assert_array_equal(seizure.x, x[:, slice(*SEIZURE)])


@pytest.mark.parametrize("density", [4095 / 1600, 4095 / 2400])
def test_the_unit_shows_in_how_often_each_whole_number_occurs(density: float) -> None:
    steps = np.rint(np.random.default_rng(0).normal(0, 30, (1, 1_000_000)) * density)
    whole = np.trunc((steps + 0.5) / density).astype(np.int16)
    assert chbmit_seconds.codes_per_unit(whole) == pytest.approx(density, abs=1e-3)


def test_seconds_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write_case(tmp_path, 1, seed=1)
    second = tmp_path / "chb01" / "seizure" / "chb01_03_1_257.npy.gz"
    write_second(second, np.zeros((21, 256)))
    with pytest.raises(SystemExit, match="chb01 chb01_03: seconds that overlap differ"):
        chbmit_seconds.read_stretches(tmp_path, 1)
    write_second(second, np.full((21, 256), 0.5))
    with pytest.raises(SystemExit, match="not whole numbers of 21 channels"):
        chbmit_seconds.read_stretches(tmp_path, 1)
    second.rename(second.with_name("chb01_03.npy.gz"))
    with pytest.raises(SystemExit, match="is not named as a second"):
        chbmit_seconds.read_stretches(tmp_path, 1)


def test_windows_are_split_by_child_and_serve_every_model(tmp_path: Path) -> None:
    for case in range(1, 25):
        write_case(tmp_path, case, seed=case)
    rows = chbmit_seconds.write_windows(tmp_path, tmp_path / "packs", 4.0, 2.0)
    assert [row["children"] for row in rows] == [15, 4, 4]
    assert [row["seizure"] for row in rows] == [16 * 2, 4 * 2, 4 * 2]
    assert [row["background"] for row in rows] == [16 * 4, 4 * 4, 4 * 4]
    splits = load(tmp_path / "packs", "chbmit")
    assert set(splits["train"].subjects.tolist()) == {person_of(case) for case in [*range(1, 16), 21]}
    shapes = {model: for_model(splits["test"], model).take([0]).shape[1:] for model in ("labram", "eegpt", "biot")}
    assert shapes == {"labram": (16, 800), "eegpt": (16, 1024), "biot": (16, 800)}
