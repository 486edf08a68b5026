"""Outputs of a session: what other programs read, after a kill, on a full disk, across gaps."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import edfio
import mne
import numpy as np
import pytest

from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.outputs import OUTPUTS, SessionFacts, choose_outputs
from zipbrain.live.outputs.edf import EDFSignals
from zipbrain.live.outputs.edf_file import record_samples
from zipbrain.live.retention import remove_old_signals

STARTED = datetime(2026, 3, 4, 5, 6, 7, 250_000, UTC)
NAMES = ("Fp1", "C3", "O2")
SFREQ = 128.0


def session(folder: Path, **changed) -> SessionFacts:
    facts = {"ch_names": NAMES, "sfreq": SFREQ, "classes": ("rest", "=seizure"), "hop_s": 1.0, "window_s": 4.0}
    return SessionFacts(**{**facts, "started": STARTED, "name": "bed 3, Jane Doe", "folder": folder, **changed})


def eeg(seconds: float, seed: int = 0, sfreq: float = SFREQ) -> np.ndarray:
    return 30 * np.random.default_rng(seed).standard_normal((len(NAMES), round(seconds * sfreq)))


def decision(stop: float, value: float | None = 0.25) -> Decision:
    shares = np.float32([math.nan] * 2 if value is None else [1 - value, value])
    return Decision(
        stop - 4, stop, shares, -1 if value is None else 0, "flat: C3" if value is None else "", False, 0.01, 0.3
    )


RAISED = Event(2.5, "raised", "seizure", "physiological", "seizure 0.912")


def record(folder: Path, blocks, **changed) -> EDFSignals:
    """Write blocks of (first sample, rows) to the end."""
    output = EDFSignals()
    output.open(session(folder, **changed))
    for first, rows in blocks:
        output.samples(first, rows)
    output.close()
    return output


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("signals_*.edf"))


def test_signals_and_alarms_are_read_by_our_reader_mne_and_edfio(tmp_path):
    x = eeg(5.5)
    output = EDFSignals()
    output.open(session(tmp_path))
    for first in range(0, x.shape[1], 37):
        output.samples(first, x[:, first : first + 37])
        if first == 37 * 10:
            output.tell(RAISED)
    output.close()
    (path,) = files(tmp_path)
    ours = open_edf(path)
    assert ours.ch_names == list(NAMES)
    assert ours.start == datetime(2026, 3, 4, 5, 6, 7)
    assert np.abs(ours.read(0, x.shape[1]) - x).max() <= 0.0500001
    assert ours.notes == []
    assert (2.5, 0.0, "physiological alarm seizure: raised (seizure 0.912)") in ours.annotations
    assert (5.5, 0.5, "BAD boundary") in ours.annotations
    raw = mne.io.read_raw_edf(path, verbose="error")
    np.testing.assert_allclose(raw.get_data()[:, : x.shape[1]] * 1e6, x, atol=0.0500001)
    assert 2.5 in raw.annotations.onset
    edf = edfio.read_edf(path)
    assert [s.label for s in edf.signals] == list(NAMES)
    assert 2.5 in [mark.onset for mark in edf.annotations]


@pytest.mark.filterwarnings("ignore:EDF header indicates -1")
def test_a_kill_at_any_moment_leaves_a_readable_file_and_costs_less_than_two_records(tmp_path):
    code = (
        "import sys, itertools\nfrom pathlib import Path\nimport numpy as np\n"
        "from datetime import datetime, UTC\nfrom zipbrain.live.outputs import SessionFacts\n"
        "from zipbrain.live.outputs.edf import EDFSignals\n"
        "output = EDFSignals()\n"
        "facts = ('Fp1', 'C3', 'O2'), 128.0, ('a', 'b'), 1.0, 4.0, datetime.now(UTC), 'x', Path(sys.argv[1])\n"
        "output.open(SessionFacts(*facts))\n"
        "x = 30 * np.random.default_rng(0).standard_normal((3, 32))\n"
        "for n in itertools.count():\n output.samples(32 * n, x)\n print(32 * (n + 1), flush=True)"
    )
    for number in range(3):
        folder = tmp_path / str(number)
        process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
        told = [int(process.stdout.readline()) for _ in range(50 + 61 * number)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        (path,) = files(folder)
        assert path.read_bytes()[236:244] == b"-1      "
        ours = open_edf(path)
        assert ours.n_times > told - 2 * 128
        assert any("unknown number of records" in note for note in ours.notes)
        assert mne.io.read_raw_edf(path, verbose="error").n_times == ours.n_times
        assert edfio.read_edf(path).num_data_records in (-1, ours.n_times // 128)


def test_a_short_gap_is_marked_and_a_long_one_begins_another_file(tmp_path):
    x = eeg(4)
    missing = np.full((3, 192), math.nan)
    output = record(tmp_path, [(0, x), (512, missing), (704, x), (704 + 512 + 128 * 61, x), (704, x)])
    one, two = map(open_edf, files(tmp_path))
    assert (4.0, 1.5, "BAD boundary") in one.annotations
    assert (5.5, 0.0, "EDGE boundary") in one.annotations
    assert not one.read(512, 704).any()
    np.testing.assert_allclose(one.read(704, 1216), x, atol=0.0500001)
    assert two.start == datetime(2026, 3, 4, 5, 7, 17)  # 9.5 s and a gap of 61 s later
    assert two.n_times == 512  # what came again was not written again
    assert output.lost == 0


def test_no_window_of_predict_crosses_a_marked_gap(tmp_path):
    from zipbrain.signal.montage import derive
    from zipbrain.signal.quality import Quality

    record(tmp_path, [(0, eeg(8)), (8 * 128 + 64, eeg(8, 1))])
    recording = open_edf(files(tmp_path)[0])
    quality = Quality.of(recording, derive(list(NAMES), recording.ch_names))
    flags = []
    for start in range(0, recording.n_times - 256, 128):
        rows = recording.read(start, start + 256)
        quality.see(start, rows)
        flags.append(quality.flag(rows, start, start + 256, 0))
    assert flags[:6] == [""] * 6
    assert flags[7] == flags[8] == "gap"
    assert flags[10:14] == [""] * 4


def test_clipped_samples_and_missing_channels_are_counted_and_marked(tmp_path):
    x = eeg(6)
    x[0, 300:310] = 1e5
    x[1, 512:640] = math.nan
    output = record(tmp_path, [(0, x)])
    assert output.clipped.tolist() == [10, 0, 0]
    recording = open_edf(files(tmp_path)[0], check=False)
    assert recording.read(300, 301)[0, 0] == pytest.approx(3276.7)
    assert (2.0, 1.0, "clipped: Fp1") in recording.annotations
    assert (4.0, 1.0, "no signal: C3") in recording.annotations


def test_an_offset_of_the_amplifier_gets_a_wider_range(tmp_path):
    x = eeg(3) + np.array([[0.0], [25_000.0], [-300_000.0]])
    output = record(tmp_path, [(0, x)])
    assert not output.clipped.any()
    assert np.abs(open_edf(files(tmp_path)[0], check=False).read(0, 384) - x).max(axis=1) == pytest.approx(
        [0.05, 5, 50], rel=0.1
    )


@pytest.mark.parametrize("sfreq", [100.0, 128.0, 200.0, 250.0, 256.0, 500.0, 512.0, 1024.0, 173.61, 2000 / 7])
def test_a_records_length_is_exact_for_any_usual_rate(tmp_path, sfreq):
    assert sfreq <= record_samples(sfreq) + 0.5 <= 2 * sfreq + 1
    record(tmp_path, [(0, eeg(4, sfreq=sfreq))], sfreq=sfreq)
    assert open_edf(files(tmp_path)[0]).sfreq == pytest.approx(sfreq, rel=1e-6)


def test_long_names_stay_apart_and_file_names_hold_no_name(tmp_path):
    names = ("EEG electrode of the left side", "EEG electrode of the right side", "É1")
    record(tmp_path, [(0, eeg(2))], ch_names=names)
    for name in ("csv", "jsonl"):
        output = OUTPUTS[name]()
        output.open(session(tmp_path))
        output.close()
    assert open_edf(files(tmp_path)[0]).ch_names == ["EEG electrode of", "EEG electrod-2", "?1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "decisions_20260304T050607Z.csv",
        "events_20260304T050607Z.jsonl",
        "signals_20260304T050607Z.edf",
    ]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert not any(b"Jane" in path.read_bytes() for path in files(tmp_path))


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_signals_stop_and_go_on_while_decisions_and_alarms_stay(tmp_path):
    signals, table = EDFSignals(), OUTPUTS["csv"]()
    for output in (signals, table):
        output.open(session(tmp_path))
    signals.samples(0, eeg(3))
    with file_limit(2500):
        for second in range(3, 10):
            signals.samples(128 * second, eeg(1, second))
            signals.tell(Event(float(second), "raised", f"alarm {second}", "physiological"))
            table.decide(decision(float(second)))
        assert "File too large" in signals.failure
        assert table.failure == ""
    for second in range(10, 13):
        signals.samples(128 * second, eeg(1, second))
    assert signals.failure == ""
    for output in (signals, table):
        output.close()
    recordings = [open_edf(path) for path in files(tmp_path)]
    assert [recording.n_times for recording in recordings] == [3 * 128, 3 * 128]
    assert signals.lost == 7 * 128
    told = [text for recording in recordings for *_, text in recording.annotations if "raised" in text]
    assert len(told) == 7  # alarms wait for a record that is written
    (path,) = tmp_path.glob("decisions_*.csv")
    assert len(path.read_text().splitlines()) == 8


def test_a_file_at_its_largest_size_is_followed_by_another_one_without_loss(tmp_path):
    x = eeg(10)
    with file_limit(6000):
        output = record(tmp_path, [(0, x)])
    recordings = [open_edf(path) for path in files(tmp_path)]
    assert len(recordings) > 3
    assert output.lost == 0
    whole = np.concatenate([recording.read(0, recording.n_times) for recording in recordings], axis=1)
    np.testing.assert_allclose(whole, x, atol=0.0500001)


def test_signals_leave_room_for_the_decisions(tmp_path):
    output = EDFSignals(reserve=2**62)
    output.open(session(tmp_path))
    output.samples(0, eeg(2))
    assert "which decisions need" in output.failure
    assert output.lost == 256
    assert files(tmp_path) == []


def test_lines_wait_for_the_disk_and_none_is_torn(tmp_path):
    output = OUTPUTS["jsonl"]()
    output.open(session(tmp_path))
    (path,) = tmp_path.glob("*.jsonl")
    with file_limit(os.path.getsize(path) + 50):
        for second in range(5):
            output.decide(decision(float(second), None))
        assert "File too large" in output.failure
    output.tell(RAISED)
    assert output.failure == ""
    output.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["session", *["decision"] * 5, "event"]
    assert lines[1]["decision"]["probabilities"] == [None, None]
    assert lines[-1]["event"]["kind"] == "raised"


def test_the_table_has_predicts_columns_and_runs_no_formula(tmp_path):
    output = OUTPUTS["csv"]()
    output.open(session(tmp_path))
    output.decide(decision(4.0))
    output.decide(decision(5.0, None))
    (path,) = tmp_path.glob("*.csv")
    with path.open() as file:
        first, second = csv.DictReader(file)
    columns = ["start_s", "stop_s", "probability_rest", "probability_=seizure", "decision", "note", "looked_twice"]
    assert list(first) == [*columns, "compute_s", "delay_s"]
    assert (first["start_s"], first["stop_s"], first["probability_rest"], first["decision"]) == (
        "0",
        "4",
        "0.750000",
        "rest",
    )
    assert (second["probability_rest"], second["decision"], second["note"]) == ("", "no decision", "flat: C3")
    output.close()


def test_unknown_outputs_and_folders_that_can_not_be_written_are_refused(tmp_path):
    assert [output.name for output in choose_outputs(["csv", "edf"])] == ["csv", "edf"]
    for names in (["pdf"], ["csv", "csv"]):
        with pytest.raises(OptionError, match="csv, jsonl, edf, lsl"):
            choose_outputs(names)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError):
        OUTPUTS["csv"]().open(session(tmp_path / "file"))


def test_retention_removes_old_signals_of_finished_sessions_and_nothing_else(tmp_path):
    record(tmp_path, [(0, eeg(2))])
    (old,) = files(tmp_path)
    running = EDFSignals()
    running.open(session(tmp_path, started=datetime(2026, 3, 5, tzinfo=UTC)))
    running.samples(0, eeg(2))
    (tmp_path / "journal.jsonl").write_text("{}\n")
    for path in tmp_path.iterdir():
        os.utime(path, (time.time() - 3 * 86_400,) * 2)
    assert remove_old_signals(tmp_path, 4) == []
    (removed,) = remove_old_signals(tmp_path, 2)
    assert (removed.name, round(removed.days)) == (old.name, 3)
    assert len(files(tmp_path)) == 1
    assert (tmp_path / "journal.jsonl").exists()
    running.close()
    with pytest.raises(OptionError):
        remove_old_signals(tmp_path, -1)
