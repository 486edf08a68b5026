"""Windows on the device: those of training, streamed in little memory, and flagged where no decision is possible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SHARED
from data.edf_files import RESERVED, patch
from zipbrain.data import Convention, convention, open_recording
from zipbrain.data.labelling import Cutter, Plan
from zipbrain.data.recording import MNERecording
from zipbrain.edge import open_edf, windows
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.cutting import Batch, Cuts, regular
from zipbrain.signal.montage import derive

edfio = pytest.importorskip("edfio")
mne = pytest.importorskip("mne")
signal = pytest.importorskip("scipy.signal")

NAMES = ("FP1", "C3", "O1", "EKG")


def eeg(rows: int, n: int, seed: int = 0) -> np.ndarray:
    """Made-up microvolts with drifts."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, n)).cumsum(axis=1)
    return 40 * x / x.std() + 10 * generator.standard_normal((rows, n))


def write(path: Path, x: np.ndarray, rate: int, names: Sequence[str] = NAMES, most: float = 400) -> Path:
    signals = [
        edfio.EdfSignal(row, rate, label=f"EEG {name}-REF", physical_dimension="uV", physical_range=(-most, most))
        for name, row in zip(names, x.clip(-most, most), strict=False)
    ]
    edfio.Edf(signals, annotations=[edfio.EdfAnnotation(0, None, "x")], data_record_duration=1).write(path)
    return path


def wanted(**changes: Any) -> Convention:
    """Three channels, one of them a difference, without filter."""
    montage = ("FP1", ("C3", "O1"), "O1")
    plain = Convention("labram", "own", montage, ("A", "B", "C"), None, None, None, 100.0, 2.0, 1.0, "none")
    return replace(plain, **changes)


def joined(batches: Sequence[Batch]) -> Batch:
    return Batch(
        np.concatenate([batch.starts for batch in batches]),
        np.concatenate([batch.x for batch in batches]),
        tuple(flag for batch in batches for flag in batch.flags),
    )


def by_training(path: Path, used: Convention) -> tuple[list[float], np.ndarray]:
    recording = open_recording(path)
    starts = regular(0, recording.duration, used)
    cutter = Cutter(recording, derive(used.montage, recording.ch_names), used, Plan(starts, [0] * len(starts)))
    x = np.concatenate(list(cutter.chunks()))
    return cutter.starts, x


@pytest.mark.parametrize("model", ["labram", "eegpt", "biot", "tfm"])
def test_windows_of_real_recordings_are_those_of_training(model: str) -> None:
    folder = SHARED / "data" / "eegmat"
    if not folder.is_dir():
        pytest.skip(f"recordings not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    used = convention(model, "eegmat")
    for path in sorted(folder.glob("*.edf")):
        got = joined(list(windows(open_edf(path), used)))
        starts, x = by_training(path, used)
        assert got.starts.tolist() == starts
        assert got.x.shape == (len(starts), len(used.ch_names), used.n_times)
        assert got.x.dtype == np.float32
        assert got.flags == ("",) * len(starts)
        np.testing.assert_allclose(got.x, x, rtol=1e-6, atol=1e-5)  # microvolts
        raw = mne.io.read_raw_edf(path, verbose="ERROR")
        through_mne = joined(list(windows(MNERecording(path, raw, [1e6] * len(raw.ch_names), []), used)))
        np.testing.assert_allclose(through_mne.x, x, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("rate", [256, 500])
def test_filtered_and_resampled_windows_are_those_of_mne_and_scipy(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.edf", eeg(4, rate * 95), rate)
    used = replace(convention("labram", "tuab"), montage=("FP1", ("C3", "O1")), ch_names=("A", "B"))
    got = joined(list(windows(open_edf(path), used)))
    starts, x = by_training(path, used)
    assert got.starts.tolist() == starts == [float(10 * i) for i in range(9)]
    assert got.flags == ("",) * 9
    np.testing.assert_allclose(got.x, x, rtol=1e-6, atol=1e-5)
    raw = mne.io.read_raw_edf(path, preload=True, verbose="ERROR").get_data() * 1e6
    rows = np.stack((raw[0], raw[1] - raw[2]))
    rows = mne.filter.filter_data(rows, rate, 0.1, 75, verbose="ERROR")
    rows = mne.filter.notch_filter(rows, rate, 50, verbose="ERROR")
    rows = signal.resample_poly(rows, 200, rate, axis=1, padtype="reflect")
    for start, window in zip(starts, got.x, strict=True):
        np.testing.assert_allclose(window, rows[:, int(200 * start) :][:, :2000], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"band": (1.0, 40.0), "filter_windows": True, "sfreq": 100.0},
        {"band": (1.0, None), "cut_sfreq": 80.0, "sfreq": 100.0, "window_resampling": "nearest"},
        {"cut_sfreq": 200.0, "sfreq": 200.0, "resampling": "fft"},
        {"notch": 50.0, "hop_s": 0.37},
    ],
    ids=["filtered one by one", "nearest", "Fourier", "odd hop"],
)
def test_other_ways_of_cutting_are_those_of_training_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path / "a.edf", eeg(4, 128 * 40), 128)
    used = wanted(**changes)
    got = joined(list(windows(open_edf(path), used, batch=7)))
    starts, x = by_training(path, used)
    assert got.starts.tolist() == starts
    np.testing.assert_allclose(got.x, x, rtol=1e-6, atol=1e-5)
    assert set(got.flags) == {""}


def test_batches_are_full_and_the_hop_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.edf", eeg(4, 100 * 21), 100)
    batches = list(windows(open_edf(path), wanted(), batch=8))
    assert [len(batch.x) for batch in batches] == [8, 8, 4]
    assert [len(batch.flags) for batch in batches] == [8, 8, 4]
    dense = joined(list(windows(open_edf(path), wanted(), hop_s=0.25)))
    assert dense.starts.tolist() == [0.25 * i for i in range(77)]
    np.testing.assert_array_equal(dense.x[::4], joined(batches).x)


def test_what_was_done_to_the_recording_is_noted(tmp_path: Path) -> None:
    recording = open_edf(write(tmp_path / "a.edf", eeg(4, 100 * 30), 100))
    for _ in range(2):
        next(windows(recording, wanted(band=(1.0, 75.0), cut_sfreq=200.0, sfreq=200.0)))
    assert recording.notes == [
        "low-pass at 75 Hz left out: half the sampling rate is 50 Hz",
        "resampled from 100 to 200 Hz",
    ]


def test_flat_and_saturated_electrodes_are_named(tmp_path: Path) -> None:
    x = eeg(4, 100 * 20)
    x[1, 400:600] = 12  # C3, window at 4 s; half of those at 3 and 5 s
    x[2, 1000:1010] = 500  # O1, 5 % of the windows at 9 and 10 s
    x[2, 1400:1409] = -500  # less
    x[0, 1600:1800] = 400  # FP1 stands still at the limit
    x[3] = 0  # EKG is not needed
    flags = joined(list(windows(open_edf(write(tmp_path / "a.edf", x, 100)), wanted(band=(1.0, 40.0))))).flags
    assert {i: flag for i, flag in enumerate(flags) if flag} == {
        3: "flat: C3", 4: "flat: C3", 5: "flat: C3", 9: "saturated: O1", 10: "saturated: O1", 15: "saturated: FP1",
        16: "saturated: FP1", 17: "saturated: FP1",
    }  # fmt: skip
    x[:, 1600:1800] = [[0], [400], [0], [0]]
    flags = joined(list(windows(open_edf(write(tmp_path / "b.edf", x, 100)), wanted()))).flags
    assert flags[16] == "flat: FP1, O1; saturated: C3"


def test_flags_belong_to_their_windows_across_blocks_and_rates(tmp_path: Path) -> None:
    rate, seconds = 500, 700  # several blocks of 2^17 samples
    x = eeg(4, rate * seconds)
    bad = [3, 261, 262, 263, 400, 523, 525, 698]
    for second in bad:
        x[1, rate * second : rate * (second + 1)] = 7
    recording = open_edf(write(tmp_path / "a.edf", x, rate))
    used = wanted(band=(1.0, 40.0), cut_sfreq=200.0, sfreq=100.0, window_s=1.0)
    for one_by_one in (False, True):
        found = joined(list(windows(recording, replace(used, filter_windows=one_by_one))))
        assert [i for i, flag in enumerate(found.flags) if flag == "flat: C3"] == bad
        assert set(found.flags) == {"", "flat: C3"}


def gappy(path: Path, x: np.ndarray, rate: int) -> Path:
    """EDF+D, five seconds missing after 20 s."""
    patch(write(path, x, rate), RESERVED, "EDF+D")
    data = bytearray(path.read_bytes())
    for second in reversed(range(20, x.shape[1] // rate)):
        place = data.index(f"+{second}\x14\x14".encode(), 256)
        data[place : place + 6] = f"+{second + 5}\x14\x14".encode().ljust(6, b"\0")
    path.write_bytes(data)
    return path


def test_a_gap_silences_the_windows_the_filter_reaches_from_it(tmp_path: Path) -> None:
    x = eeg(4, 100 * 40)
    recording = open_edf(gappy(tmp_path / "a.edf", x, 100))
    assert recording.duration == 45
    plain = joined(list(windows(recording, wanted())))
    assert plain.starts.tolist() == list(range(44))
    assert [i for i, flag in enumerate(plain.flags) if flag] == list(range(19, 25))
    assert set(plain.flags) == {"", "gap"}
    assert np.isfinite(plain.x[[18, 25]]).all()
    used = wanted(band=(2.0, 40.0), cut_sfreq=50.0, sfreq=50.0)
    reach = Cuts(recording, derive(used.montage, recording.ch_names), used).reach / 100
    assert 0.5 < reach < 2
    filtered = joined(list(windows(recording, used)))
    near = [i for i in range(44) if i + 2 > 20 - reach and i < 25 + reach]
    assert [i for i, flag in enumerate(filtered.flags) if flag] == near == list(range(17, 27))
    assert set(filtered.flags) == {"", "gap"}
    before = write(tmp_path / "b.edf", x[:, :2000], 100)  # what lies far from the gap does not know of it
    np.testing.assert_allclose(filtered.x[:17], joined(list(windows(open_edf(before), used))).x[:17], atol=1e-4)


def test_samples_that_are_not_numbers_are_flagged(tmp_path: Path) -> None:
    x = eeg(3, 100 * 20)
    x[0, 1000:1010] = np.nan
    raw = mne.io.RawArray(x * 1e-6, mne.create_info(["FP1", "C3", "O1"], 100, "eeg"), verbose="ERROR")
    raw.save(tmp_path / "a_raw.fif", fmt="double", verbose="ERROR")
    flags = joined(list(windows(open_recording(tmp_path / "a_raw.fif"), wanted()))).flags
    assert {i: flag for i, flag in enumerate(flags) if flag} == {9: "NaN", 10: "NaN"}


@pytest.mark.parametrize("mark", ["boundary", "EDGE boundary", "New Segment/"])
def test_windows_across_a_splice_get_no_decision(tmp_path: Path, mark: str) -> None:
    info = mne.create_info(["FP1", "C3", "O1"], 100, "eeg")
    raw = mne.io.RawArray(eeg(3, 100 * 20) * 1e-6, info, verbose="ERROR")
    raw.set_annotations(mne.Annotations([0, 10.5, 14.0, 16.2], [0, 0, 0, 0], [mark, mark, mark, "blink"]))
    raw.save(tmp_path / "a_raw.fif", fmt="double", verbose="ERROR")
    flags = joined(list(windows(open_recording(tmp_path / "a_raw.fif"), wanted()))).flags
    assert {i: flag for i, flag in enumerate(flags) if flag} == {9: "gap", 10: "gap", 13: "gap"}
    used = wanted(band=(2.0, 40.0))
    filtered = joined(list(windows(open_recording(tmp_path / "a_raw.fif"), used))).flags
    assert {8, 9, 10, 11, 12, 13, 14} <= {i for i, flag in enumerate(filtered) if flag == "gap"}
    assert not filtered[0]


def test_what_can_not_be_cut_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.edf", eeg(4, 100 * 9), 100)
    recording = open_edf(path)
    with pytest.raises(DataError, match=r"a\.edf: has no P3, C3-A2; its channels are EEG FP1-REF, EEG C3-REF"):
        windows(recording, wanted(montage=("FP1", "P3", ("C3", "A2"))))
    with pytest.raises(DataError, match=r"a\.edf: lasts 9 s, but a window 10 s; use a longer recording"):
        windows(recording, wanted(window_s=10))
    with pytest.raises(OptionError, match="montage is empty"):
        windows(recording, wanted(montage=(), ch_names=()))
    for hop in (0, -1, np.nan, np.inf):
        with pytest.raises(OptionError, match="hop_s"):
            windows(recording, wanted(), hop_s=hop)
    with pytest.raises(OptionError, match="batch"):
        windows(recording, wanted(), batch=0)
    twice = open_edf(write(tmp_path / "b.edf", eeg(2, 900), 100, ["C3", "C3"]))
    with pytest.raises(DataError, match=r"b\.edf: has no FP1"):
        windows(twice, wanted())


MEASURE = """
import sys
from pathlib import Path
from zipbrain.edge import open_edf, windows
from zipbrain.signal.convention import Convention
names = tuple(f"C{i}" for i in range(1, 24))
used = Convention("labram", "own", names, names, (0.1, 75.0), 50.0, 200.0, 200.0, 10.0, 10.0, "hundred")
print(sum(len(batch.x) for batch in windows(open_edf(sys.argv[1]), used)))
status = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    """Half an hour and four hours of 23 channels at 256 Hz; blocks are of four minutes, so a day is no different."""
    rate, minutes = 256, 30
    path = write(tmp_path / "a.edf", eeg(23, 60 * rate * minutes), rate, [f"C{i}" for i in range(1, 24)])
    peaks = []
    for repeats in (1, 8):
        if repeats > 1:
            header = int(path.read_bytes()[184:192])
            body = path.read_bytes()[header:]
            with path.open("ab") as file:
                for _ in range(repeats - 1):
                    file.write(body)
        command = [sys.executable, "-c", MEASURE, str(path)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        count, peak = done.stdout.split()
        assert int(count) == 6 * minutes * repeats
        peaks.append(float(peak))
    assert peaks[1] < 500
    assert peaks[1] < peaks[0] + 60  # the 3.5 hours more are 150 MB on disk, 600 as numbers
