"""The journal's hash chain: what a kill, a full disk or a changed byte leave behind."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from zipbrain.errors import DataError, OptionError
from zipbrain.live.chain import encode_line, read_chain
from zipbrain.live.journal import Journal
from zipbrain.live.verify import verify

FACTS = {"model": "sha256:1", "recipe": {}, "thresholds": {"on": 0.8}}


def write_journal(folder: Path, lines: int = 3) -> Path:
    with Journal(folder, FACTS) as journal:
        for number in range(lines):
            assert journal.write("decision", stop_s=float(number), probabilities=np.float32([0.25, math.nan]))
    return journal.path


def test_a_closed_journal_is_whole_private_and_keeps_nan(tmp_path):
    path = write_journal(tmp_path / "run")
    report = verify(tmp_path / "run")
    assert (report.verdict, report.lines, report.sessions, report.fault_line) == ("whole", 5, 1, None)
    assert read_chain(path).lines[1]["facts"]["probabilities"] == [0.25, None]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_every_flipped_byte_is_found(tmp_path):
    path = write_journal(tmp_path, 1)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert verify(path).verdict == "changed", (place, bit)


@pytest.mark.parametrize("edit", ["remove", "swap", "insert", "first"])
def test_removed_swapped_and_inserted_lines_are_found(tmp_path, edit):
    path = write_journal(tmp_path)
    rows = path.read_bytes().splitlines(keepends=True)
    if edit == "remove":
        del rows[2]
    elif edit == "swap":
        rows[1], rows[2] = rows[2], rows[1]
    elif edit == "insert":
        rows.insert(2, encode_line(3, json.loads(rows[1])["hash"], "", "decision", {})[0])
    else:
        del rows[0]
    path.write_bytes(b"".join(rows))
    assert not verify(path).is_intact


def test_any_cut_is_torn_and_continued_with_its_bytes_on_record(tmp_path):
    path = write_journal(tmp_path, 1)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert verify(path).verdict == "torn at its end"
        write_journal(tmp_path, 1)
        report = verify(path)
        assert (report.verdict, report.mended, report.sessions) == ("whole", int(cut < len(whole) - 1), 2), cut
        content = path.read_bytes()
        assert content.startswith(whole[:cut])
        path.write_bytes(content[: cut - 1] + bytes([content[cut - 1] ^ 1]) + content[cut:])
        assert verify(path).verdict == "changed"


def test_a_killed_session_loses_no_written_line(tmp_path):
    code = (
        "import sys; from zipbrain.live.journal import Journal\n"
        f"j = Journal(sys.argv[1], {FACTS!r})\n"
        "for n in range(10**6): j.write('decision', n=n); print(n, flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    told = [int(process.stdout.readline()) for _ in range(50)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = verify(tmp_path)
    assert report.is_intact
    assert not report.is_closed
    assert report.lines >= told + 2


def test_a_full_disk_keeps_lines_until_there_is_room_and_counts_the_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("zipbrain.live.journal.MOST_WAITING", 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path, FACTS) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(journal.path) + 100, hard))
        try:
            written = [journal.write("decision", n=n) for n in range(20)]
            assert not any(written)
            assert journal.failure
            assert journal.lost == 14  # one is half on disk, five wait
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        deadline = time.monotonic() + 5
        while journal.waiting and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not journal.failure
    report = verify(tmp_path)
    assert (report.verdict, report.lost) == ("whole", 14)


def test_wrong_journals_are_refused(tmp_path):
    with pytest.raises(OptionError):
        Journal(tmp_path, {"model": "x"})
    with Journal(tmp_path, FACTS), pytest.raises(DataError, match="another session"):
        Journal(tmp_path, FACTS)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "journal.jsonl").write_bytes(encode_line(1, "0" * 64, "", "session", {"format": 2})[0])
    with pytest.raises(DataError, match="format 2"):
        verify(tmp_path / "new")
    with pytest.raises(DataError):
        verify(tmp_path / "missing")


def test_a_fact_may_be_called_kind(tmp_path):
    with Journal(tmp_path, FACTS) as journal:
        journal.write("event", kind="raised", alarm="seizure")
    assert [line["facts"] for line in read_chain(journal.path).lines if line["kind"] == "event"] == [
        {"kind": "raised", "alarm": "seizure"}
    ]


def test_a_long_journal_goes_on_from_its_end_and_keeps_the_alarms_of_its_last_session(tmp_path, monkeypatch):
    monkeypatch.setattr("zipbrain.live.chain._END_BYTES", 4096)
    with Journal(tmp_path, FACTS) as journal:
        journal.write("event", kind="raised", alarm="of a session before")
    with Journal(tmp_path, FACTS) as journal:
        journal.write("event", kind="raised", alarm="seizure")
        for number in range(100):
            journal.write("decision", stop_s=number, note=',"kind":"event","facts":{')
    whole = journal.path.read_bytes()
    for cut in (len(whole), len(whole) - 1, len(whole) - 50, len(whole) - 300):
        journal.path.write_bytes(whole[:cut])
        with Journal(tmp_path, FACTS) as again:
            assert [event["alarm"] for event in again.earlier_events] == ["seizure"]
        report = verify(tmp_path)
        assert (report.verdict, report.sessions) == ("whole", 3), cut
    journal.path.write_bytes(whole[:-400] + b"?" + whole[-399:])
    with pytest.raises(DataError, match=r"line 10\d"):
        Journal(tmp_path, FACTS)
