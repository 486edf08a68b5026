"""Recordings as they come from clinics: polygraphies, huge records, odd rates, bridged electrodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from data.edf_files import DMAX, DMIN, RATE, RESERVED, SECONDS, discontinuous, eeg, patch, write_edf
from zipbrain.edge import open_edf, windows
from zipbrain.errors import DataError
from zipbrain.signal import edf
from zipbrain.signal.convention import Convention

edfio = pytest.importorskip("edfio")

PLAIN = Convention(
    "labram", "own", ("FP1", ("C3", "T7")), ("A", "B"), None, None, None, float(RATE), 2.0, 2.0, "none"
)  # fmt: skip


def flags(path: Path, **changes: Any) -> list[str]:
    return [flag for batch in windows(open_edf(path), replace(PLAIN, **changes)) for flag in batch.flags]


def test_the_eeg_of_a_polygraphy_is_read_however_many_slow_channels_there_are(tmp_path: Path) -> None:
    x = eeg(2)
    slow = [row[::4] for row in eeg(5)]
    names = ["EEG C3-M2", "O1", "Flow", "Thorax", "Abdomen", "Snore", "Leg"]
    path = write_edf(tmp_path / "a.edf", [*x, *slow], names, rates=[RATE] * 2 + [RATE // 4] * 5)
    found = open_edf(path)
    assert (found.ch_names, found.sfreq) == (["EEG C3-M2", "O1"], RATE)
    assert found.left_out["Flow"] == "it is sampled at 25 Hz, EEG channels at 100 Hz"


def test_a_missing_electrode_that_the_file_has_is_said_with_the_reason(tmp_path: Path) -> None:
    path = write_edf(tmp_path / "a.edf", eeg())
    patch(patch(path, DMIN, "7", 1), DMAX, "7", 1)
    with pytest.raises(DataError, match=r"has no C3-T7.*left out were EEG C3-REF: its digital minimum and maximum"):
        windows(open_edf(path), PLAIN)


def test_only_what_is_needed_of_a_huge_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = eeg()
    signals = [
        edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension="uV", physical_range=(-200, 200))
        for i, row in enumerate(x)
    ]
    path = tmp_path / "a.edf"
    edfio.Edf(signals, data_record_duration=SECONDS).write(path)  # the whole recording is one record
    read: list[int] = []
    real = edf.opened

    class Counting:
        def __init__(self, file: IO[bytes]) -> None:
            self.file = file

        def seek(self, place: int) -> None:
            self.file.seek(place)

        def read(self, count: int) -> bytes:
            read.append(count)
            return self.file.read(count)

    @contextmanager
    def counting(given: Path) -> Iterator[Any]:
        with real(given) as file:
            yield Counting(file)

    whole = open_edf(path)
    assert whole.n_times == RATE * SECONDS
    monkeypatch.setattr(edf, "_CHUNK", 1000)
    monkeypatch.setattr(edf, "opened", counting)
    np.testing.assert_allclose(whole.read(700, 900, [2, 0]), x[[2, 0], 700:900], atol=400 / 65535)
    assert sum(read) == 2 * 2 * 200


def test_electrodes_that_tell_the_same_give_no_decision(tmp_path: Path) -> None:
    x = eeg()
    assert set(flags(write_edf(tmp_path / "good.edf", x))) == {""}
    x[2, 600:800] = x[1, 600:800]  # bridged from 6 s to 8 s
    assert [i for i, flag in enumerate(flags(write_edf(tmp_path / "a.edf", x))) if flag] == [3]
    assert flags(tmp_path / "a.edf")[3] == "flat: C3-T7"
    assert set(flags(tmp_path / "a.edf", montage=("FP1", "C3"))) == {""}  # the difference is not asked for


def test_gaps_in_a_file_that_is_marked_as_continuous_are_noted(tmp_path: Path) -> None:
    lies = patch(discontinuous(tmp_path / "a.edf", 7.5), RESERVED, "EDF+C")
    found = open_edf(lies)
    assert any("marked as continuous, but its last record is stamped +7.5 s off" in note for note in found.notes)
    assert not any("stamped" in note for note in open_edf(write_edf(tmp_path / "b.edf", eeg())).notes)


def test_a_rate_that_can_not_be_resampled_names_the_recording(tmp_path: Path) -> None:
    path = patch(write_edf(tmp_path / "a.edf", eeg()), (244, 8), "1.000013")
    with pytest.raises(DataError, match=r"a\.edf: its 99\.9987\d* Hz can't become the model's windows .*; resample it"):
        windows(open_edf(path), replace(PLAIN, cut_sfreq=200.0, sfreq=200.0))
