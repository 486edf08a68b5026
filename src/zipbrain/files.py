"""Files: whole-file writes, folder locks, stamps and hashes, JSON that keeps NaN (standard library only)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import ZipbrainError

PARTIAL: Final = ".part"  # ending of a file that is being written
LARGEST_JSON: Final = 2**20  # bytes of a JSON text from outside: a hundred times the longest that zipbrain writes

_DEEPEST: Final = 32  # lists and objects within each other in such a text
_TOO_DEEP: Final = f"lists and objects lie within each other more than {_DEEPEST} deep"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = partial_name(path)
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def partial_name(path: Path) -> Path:
    """A new hidden name beside `path` for a file that is being written."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


@contextmanager
def lock_folder(folder: Path, busy: ZipbrainError) -> Iterator[None]:
    """Hold a lock on an existing folder; `busy` is raised where another process holds it.

    The system gives the lock back when this process ends, however it ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows refuses to rename a file that another process has open
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


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
    """Hash of a file's content as ``"algorithm:hexadecimal"``."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def json_ready(content: dict[str, Any]) -> dict[str, Any]:
    """The same content as JSON would give it back; NaN and infinity, which JSON lacks, become None."""
    ready: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return ready


def read_json(path: Path, most: int = LARGEST_JSON) -> Any:
    """What a JSON file holds; OSError if it can't be read, ValueError as for `parse_json`."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    return parse_json(content, most)


def parse_json(text: str | bytes, most: int = LARGEST_JSON) -> Any:
    """What a JSON text from outside holds; ValueError if it is damaged, too long, too deep or holds NaN or infinity."""
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    try:
        content = json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refuse_constant)
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
