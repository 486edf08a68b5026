"""Folders and files that are taken, missing or can't be written, and limits of the system that are too low."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.data import tiny_corpora
from tests.training.small import tiny_settings, windows
from tests.wrong_uses import Answer, command, wrong_use

from zipbrain.data.windows import Shard, _mapped
from zipbrain.files import scratch_folder, write_whole
from zipbrain.training import finetune

_LONG = "a" * 300


def _train(folder: Path, **options: object) -> None:
    settings = tiny_settings(epochs=1, **{name: options.pop(name) for name in ("lr",) if name in options})
    finetune("biot", windows(16), settings=settings, out=folder / "run", device="cpu", **options)  # type: ignore[arg-type]


@wrong_use("train into a folder that holds a run")
def run_is_there(folder: Path) -> None:
    _train(folder)
    _train(folder)


@wrong_use("train into a folder of other things")
def folder_of_others(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "thesis.tex").touch()
    _train(folder)


@wrong_use("resume a run that was never begun")
def nothing_to_resume(folder: Path) -> None:
    _train(folder, resume=True)


@wrong_use("resume a run with another learning rate")
def other_settings(folder: Path) -> None:
    _train(folder)
    _train(folder, resume=True, lr=0.5)


@wrong_use("prepare into a folder whose name is a file")
def file_as_folder(folder: Path) -> Answer:
    tiny_corpora.folder(folder / "raw")
    (folder / "windows").touch()
    return command("data", "prepare", "folder", "--root", folder / "raw", "--out", folder / "windows")


@wrong_use("prepare windows that another process is preparing")
def two_at_once(folder: Path) -> Answer:
    tiny_corpora.folder(folder / "raw")
    (folder / "windows").mkdir()
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, folder / "windows"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    try:
        return command("data", "prepare", "folder", "--root", folder / "raw", "--out", folder / "windows")
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()


@wrong_use("a name that no file system takes")
def long_name(folder: Path) -> Answer:
    said = command("data", "prepare", "folder", "--root", _LONG, "--out", folder / "windows")
    return Answer(said.way, said.words.replace(_LONG, "aaa..."))


def _limited(what: int, most: int, use: Callable[[], object]) -> None:
    """Call a function while this process may have at most so much of a resource."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        use()
    finally:
        resource.setrlimit(what, (soft, hard))


@wrong_use("read windows where no file can be opened any more (ulimit -n)")
def no_descriptors(folder: Path) -> None:
    np.save(folder / "shard.npy", np.zeros((1, 2, 3), np.float32))
    with open(folder / "shard.npy") as file:
        lowest = file.fileno()
    _limited(resource.RLIMIT_NOFILE, lowest, lambda: _mapped(Shard(folder / "shard.npy", 0)))


@wrong_use("train where files may have a kilobyte (ulimit -f)")
def small_files(folder: Path) -> None:
    _limited(resource.RLIMIT_FSIZE, 2**10, lambda: _train(folder))


@wrong_use("export where temporary files have no room (TMPDIR)")
def no_room_for_temporary_files(folder: Path) -> None:
    def use() -> None:
        with scratch_folder() as scratch:
            write_whole(scratch / "folded.onnx", bytes(2**15))

    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        _limited(resource.RLIMIT_FSIZE, 2**14, use)
    finally:
        tempfile.tempdir = before
