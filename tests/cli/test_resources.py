"""A machine that lacks memory, room, descriptors or a place for temporary files: one line that names the cause."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from zipbrain.cli import main
from zipbrain.data.windows import Shard, _mapped
from zipbrain.errors import DataError
from zipbrain.files import ScratchError, scratch_folder, write_whole

resource = pytest.importorskip("resource", reason="this system sets no limits")

LACKS: dict[str, tuple[Exception, str]] = {
    "disk": (OSError(errno.ENOSPC, "No space left on device", "/out/x"), "/out/x: No space left on device; make room"),
    "file size": (OSError(errno.EFBIG, "File too large"), "File too large; raise the limit on file sizes (ulimit -f)"),
    "descriptors": (OSError(errno.EMFILE, "Too many open files", "a"), "a: Too many open files; raise the limit"),
    "memory": (MemoryError("Unable to allocate 2 GiB"), "not enough memory (Unable to allocate 2 GiB); free memory"),
    "torch": (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "not enough memory (DefaultCPU"),
    "library": (
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        "not enough memory (libtorch",
    ),
    "library file": (ImportError("libx.so: cannot open: Too many open files"), "too many open files (libx.so"),
    "TMPDIR": (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x']"), "; set TMPDIR to a"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_the_machine_lacks_is_one_line_and_code_one(
    lack: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error, words = LACKS[lack]

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("zipbrain.pretrained.from_pretrained", fail)
    assert main(["evaluate", "run", "--data", "synthetic-events"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_lack_behind_another_error_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise KeyError("a library's own") from None

    monkeypatch.setattr("zipbrain.pretrained.from_pretrained", fail)
    assert main(["evaluate", "run", "--data", "synthetic-events"]) == 1
    assert capsys.readouterr().err == "error: not enough memory; free memory, or raise its limit (ulimit -v)\n"


def test_a_fault_of_zipbrain_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("zipbrain.pretrained.from_pretrained", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["evaluate", "run", "--data", "synthetic-events"])


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """At most so much of a resource for this process."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def test_a_library_that_can_not_write_temporary_files_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    from edge.tiny_onnx import description, graph
    from zipbrain.export.onnx_graph import fold

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    proto = graph(description())
    big = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(16, 2000)).astype(np.float32), "weights")
    proto.graph.initializer[1].CopyFrom(big)
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2000
    with limited(resource.RLIMIT_FSIZE, 2**14), pytest.raises(ScratchError, match=r"File too large.*ulimit -f") as said:
        fold(proto)
    assert str(tmp_path) in str(said.value)
    assert not list(tmp_path.iterdir())
    fold(proto)


def test_an_error_in_a_scratch_folder_that_has_room_stays_as_it_is() -> None:
    def fail() -> None:
        with scratch_folder():
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()


def test_no_place_for_temporary_files_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/nowhere']")

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile.gettempdir", fail)
    with pytest.raises(ScratchError, match=r"'/nowhere'.*set TMPDIR"):
        scratch_folder().__enter__()


def test_too_many_open_files_is_no_fault_of_the_prepared_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 3, 4), np.float32))
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    with limited(resource.RLIMIT_NOFILE, lowest), pytest.raises(DataError, match=r"open files.*ulimit -n") as said:
        _mapped(Shard(path, 0))
    assert "prepare" not in str(said.value)


def test_a_limit_on_file_sizes_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result"
    write_whole(path, b"old")
    with limited(resource.RLIMIT_FSIZE, 2**12), pytest.raises(OSError, match="File too large"):
        write_whole(path, bytes(2**13))
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["result"]
