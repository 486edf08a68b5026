"""What a recording is asked before its samples are used: plausible amplitudes, flat channels, electrodes by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.edf_files import RATE, SECONDS, eeg, write_edf
from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
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
