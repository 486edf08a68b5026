"""What a recording is asked before its samples are used: plausible amplitudes, flat channels, electrodes by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SHARED
from data.edf_files import PMAX, PMIN, RATE, SECONDS, eeg, patch, write_edf
from edge import tiny_onnx
from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.cutting import windows
from zipbrain.signal.montage import derive
from zipbrain.signal.processing import Processing

edfio = pytest.importorskip("edfio")


@pytest.mark.parametrize(("said", "real"), [("V", "uV"), ("uV", "V"), ("mV", "uV"), ("uV", "mV")])
def test_a_wrong_unit_is_noticed_and_can_be_corrected(tmp_path: Path, said: str, real: str) -> None:
    x, factor = eeg(), {"uV": 1, "mV": 1e-3, "V": 1e-6}[real]
    path = tmp_path / "a.edf"
    signals = [
        edfio.EdfSignal(row, RATE, label=f"C{i}", physical_dimension=said, physical_range=(-200 * factor, 200 * factor))
        for i, row in enumerate(x * factor)
    ]
    edfio.Edf(signals, data_record_duration=1).write(path)
    with pytest.raises(DataError, match=r"a\.edf: a typical deviation of .* its unit seems wrong; pass units="):
        open_edf(path)
    assert open_edf(path, check=False).n_times == RATE * SECONDS
    corrected = open_edf(path, units=real)
    np.testing.assert_allclose(corrected.read(0, 1000), x[:, :1000], atol=400 / 65535)
    with pytest.raises(OptionError, match="units"):
        open_edf(path, units="tesla")


def test_few_odd_channels_do_not_make_a_file_implausible(tmp_path: Path) -> None:
    x = eeg(5)
    x[3] = 150  # an offset
    x[4] *= 1e-4
    recording = open_edf(write_edf(tmp_path / "a.edf", x))
    assert len(recording.ch_names) == 5


def cut(path: Path, **changes: Any) -> Any:
    """What a model that needs all five electrodes gets."""
    names = ("FP1", "C3", "T7", "T4", "O1")
    fields = {"montage": names, "ch_names": names, "window_s": 2.0, "hop_s": 2.0}
    opened = changes.pop("opened", {})
    return next(iter(windows(open_edf(path, **opened), tiny_onnx.convention(**fields, **changes))))


def rescale(path: Path, factor: float, rows: Sequence[int]) -> Path:
    """Let the header say that some channels are larger; their numbers stay."""
    for row in rows:
        patch(path, PMIN, f"{-200 * factor:.3g}", row)
        patch(path, PMAX, f"{200 * factor:.3g}", row)
    return path


@pytest.mark.parametrize("rows", [(1,), (0, 4), (0, 1, 2, 3)])
@pytest.mark.parametrize("factor", [1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9])
def test_channels_in_another_unit_are_refused_where_a_model_needs_them(
    tmp_path: Path, factor: float, rows: tuple[int, ...]
) -> None:
    path = rescale(write_edf(tmp_path / "a.edf", eeg(5)), factor, rows)
    labels = ["EEG FP1-REF", "EEG C3-REF", "EEG T7-REF", "EEG T4-REF", "EEG O1-REF"]
    if len(rows) < 3:
        recording = open_edf(path)
        assert sum("unit seems wrong" in note for note in recording.notes) == 1
        with pytest.raises(DataError) as refused:
            cut(path)
        assert all(labels[row] in str(refused.value) for row in rows)
        assert "unit seems wrong" in str(refused.value)
        size = float(re.search(r"of ([0-9.e+-]+)", str(refused.value))[1])  # type: ignore[index]
        assert 0.9 < size / (20 * 0.6745 * factor) < 1.1
        good = [row for row in range(5) if row not in rows]
        names = tuple(labels[row][4:-4] for row in good)
        fine = tiny_onnx.convention(montage=names, ch_names=names, window_s=2.0)
        assert not any(next(iter(windows(recording, fine))).flags)
    else:
        with pytest.raises(DataError, match=r"EEG FP1-REF, EEG C3-REF, EEG T7-REF, EEG T4-REF: .* unit seems wrong"):
            open_edf(path)
    assert cut(path, opened={"check": False}).x.shape[1] == 5


def test_bad_electrodes_and_artefacts_are_no_other_unit(tmp_path: Path) -> None:
    x = eeg(5, 100 * RATE)
    path = tmp_path / "a.edf"
    x[0, : 60 * RATE] *= 300  # a loose electrode, in more than half of the recording
    x[1] = 0.01 * (np.arange(x.shape[1]) % 700 == 0)  # dead: the last bit of the converter, now and then
    x[2] *= 60  # loose all the time
    x[3, 50 * RATE :] = 0
    signals = [
        edfio.EdfSignal(row, RATE, label=f"EEG {name}-REF", physical_dimension="uV", physical_range=(-3e4, 3e4))
        for name, row in zip(("FP1", "C3", "T7", "T4", "O1"), x, strict=True)
    ]
    edfio.Edf(signals, data_record_duration=1).write(path)
    assert not any("unit" in note for note in open_edf(path).notes)
    assert cut(path).x.shape[1] == 5


@pytest.mark.parametrize(("band", "rate", "least"), [((0.1, 75.0), 50, 60), (None, 64, 80), ((0.5, 30.0), 20, 24)])
def test_a_rate_that_can_not_hold_the_models_band_is_refused(
    tmp_path: Path, band: tuple[float, float] | None, rate: int, least: int
) -> None:
    write = lambda rate: write_edf(tmp_path / f"{rate}.edf", eeg(5, rate * 60), rates=[rate] * 5)  # noqa: E731
    with pytest.raises(
        DataError, match=rf"its {rate} Hz hold frequencies up to {rate / 2:g} Hz, less than 40 % of the"
    ):
        cut(write(rate), band=band)
    with pytest.raises(DataError, match=r"its 1 Hz hold frequencies up to 0\.5 Hz"):
        cut(write(1), band=band)
    assert cut(write(least), band=band).x.shape == (30, 5, 400)


@pytest.mark.skipif(not (SHARED / "data" / "eegmat").is_dir(), reason="needs the real recordings in ../shared/data")
def test_real_recordings_are_plausible_in_every_channel() -> None:
    for path in sorted((SHARED / "data" / "eegmat").glob("*.edf")):
        recording = open_edf(path)
        assert recording.amplitudes is not None
        assert not recording.amplitudes.odd
        assert 2 < recording.amplitudes.typical < 20
        assert not any("unit" in note for note in recording.notes)


def test_electrodes_are_found_in_any_spelling(tmp_path: Path) -> None:
    recording = open_edf(write_edf(tmp_path / "a.edf", eeg(5)))
    assert recording.find(["O1", "Fp1", "T3", "EEG T8-REF"]) == [4, 0, 2, 3]
    with pytest.raises(DataError, match=r"has no PZ, CZ; its channels are EEG FP1-REF, .*; if they have other names"):
        recording.find(["PZ", "FP1", "CZ"])
    twice = open_edf(write_edf(tmp_path / "b.edf", eeg(2), ["EEG C3-REF", "EEG C3-LE"]))
    with pytest.raises(DataError, match="C3 could be EEG C3-REF or EEG C3-LE; rename one"):
        twice.find(["C3"])


def test_flat_channels_are_noted(tmp_path: Path) -> None:
    x = eeg()
    x[1] = 0
    recording = open_edf(write_edf(tmp_path / "a.edf", x))
    assert [note for note in recording.notes if "flat" in note] == [
        "channel EEG C3-REF is flat where it was looked at (5 x 10 s)"
    ]
    silent = open_edf(write_edf(tmp_path / "b.edf", x * 0))
    assert sum("flat" in note for note in silent.notes) == 3


def test_flat_stretches_do_not_make_a_file_implausible(tmp_path: Path) -> None:
    x = eeg(3, 100 * RATE)
    x[:, 20 * RATE :] = x[:, 20 * RATE - 1 : 20 * RATE]
    assert open_edf(write_edf(tmp_path / "a.edf", x)).duration == 100
    x[:, : 20 * RATE] *= 1e-3  # what is left is still looked at
    with pytest.raises(DataError, match="its unit seems wrong"):
        open_edf(write_edf(tmp_path / "b.edf", x))
    one = eeg(3, 100 * RATE) * 1e-3
    one[:2, 20 * RATE :] = 0
    with pytest.raises(DataError, match="its unit seems wrong"):
        open_edf(write_edf(tmp_path / "c.edf", one))


def test_processing_a_recording_in_blocks_equals_processing_its_samples(tmp_path: Path) -> None:
    recording = open_edf(write_edf(tmp_path / "a.edf", eeg()))
    processing = Processing.design(RATE, 64, (1, 30), 25)
    bipolar = derive((("FP1", "C3"), ("C3", "T7")), recording.ch_names)
    read = lambda start, stop: bipolar.apply(recording.read(start, stop))  # noqa: E731
    got = np.concatenate(list(processing.blocks(read, recording.n_times, block=100)), axis=1)
    x = recording.read(0, recording.n_times)
    np.testing.assert_allclose(got, processing.whole(x[:2] - x[1:]), atol=1e-9)
