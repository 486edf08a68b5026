"""A folder of prepared windows that survives being killed: whole files or none, one per recording."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import DataError
from zipbrain.files import lock_folder, new_partial, remedy, remove_leftovers, write_whole

OPTIONS: Final = "options.json"


class CacheError(DataError):
    """The folder can't be written: a full disk, or no permission. It refuses no recording."""


class Cache:
    """Shards and their records in one folder, for options (JSON) that decide what the windows look like.

    A recording's windows are `shards/<name>.npy`; `shards/<name>.json` is written after them and says what they are.
    Both appear under a temporary name and are renamed when they are complete, so a file that is there is whole. A
    recording without a record is simply prepared again.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder, self.options = folder, options

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, or check that it was made with the same options; one process at a time."""
        with _writing(self.folder):
            (self.folder / "shards").mkdir(parents=True, exist_ok=True)
        busy = DataError(f"{self.folder}: another process is preparing windows there; wait for it to end")
        with lock_folder(self.folder, busy):
            self._check_options()
            self._remove_leftovers()
            yield
            self._remove_leftovers()  # of workers that outlived a killed process by some moments

    def _remove_leftovers(self) -> None:
        for folder in (self.folder, self.folder / "shards"):
            remove_leftovers(folder)

    def _check_options(self) -> None:
        path = self.folder / OPTIONS
        if path.exists():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise DataError(f"{path}: can't be read; choose another folder") from None
            changed = _differences(before, json.loads(json.dumps(self.options)))
            if changed and not any((self.folder / "shards").glob("*.npy")):  # all was refused
                write_json(path, self.options)
            elif changed:
                more = f"; {len(changed) - 2} more" if len(changed) > 2 else ""
                found = f"holds windows prepared with other options ({'; '.join(changed[:2])}{more})"
                raise DataError(f"{self.folder}: {found}; choose another folder, or remove this one")
        elif any((self.folder / "shards").iterdir()):
            raise DataError(f"{self.folder}: has a folder shards, but no {OPTIONS}; choose another folder")
        else:
            write_json(path, self.options)

    def shard(self, key: str, state: Any) -> Path:
        """Where the windows of a recording lie, for a state (JSON) that decides them beside the options.

        Another state is another file: an index that is still in use never finds its windows changed.
        """
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", key).strip("-.")[-60:]
        digest = hashlib.sha256(json.dumps([key, state], sort_keys=True).encode()).hexdigest()
        return self.folder / "shards" / f"{slug}-{digest[:12]}.npy"

    def record(self, shard: Path) -> dict[str, Any] | None:
        """What is known about a shard, or None if it must be prepared (again)."""
        try:
            record: dict[str, Any] = json.loads(shard.with_suffix(".json").read_text(encoding="utf-8"))
            if record["refused"] is None and shard.stat().st_size == record["bytes"]:
                return record
        except (OSError, ValueError, KeyError):
            pass
        return None  # also what was refused: the reason may be gone

    def forget(self, keys: set[str], used: set[Path]) -> int:
        """Remove unused shards of these recordings; returns how many of other recordings stay."""
        left = 0
        for shard in {path.with_suffix(".npy") for path in (self.folder / "shards").iterdir()} - used:
            path = shard.with_suffix(".json")
            with suppress(OSError, ValueError, KeyError):
                # Without a record it is what a process that was killed left behind.
                if not path.exists() or json.loads(path.read_text(encoding="utf-8"))["key"] in keys:
                    shard.unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
                else:
                    left += 1
        return left


class ShardWriter:
    """Writes windows (n, C, T) of float32 as they come, of shape (C, T) each; the file appears when it is complete."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.path, self._shape, self.count = path, shape, 0
        with _writing(path), ExitStack() as opened:
            self._temporary = opened.enter_context(new_partial(path))
            self._file: IO[bytes] = opened.enter_context(open(self._temporary, "wb"))
            self._header()
            self._opened = opened.pop_all()

    def _header(self) -> None:
        # numpy leaves room for a longer count, so that the header can be written again in place.
        layout = {"descr": np.dtype("<f4").str, "fortran_order": False, "shape": (self.count, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, layout)

    def append(self, windows: NDArray[np.float32]) -> None:
        """Write (m, C, T)."""
        with _writing(self.path):
            self._file.write(np.ascontiguousarray(windows, dtype="<f4").data)
        self.count += len(windows)

    def close(self) -> int:
        """Finish; return the size of the file in bytes. Without windows there is no file."""
        with _writing(self.path):
            self._file.seek(0)
            self._header()
            self._file.flush()
            os.fsync(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
            self._file.close()
            if self.count:
                os.replace(self._temporary, self.path)
                return size
            self.path.unlink(missing_ok=True)
        return 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave nothing behind unless `close` was reached."""
        with suppress(OSError):
            self._opened.close()


def write_json(path: Path, content: Any, indent: int | None = 1) -> bool:
    """Write JSON whole or not at all, unless the file says the same already; True if it was written."""
    text = json.dumps(content, indent=indent, sort_keys=True, ensure_ascii=False) + "\n"
    with suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8") == text:
            return False
    with _writing(path):
        write_whole(path, text.encode())
    return True


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "make room or choose a folder that can be written, and run the same command again"
        words = f"can't be written ({error.strerror or error}); what was prepared is kept: {remedy(error, advice)}"
        raise CacheError(f"{path}: {words}") from None


def _differences(before: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for key in sorted(before.keys() | now.keys(), key=lambda key: (key != "model", key)):
            lines += _differences(before.get(key), now.get(key), f"{name}.{key}".strip("."))
        return lines
    was, is_now = (text if len(text) <= 40 else f"{text[:37]}..." for text in map(json.dumps, (before, now)))
    return [] if before == now else [f"{name} was {was}, now {is_now}"]
