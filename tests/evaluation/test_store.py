"""The store of results: whole lines whatever happens, many writers, and files that something has damaged."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation import store as module
from zipbrain.evaluation.store import Store

# Adds keys A..B of a width to a store and prints each when `add` has returned.
ADDING = """
import sys
from zipbrain.evaluation.store import Store
store, first, last, size = Store(sys.argv[1]), *map(int, sys.argv[2:5])
for number in range(first, last):
    store.add({"key": f"k{number}", "extra": {"text": "x" * size}})
    print(f"k{number}", flush=True)
"""


def adding(folder: Path, first: int, last: int, size: int = 50, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + ADDING, str(folder), str(first), str(last), str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "results.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def record(key: str, **more: Any) -> dict[str, Any]:
    return {"format": 1, "key": key, **more}


def test_what_is_added_is_found_again_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "results")
    assert store.records() == []
    assert store.get("b") is None
    assert store.remarks == []
    assert not (tmp_path / "new").exists()  # reading makes nothing
    for key in "bac":
        store.add({"key": key, "ratio": None, "label": "Zürich\n2"})
    assert [one["key"] for one in store.records()] == ["b", "a", "c"]
    assert store.get("a") == record("a", ratio=None, label="Zürich\n2") == Store(store.folder).get("a")
    assert len(lines(store.folder)) == 3


def test_a_key_is_stored_once_also_if_another_store_added_it(tmp_path: Path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    one.add(record("a", seconds=1.0))
    other.add(record("a", seconds=2.0))
    other.add(record("b"))
    assert one.get("a") == record("a", seconds=1.0)
    assert one.get("b") == record("b")  # read although another store wrote it
    assert len(lines(tmp_path)) == 2


def test_numbers_that_are_not_finite_survive_where_numbers_stand(tmp_path: Path) -> None:
    scores = {"auroc": math.nan, "kappa": np.float32("nan"), "accuracy": np.float64(0.5), "windows": np.int64(3)}
    given = record("a", scores=scores, intervals={"auroc": (math.nan, 0.5)}, logit_error=-math.inf, ratio=None)
    store = Store(tmp_path)
    store.add({**given, "confusion": np.array([[1, 2], [3, 4]])})
    text = (tmp_path / "results.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    for found in (store.get("a"), Store(tmp_path).get("a")):
        assert found is not None
        assert math.isnan(found["scores"]["auroc"])
        assert math.isnan(found["scores"]["kappa"])
        assert found["scores"]["accuracy"] == 0.5
        assert math.isnan(found["intervals"]["auroc"][0])
        assert found["intervals"]["auroc"][1] == 0.5
        assert found["logit_error"] == -math.inf
        assert found["ratio"] is None
        assert found["confusion"] == [[1, 2], [3, 4]]
    with pytest.raises(OptionError, match=r"record\.extra\.loss: got nan"):
        store.add(record("b", extra={"loss": math.nan}))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, r"record\.key: got None"),
        ({"key": 3}, r"record\.key: got 3"),
        ({"key": ""}, r"record\.key: got ''"),
        ({"key": "a", "format": 2}, r"record\.format: got 2"),
        ({"key": "a", "task": {1: 2}}, r"record\.task: got 1, but names must be strings"),
        ({"key": "a", "task": object}, r"can't be written as JSON"),
        ([("key", "a")], "it must be a dictionary"),
    ],
)
def test_a_record_that_can_not_be_stored_is_refused_before_anything_is_written(
    wrong: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=said):
        Store(tmp_path).add(wrong)
    assert list(tmp_path.iterdir()) == []


# -- damaged files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [b'{"format":1,"key":"hal', b"\0" * 40, b'{"format":1,"key":"\xc3'])
def test_a_half_written_last_line_is_left_out_and_set_aside_by_the_next_add(half: bytes, tmp_path: Path) -> None:
    Store(tmp_path).add(record("a"))
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    for number in (1, 2):
        with open(path, "ab") as file:
            file.write(half)
        store = Store(tmp_path)
        assert [one["key"] for one in store.records()] == list("ab"[:number])
        assert f"half-written line of {len(half)} bytes" in store.remarks[0]
        assert path.read_bytes() == whole + half  # reading changes nothing
        store.add(record("bc"[number - 1]))
        assert (tmp_path / f"results.damaged-{number}.jsonl").read_bytes() == half
        assert store.remarks == [f"{path} ended in a half-written line: set aside as results.damaged-{number}.jsonl"]
        assert Store(tmp_path).remarks == []
        whole = path.read_bytes()
    assert [one["key"] for one in lines(tmp_path)] == ["a", "b", "c"]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(record("a")))
    store = Store(tmp_path)
    assert store.get("a") == record("a")
    assert store.remarks == []
    store.add(record("a"))
    assert path.read_text() == json.dumps(record("a"))
    store.add(record("b"))
    assert [one["key"] for one in lines(tmp_path)] == ["a", "b"]
    assert [one["key"] for one in store.records()] == ["a", "b"]


@pytest.mark.parametrize("broken", [b"<<<<<<< ours", b"[1]", b'{"format": 1}', b'{"key": "x"}', b"\xff\xfe", b"NaN"])
def test_a_line_in_the_middle_that_is_no_record_stays_and_is_remarked(broken: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    content = json.dumps(record("a")).encode() + b"\n\n" + broken + b"\n" + json.dumps(record("b")).encode() + b"\n"
    path.write_bytes(content)
    store = Store(tmp_path)
    store.add(record("c"))
    assert [one["key"] for one in store.records()] == ["a", "b", "c"]
    assert store.remarks == [f"{path}, line 3, is no record: left out, kept in the file"]
    assert path.read_bytes().startswith(content)


def test_a_newer_format_is_refused_with_file_and_version_and_nothing_is_added(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    content = json.dumps(record("a")) + "\n" + json.dumps({"format": 7, "key": "b"}) + "\n"
    path.write_text(content)
    store = Store(tmp_path)
    for attempt in (store.records, lambda: store.get("a"), lambda: store.add(record("c"))):
        with pytest.raises(DataError, match=r"results\.jsonl, line 2: format 7, but this zipbrain reads up to 1"):
            attempt()
    assert path.read_text() == content


def test_a_file_that_was_replaced_or_removed_is_read_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(record("a", label="a long record"))
    other = Store(tmp_path / "other")
    other.add(record("b"))
    os.replace(other.path, store.path)
    assert store.records() == [record("b")]
    store.path.unlink()
    assert store.records() == []
    store.add(record("a"))
    assert lines(tmp_path) == [record("a")]


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_read_only_folder_can_be_read_and_the_refusal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path).add(record("a"))
    really = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:  # as root any folder can be written
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, *more)

    monkeypatch.setattr(module.os, "open", read_only)
    store = Store(tmp_path)
    assert store.get("a") == record("a")
    store.add(record("a"))  # there already
    with pytest.raises(DataError, match=r"results\.jsonl: a result can't be added \(Read-only file system\)"):
        store.add(record("b"))


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/results\.jsonl: it can't be read \(Not a directory\)"):
        Store(tmp_path / "file").records()
    with pytest.raises(DataError, match=r"file/results\.jsonl: a result can't be added \(File exists\)"):
        Store(tmp_path / "file").add(record("a"))


def test_a_file_that_can_not_grow_stays_valid(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    process = adding(tmp_path, 0, 100, before=limit)  # the line that crosses the limit is written in part
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "results.jsonl: a result can't be added (File too large)" in errors
    assert [one["key"] for one in lines(tmp_path)] == out.split()
    assert 5 < len(out.split()) < 50
    assert Store(tmp_path).remarks == []


def test_a_full_disk_is_named_and_the_file_stays_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.add(record("a"))
    before, really = store.path.read_bytes(), os.write
    pieces = iter([10])

    def full(handle: int, content: bytes) -> int:
        for room in pieces:
            return really(handle, content[:room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(DataError, match="No space left on device"):
        store.add(record("b"))
    assert store.path.read_bytes() == before
    monkeypatch.undo()
    store.add(record("b"))
    assert [one["key"] for one in lines(tmp_path)] == ["a", "b"]


def test_a_half_line_that_can_not_be_set_aside_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.add(record("a"))
    with open(store.path, "ab") as file:
        file.write(b'{"half')
    before = store.path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        store.add(record("b"))
    assert store.path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["results.jsonl"]


# -- many writers ------------------------------------------------------------------------------------------------------


def test_many_processes_add_at_once(tmp_path: Path) -> None:
    processes = [adding(tmp_path, first, first + 60, size=9000) for first in (0, 20, 40, 60)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    keys = [one["key"] for one in lines(tmp_path)]
    assert len(keys) == len({*keys}) == 120
    assert {*keys} == {f"k{number}" for number in range(120)}


def test_threads_of_one_process_add_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def work() -> None:
        for number in range(30):
            store.add(record(f"k{number}"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["key"] for one in lines(tmp_path)) == sorted(f"k{number}" for number in range(30))
    assert len(store.records()) == 30
    assert store.remarks == []
    assert pickle.loads(pickle.dumps(store)).records() == store.records()


def test_a_process_killed_while_it_adds_loses_nothing_that_was_added(tmp_path: Path) -> None:
    told: list[str] = []
    for attempt in range(5):
        first = attempt * 100_000
        process = adding(tmp_path, first, first + 100_000, size=200_000)
        assert process.stdout is not None
        told.append(process.stdout.readline().strip())
        time.sleep(0.02 + 0.013 * attempt)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
        told += [key for key in rest.split("\n")[:-1] if key]
    store = Store(tmp_path)
    store.add(record("last"))
    found = [one["key"] for one in lines(tmp_path)]
    assert {*told} <= {*found}
    assert len(found) == len({*found})
    assert len(found) - 1 - len(told) <= 5  # added, but killed before it could say so


def test_a_lock_that_is_never_given_back_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    with (
        module.lock_folder(tmp_path, DataError("busy")),
        pytest.raises(DataError, match="other processes held its lock"),
    ):
        Store(tmp_path).add(record("a"))
    Store(tmp_path).add(record("a"))
    assert len(lines(tmp_path)) == 1
