"""Partial files and folders: whole or not at all, and what a killed process left is removed, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zipbrain import files
from zipbrain.errors import ZipbrainError
from zipbrain.files import new_partial, remove_leftovers, scratch_folder, write_whole

HOLD = """
import sys, time
from pathlib import Path
from zipbrain.files import new_partial
path, is_folder = Path(sys.argv[1]), sys.argv[2] == "folder"
with new_partial(path, is_folder=is_folder) as temporary:
    (temporary / "inside" if is_folder else temporary).write_text("half")
    print(temporary.name, flush=True)
    time.sleep(60)
"""


def hold(path: Path, kind: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a partial file or folder, and its path."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, path.with_name(process.stdout.readline().strip())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(tmp_path: Path, kind: str) -> None:
    process, left = hold(tmp_path / "result.json", kind)
    remove_leftovers(tmp_path)
    assert left.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_writing_a_file_removes_what_a_killed_process_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / ".result.json.0123abcd.part").write_text("half")
    write_whole(tmp_path / "result.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_files_that_a_user_may_have_made_stay(tmp_path: Path) -> None:
    names = {"film.part", ".film.part", "result.json.0123abcd.part", ".result.json.0123ABCD.part", ".a.12.part"}
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / ".link.0123abcd.part").symlink_to(tmp_path / "elsewhere")
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "elsewhere", ".link.0123abcd.part"}


def test_a_new_partial_file_that_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = files._lock, [0]

    def lock(handle: int) -> bool | None:
        calls[0] += 1
        if calls[0] == 1:  # another process removes it between its making and its locking
            next(tmp_path.glob(".*.part")).unlink()
        return real(handle)

    monkeypatch.setattr(files, "_lock", lock)
    with new_partial(tmp_path / "a") as temporary:
        assert temporary.exists()
    assert calls[0] == 2
    assert not list(tmp_path.iterdir())


def test_without_locks_files_are_written_and_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_lock", lambda handle: None)
    (tmp_path / ".a.0123abcd.part").write_text("perhaps in use")
    write_whole(tmp_path / "a", b"1")
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".a.0123abcd.part"}


def test_a_scratch_folder_is_in_tmpdir_and_goes_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / ".zipbrain.0123abcd.part"
    left.mkdir()
    (left / "graph.onnx").write_text("half")
    with scratch_folder() as folder:
        assert tmp_path in folder.parents
        with files.lock_folder(folder, ZipbrainError("a folder of this process is locked by this process")):
            pass
        assert not left.exists()
        (folder / "file").write_text("x")
    assert not list(tmp_path.iterdir())


def test_no_handle_stays_open(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("no list of open files here")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        write_whole(tmp_path / str(number), b"")
    (tmp_path / ".a.0123abcd.part").touch()
    remove_leftovers(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
