"""Example recordings: from a folder, else from the cache, else fetched; one line where none of it works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import SHARED
from file_server import Server
from zipbrain import transfer
from zipbrain.data import example_recordings, example_windows, open_prepared, prepare
from zipbrain.errors import DataError, OptionError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server with five files of EEGMAT; the cache is a new folder."""
    monkeypatch.setattr(transfer, "WAITS", (0.01,))
    for name in (*os.environ,):
        if name.lower().endswith("_proxy") or name.startswith("ZIPBRAIN_"):
            monkeypatch.delenv(name)
    server = Server()
    for person in (31, 32):
        for task in (1, 2):
            server.put(f"/mat/Subject{person}_{task}.edf", f"{person} {task}".encode())
    server.put("/mat/RECORDS", b"Subject31_1.edf\nSubject31_2.edf\nSubject32_1.edf\nSubject32_2.edf\n")
    server.sums("/mat")
    monkeypatch.setenv("ZIPBRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ZIPBRAIN_EEGMAT_URL", f"{server.url}/mat")
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_files_are_fetched_once_and_no_others(server: Server, tmp_path: Path) -> None:
    rest, arithmetic = example_recordings(32)
    assert (rest.read_bytes(), arithmetic.read_bytes()) == (b"32 1", b"32 2")
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*.edf")) == ["Subject32_1.edf", "Subject32_2.edf"]
    server.asked.clear()
    assert example_recordings(32) == [rest, arithmetic]
    assert not server.asked
    assert len(example_recordings(31, 32)) == 4
    assert {path for path, _ in server.asked if path.endswith(".edf")} == {
        "/mat/Subject31_1.edf",
        "/mat/Subject31_2.edf",
    }


def test_a_folder_that_is_named_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZIPBRAIN_EEGMAT", str(tmp_path))
    with pytest.raises(DataError, match=r"Subject31_1\.edf is not there; unset ZIPBRAIN_EEGMAT"):
        example_recordings()
    for name in ("Subject31_1.edf", "Subject31_2.edf"):
        (tmp_path / name).touch()
    assert example_recordings() == [tmp_path / "Subject31_1.edf", tmp_path / "Subject31_2.edf"]


def test_what_is_not_published_and_people_that_are_not_there_are_refused(server: Server) -> None:
    with pytest.raises(OptionError, match=r"Subject33_1\.edf"):
        example_recordings(33)
    with pytest.raises(OptionError, match="people 0 to 35"):
        example_recordings(36)


def test_without_network_one_line_names_the_folder_to_fill(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(DataError, match=r"can't be reached.*Or set ZIPBRAIN_EEGMAT to a folder") as failed:
        example_recordings(31)
    assert "\n" not in str(failed.value)
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "1")
    with pytest.raises(DataError, match="ZIPBRAIN_OFFLINE forbids the network"):
        example_recordings(31)


@pytest.mark.skipif(not (SHARED / "data" / "eegmat").is_dir(), reason="needs the real recordings in ../shared/data")
def test_windows_are_those_of_prepare_and_as_many_of_each_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("Subject31_1.edf", "Subject31_2.edf"):
        (tmp_path / name).symlink_to(SHARED / "data" / "eegmat" / name)
    monkeypatch.setenv("ZIPBRAIN_EEGMAT", str(tmp_path))
    found = example_windows("biot", people=[31])
    assert (found.n_chans, found.n_times, found.sfreq, found.classes) == (16, 800, 200.0, ("rest", "arithmetic"))
    assert found.labels.tolist() == [0] * 15 + [1] * 15
    assert set(found.subjects) == {"31"}
    prepare("eegmat", tmp_path, tmp_path / "windows", model="biot")
    prepared = open_prepared(tmp_path / "windows").split("test")  # 29 of each recording, from second 2, 2 s apart
    assert np.array_equal(found.take([1, 2, 16]), prepared.take([1, 3, 30]))
