"""Files: whole-file writes, folder locks, stamps and hashes, JSON that keeps NaN (standard library only)."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from numbers import Real
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import ZipbrainError

LARGEST_JSON: Final = 2**20  # bytes of a JSON text from outside: a hundred times the longest that zipbrain writes

_DEEPEST: Final = 32  # lists and objects within each other in such a text
_TOO_DEEP: Final = f"lists and objects lie within each other more than {_DEEPEST} deep"

GIT_BLOB: Final = "git-blob"  # an algorithm of `hash_file`
PARTIAL: Final = ".part"  # ending of a file or folder that is being written
LIMITS: Final = {  # what to do where the system allows no more of something
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "free memory, or raise its limit (ulimit -v)",
}
_PARTIAL_NAME: Final = re.compile(rf"\..+\.[0-9a-f]{{8}}{re.escape(PARTIAL)}", re.DOTALL)
_MORE: Final = 2**16  # bytes by which a file must be able to grow, if a disk is not full
_cleared: set[Path] = set()  # folders from which this process has removed leftovers


class ScratchError(ZipbrainError):
    """Temporary files can't be written; the message says where and why."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with new_partial(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def new_partial(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """A new hidden file or folder beside `path`, to be renamed when it is complete; else it is removed at the end.

    It is locked as long as this process uses it, so that other processes know it from what a killed one left behind.
    The first call for a folder removes such leftovers from it.
    """
    if path.parent.absolute() not in _cleared:
        remove_leftovers(path.parent)
        _cleared.add(path.parent.absolute())
    temporary, lock = _locked_new(path, is_folder)
    try:
        yield temporary
    finally:
        _remove(temporary)
        if lock is not None:
            os.close(lock)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder where the system wants temporary files (TMPDIR), removed at the end or by the next one."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(new_partial(Path(tempfile.gettempdir()) / "zipbrain", is_folder=True))
        except OSError as error:
            raise _no_scratch(error) from None
        try:
            inner = folder / "files"  # the outer one is locked, and who works here may lock the inner one
            inner.mkdir()
            yield inner
        except ZipbrainError:
            raise
        except Exception:
            try:
                _write_more(folder)  # libraries seldom say that a disk is full
            except OSError as error:
                raise _no_scratch(error) from None
            raise


def _no_scratch(error: OSError) -> ScratchError:
    place = f"{tempfile.tempdir}: temporary files can't be written" if tempfile.tempdir else "no temporary files"
    return ScratchError(f"{place} ({error.strerror or error}); {remedy(error, 'set TMPDIR to a folder with room')}")


def _write_more(folder: Path) -> None:
    """Add to the largest file in a folder; OSError where the disk or a limit on file sizes allows no more."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=os.path.getsize, default=folder / "file")
    with open(largest, "ab") as file:
        file.write(bytes(_MORE))


def remove_leftovers(folder: Path) -> None:
    """Remove partial files and folders that no living process holds; nothing where the file system has no locks."""
    with suppress(OSError):
        for name in filter(_PARTIAL_NAME.fullmatch, os.listdir(folder)):
            with suppress(OSError), _held(os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))) as handle:
                if _lock(handle):
                    _remove(folder / name)


def _locked_new(path: Path, is_folder: bool) -> tuple[Path, int | None]:
    """A new partial file or folder, and the handle that locks it; None where there are no locks."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        if is_folder:
            temporary.mkdir(mode=0o700, parents=True)
        else:
            temporary.touch(exist_ok=False)
        if os.name == "nt":  # opens no folders, and removes no file that is open
            return temporary, None
        try:
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
            continue
        if _lock(handle) is not False and temporary.exists():
            return temporary, handle
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _held(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """True if this process holds the lock now, False if another one does, None where there are no locks.

    The system gives the lock back when this process ends, however it ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None


@contextmanager
def lock_folder(folder: Path, busy: ZipbrainError) -> Iterator[None]:
    """Hold a lock on an existing folder; `busy` is raised where another process holds it."""
    if os.name == "nt":  # Windows refuses to rename a file that another process has open
        yield
        return
    with _held(os.open(folder, os.O_RDONLY)) as handle:
        if _lock(handle) is False:
            raise busy
        yield


def remedy(error: Exception, advice: str) -> str:
    """What to do about an error: the limit to raise if the system set one, else the given advice."""
    return LIMITS.get(getattr(error, "errno", None) or 0, advice)


def stamp_files(*paths: Path) -> list[list[int] | None]:
    """Size and time of last change of each file, None for a missing one."""
    stamps: list[list[int] | None] = []
    for path in paths:
        try:
            state = path.stat()
            stamps.append([state.st_size, state.st_mtime_ns])
        except OSError:
            stamps.append(None)
    return stamps


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Hash of a file's content as ``"algorithm:hexadecimal"``; of "git-blob", git's id of a file with this content."""
    with path.open("rb") as file:
        begun = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size) if algorithm == GIT_BLOB else None
        digest = hashlib.file_digest(file, algorithm if begun is None else lambda: begun)
    return f"{algorithm}:{digest.hexdigest()}"


def json_ready(content: dict[str, Any]) -> dict[str, Any]:
    """The same content as JSON would give it back; NaN and infinity, which JSON lacks, become None."""
    ready: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return ready


def read_json(path: Path, most: int = LARGEST_JSON) -> Any:
    """What a JSON file holds; OSError if it can't be read or is no regular file, ValueError as for `parse_json`."""
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe may never end
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with path.open("rb") as file:
        content = file.read(most + 1)
    return parse_json(content, most)


def parse_json(text: str | bytes, most: int = LARGEST_JSON) -> Any:
    """What a JSON text from outside holds; ValueError if it is damaged, too long, too deep or holds NaN or infinity."""
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    try:
        content = json.loads(
            text if isinstance(text, str) else text.decode("utf-8-sig"), parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level, depth = [content], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        inside = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level, depth = [value for values in inside for value in values], depth + 1
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is no JSON")


def encode_nan(value: Any) -> Any:
    """The same content with None for NaN and ``"inf"`` or ``"-inf"`` for infinities; arrays become lists."""
    if isinstance(value, dict):
        return {name: encode_nan(content) for name, content in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [encode_nan(content) for content in value]
    if isinstance(value, Real) and not math.isfinite(value):
        return None if math.isnan(value) else str(float(value))
    return value


def decode_nan(value: Any) -> Any:
    """Inverse of `encode_nan`."""
    if isinstance(value, dict):
        return {name: decode_nan(content) for name, content in value.items()}
    if isinstance(value, list):
        return [decode_nan(content) for content in value]
    return math.nan if value is None else float(value) if value in ("inf", "-inf") else value
