"""`ArchiveIndex`: what became of every recording of an archive, in one SQLite file beside its Parquet dataset.

A part of the dataset counts only once the index lists it, in the same transaction as its recordings: whenever a run is
killed, every recording is in exactly one listed part or in none.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import DataError
from zipbrain.text import readable

INDEX: Final = "zipbrain_archive.sqlite"
_FORMAT: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (number INTEGER PRIMARY KEY, windows INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS recordings (
    path TEXT PRIMARY KEY, run INTEGER NOT NULL, stamp TEXT NOT NULL, status TEXT NOT NULL, part INTEGER,
    facts TEXT NOT NULL DEFAULT '{}', reason TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
"""
_CLAIM: Final = """
INSERT INTO recordings (path, run, stamp, status) VALUES (?, ?, ?, 'pending')
ON CONFLICT (path) DO UPDATE SET run = excluded.run, stamp = excluded.stamp, status = 'pending', reason = '', error = ''
"""
_SETTLE: Final = "UPDATE recordings SET status = ?, part = ?, facts = ?, reason = ?, error = ? WHERE path = ?"
CHANGED: Final = "was changed after it was predicted; take another --out, or --overwrite to predict all again"


@dataclass(frozen=True)
class Outcome:
    """What became of one recording."""

    path: str  # as `name_recording` makes it
    facts: dict[str, Any]  # minutes, windows, shares, ...; empty if it failed
    reason: str = ""  # why it failed, without names and numbers, so that equal ones can be counted
    error: str = ""  # why it failed, in one line


class ArchiveIndex:
    """The index of one folder of results; used by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / INDEX
        with self._as_data_error():
            self._base = sqlite3.connect(self.path, isolation_level=None)
            self._base.executescript(_TABLES)
            self._run = int(self._about("run", "0")) + 1
            if (version := int(self._about("format", str(_FORMAT)))) > _FORMAT:
                raise DataError(f"{self.path}: has format {version}, of a newer zipbrain; update this one")
            self._write("INSERT OR REPLACE INTO about VALUES ('run', ?), ('format', ?)", (self._run, _FORMAT))

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def settle_key(self, key: dict[str, Any]) -> None:
        """Store the key of the run's plan; refused if the folder holds answers with another one."""
        wanted = json.dumps(key, sort_keys=True)
        with self._as_data_error():
            if _known(json.loads(self._about("options", wanted))) != _known(json.loads(wanted)):
                found = "holds predictions of another model or runtime, or with other options"
                raise DataError(f"{self.path.parent}: {found}; take another --out, or --overwrite to replace them")
            self._write("INSERT OR REPLACE INTO about VALUES ('options', ?)", (wanted,))

    def claim(self, found: Iterable[tuple[Path, str]]) -> tuple[list[Path], int]:
        """The recordings to predict, of some that come with their stamps, and how many of the others are finished.

        A recording that comes twice in a run is claimed once.
        """
        claimed, done = [], 0
        with self._as_data_error(), self._transaction():
            for path, stamp in found:
                name = name_recording(path)
                row = self._base.execute("SELECT run, stamp, part FROM recordings WHERE path = ?", (name,)).fetchone()
                if row is not None and row[0] == self._run:
                    continue
                if row is None or row[2] is None:
                    self._base.execute(_CLAIM, (name, self._run, stamp))
                    claimed.append(path)
                    continue
                same = row[1] == stamp
                words = ("done", "", "") if same else ("changed", CHANGED.partition(";")[0], f"{path}: {CHANGED}")
                update = "UPDATE recordings SET run = ?, status = ?, reason = ?, error = ? WHERE path = ?"
                self._base.execute(update, (self._run, *words[:2], readable(words[2]), name))
                done += same
        return claimed, done

    def next_part(self) -> int:
        """The number of the next part of the dataset."""
        with self._as_data_error():
            return int(self._base.execute("SELECT coalesce(max(number), 0) + 1 FROM parts").fetchone()[0])

    def parts(self) -> list[int]:
        """The numbers of all parts that count."""
        with self._as_data_error():
            return [number for (number,) in self._base.execute("SELECT number FROM parts ORDER BY number")]

    def settle(self, outcomes: Sequence[Outcome], part: int | None, windows: int) -> None:
        """Store outcomes, and the part that holds their windows, in one transaction."""
        with self._as_data_error(), self._transaction():
            if part is not None:
                self._base.execute("INSERT INTO parts VALUES (?, ?)", (part, windows))
            for one in outcomes:
                status, place = ("failed", None) if one.error else ("done", part)
                words = json.dumps(one.facts), readable(one.reason), readable(one.error)
                self._base.execute(_SETTLE, (status, place, *words, one.path))

    def rows(self) -> Iterator[tuple[str, str, dict[str, Any], str]]:
        """Path, status, facts and error of every recording of this run, sorted by path, one at a time."""
        query = "SELECT path, status, facts, error FROM recordings WHERE run = ? ORDER BY path"
        with self._as_data_error():
            for path, status, facts, error in self._base.execute(query, (self._run,)):
                yield path, status, json.loads(facts), error

    def counts(self) -> dict[str, int]:
        """How many recordings of this run have each status."""
        with self._as_data_error():
            query = "SELECT status, count(*) FROM recordings WHERE run = ? GROUP BY status"
            return dict(self._base.execute(query, (self._run,)).fetchall())

    def reasons(self) -> list[tuple[str, int, str]]:
        """Why recordings of this run failed, how often, and an example, the commonest first."""
        query = """
            SELECT reason, count(*), min(error) FROM recordings WHERE run = ? AND error != ''
            GROUP BY reason ORDER BY 2 DESC, 1
        """
        with self._as_data_error():
            return self._base.execute(query, (self._run,)).fetchall()

    def totals(self, *names: str) -> list[float]:
        """Sums of facts over the recordings of this run that are done; ``audit.windows`` is a fact within one."""
        sums = ", ".join(f"coalesce(sum(json_extract(facts, '$.{name}')), 0)" for name in names)
        with self._as_data_error():
            query = f"SELECT {sums} FROM recordings WHERE run = ? AND status = 'done'"
            return list(self._base.execute(query, (self._run,)).fetchone())

    def _about(self, name: str, otherwise: str) -> str:
        row = self._base.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return otherwise if row is None else str(row[0])

    def _write(self, command: str, values: Sequence[Any]) -> None:
        with self._transaction():
            self._base.execute(command, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextmanager
    def _as_data_error(self) -> Iterator[None]:
        """Turn an sqlite3.Error in the block into a DataError of one line."""
        try:
            yield
        except sqlite3.Error as error:
            advice = "make room, or take another --out; --overwrite begins anew"
            raise DataError(f"{self.path}: can't be used ({error}); {advice}") from None


def name_recording(path: Path) -> str:
    """The recording's name in the index and the dataset: its path as it was found."""
    return readable(str(path))


def _known(key: dict[str, Any]) -> dict[str, Any]:
    """A key without options that were not given; earlier versions named no runtime: theirs was the default."""
    return {"runtime": "onnxruntime"} | {name: value for name, value in key.items() if value is not None}
