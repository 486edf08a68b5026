"""`zipbrain.data.download`: fetch a public corpus, check every byte, and go on where the last run stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from zipbrain.data.corpora import find_published
from zipbrain.data.file_trees import FileTree, OnRequest
from zipbrain.errors import DataError, OptionError
from zipbrain.files import hash_file, lock_folder, write_whole
from zipbrain.transfer import OFFLINE, Published, Unreachable, fetch, is_offline, matches, read

RECORD = ".zipbrain-download.json"
_MOST_JOBS = 16

Progress = Callable[[int, int, int], object]


@dataclass
class DownloadReport:
    """What `download` found and did."""

    corpus: str  # its name
    source: str  # the address it came from
    folder: str  # where it lies
    files: int = 0  # of the corpus, all of them there and checked
    fetched: int = 0  # of them now
    kept: int = 0  # of them from before
    bytes: int = 0  # received now
    seconds: float = 0.0
    replaced: list[str] = field(default_factory=list)  # where other files went (``.bad``) that lay in the place
    size_only: list[str] = field(default_factory=list)  # files for which the publisher gives no hash
    notes: list[str] = field(default_factory=list)  # what else a reader should know


def download(
    name: str,
    out: str | Path,
    *,
    base_url: str | None = None,
    jobs: int = 4,
    progress: Progress | None = None,
    verify: bool = False,
    everything: bool = False,
    subset: Iterable[str] | None = None,
) -> DownloadReport:
    """Fetch a public corpus into a folder, and return a `DownloadReport`.

    Every file is written to ``<name>.part`` and renamed once its hash is right (PhysioNet: SHA-256; OpenNeuro: size and
    MD5, or size alone for an object that was uploaded in pieces). A run that was stopped goes on where it stopped. A
    second run changes nothing: it compares sizes and times with what the first one recorded in
    ``.zipbrain-download.json``, and needs no network if all is there.

    Hashes come from the server that the files come from: they show damage on the way, not a file that was changed there
    before the first run. One that is published with another hash later is noted.

    Bytes that came with a wrong hash are fetched once more and then deleted. A file that lay in the place of a
    published one and is not it is kept as ``<name>.bad``.

    Parameters
    ----------
    name : str
        "eegmat", "eegmmidb", "chbmit", "sleepedf" or "eareeg", in any case.
    out : path
        Folder of the raw files, made if it is not there; one corpus a folder.
    base_url : str, optional
        Root of a mirror with the same files; else the environment variable ``ZIPBRAIN_<NAME>_URL``, else the source.
    jobs : int
        Files fetched at the same time, 1 to 16.
    progress : callable, optional
        Called with (files done, files in all, bytes received) as these change, from one thread at a time.
    verify : bool
        Read and hash every file that is there, instead of trusting its size and time.
    everything : bool
        Fetch files that zipbrain does not read, too (EarEEG: all nights and the PSG; EEGMMIDB: ``.event``
        files; CHB-MIT: ``.seizures`` files).
    subset : iterable of str, optional
        Paths as they are published; these files alone are fetched and counted.

    Raises
    ------
    OptionError, DataError
        A bad option or a corpus that has to be applied for; no network, no space, a wrong file. What has come is kept.
    """
    source = find_published(name)
    if isinstance(source, OnRequest):
        tree = "; ".join(" ".join(line.split()) for line in source.tree.splitlines())
        how = f"it can't be fetched for you. {source.how} See {source.page}. Then put the files so: {tree}"
        raise OptionError("corpus", name, how)
    if not 1 <= jobs <= _MOST_JOBS:
        raise OptionError("jobs", jobs, f"it must be 1 to {_MOST_JOBS}")
    root = (base_url or os.environ.get(f"ZIPBRAIN_{source.name.upper()}_URL") or source.url).rstrip("/")
    if not re.match(r"https?://[^/\s]+(/\S*)?$", root):
        raise OptionError("base_url", root, "it must begin with http:// or https://")
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError("out", str(out), f"that folder can't be made ({error.strerror})") from None
    started = time.monotonic()
    with lock_folder(folder, OptionError("out", str(folder), "another download is writing there; wait for it")):
        paths = None if subset is None else frozenset(subset)
        run = _Run(source, root, folder, verify, everything, progress, paths)
        try:
            report = run.go(jobs)
        finally:
            run.save()
    report.seconds = round(time.monotonic() - started, 3)
    return report


class _Run:
    """One run into one folder: what is recorded there, what is there, what has to come."""

    def __init__(
        self,
        source: FileTree,
        root: str,
        folder: Path,
        verify: bool,
        everything: bool,
        progress: Progress | None,
        subset: frozenset[str] | None,
    ) -> None:
        self.source, self.root, self.folder = source, root, folder
        self.verify, self.everything, self.progress, self.subset = verify, everything, progress, subset
        self.report = DownloadReport(source.name, root, str(folder))
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.record = _read_record(folder, source.name)
        self.recorded = json.dumps(self.record)
        self.good: set[Published] = set()  # there and checked in this run
        self.total = 0

    def go(self, jobs: int) -> DownloadReport:
        with ThreadPoolExecutor(jobs, thread_name_prefix="zipbrain-download") as pool:
            try:
                rows = self.record["listing"] if self.record["source"] == self.root else []
                known = (Published(path, f"{self.root}/{quote(path)}", value, size) for path, value, size in rows)
                files = self.chosen(known)
                missing = self.missing(pool, files)
                if missing or not files or self.unknown(files):  # the network is needed: see what is published now
                    if is_offline():
                        advice = f"{OFFLINE} forbids the network: copy them from a machine that has one"
                        raise DataError(f"{self.folder}: files of {self.source.name} are missing, and {advice}")
                    files = self.listing()
                    if unknown := self.unknown(files):
                        raise OptionError("subset", unknown[0], f"{self.root} publishes no such file")
                    missing = self.missing(pool, files)
                    self.room_for(missing)
                    self.each(pool, self.bring, missing)
            except BaseException:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        self.report.files = len(files)
        self.report.kept = len(files) - self.report.fetched
        self.report.size_only = [file.path for file in files if file.hash is None]
        self.report.notes += self.source.notes(self.folder)
        return self.report

    def listing(self) -> list[Published]:
        files = self.source.listing(self.root, lambda url: read(url, self.stop))
        before = {path: value for path, value, _ in self.record["listing"]}
        if changed := [file.path for file in files if before.get(file.path) not in (None, file.hash)]:
            found = f"{len(changed)} files are published with another hash than before, such as {changed[0]}"
            self.report.notes.append(f"{found}: ask the publisher why")
        self.record["source"] = self.root
        self.record["listing"] = [[file.path, file.hash, file.size] for file in files]
        return self.chosen(files)

    def chosen(self, files: Iterable[Published]) -> list[Published]:
        if self.subset is not None:
            return [file for file in files if file.path in self.subset]
        return [file for file in files if self.everything or self.source.needed.fullmatch(file.path)]

    def unknown(self, files: list[Published]) -> list[str]:
        """Paths that were asked for and are not among the files."""
        return sorted((self.subset or frozenset()) - {file.path for file in files})

    def missing(self, pool: ThreadPoolExecutor, files: list[Published]) -> list[Published]:
        self.total = len(files)
        self.good &= {*files}
        self.each(pool, self.check, files)
        return [file for file in files if file not in self.good]

    def check(self, file: Published) -> None:
        """Count a file as good if it is there and right: by its recorded size and time, or by its hash."""
        target = self.folder / file.path
        if file in self.good or not target.is_file():
            return
        state = target.stat()
        seen = self.record["files"].get(file.path)
        value = file.hash or (seen[2] if seen else None)  # without a published hash, that of what came
        if self.verify or seen != [state.st_size, state.st_mtime_ns, value]:
            try:
                if not matches(target, Published(file.path, file.url, value, file.size)):
                    return
                self.note(file, value)
            except OSError as error:
                raise DataError(f"{target}: can't be read ({error.strerror}); move it away and run again") from None
        self.tick(file)

    def bring(self, file: Published) -> None:
        """Fetch a file and put it in its place; what lay there is kept as `.bad`."""
        target = self.folder / file.path
        part = target.with_name(f"{target.name}.part")
        fetch(file, part, self.stop, lambda received: self.tick(received=received))
        try:
            if target.exists():
                names = chain([f"{target.name}.bad"], (f"{target.name}.bad.{number}" for number in count(1)))
                bad = next(path for name in names if not (path := target.with_name(name)).exists())
                os.replace(target, bad)
                self.report.replaced.append(str(bad.relative_to(self.folder)))
            os.replace(part, target)
            self.note(file, file.hash)
        except OSError as error:
            raise DataError(f"{target}: can't be put there ({error.strerror}); it is in {part.name}") from None
        with self.lock:
            self.report.fetched += 1
        self.tick(file)

    def each(self, pool: ThreadPoolExecutor, work: Callable[[Published], None], files: list[Published]) -> None:
        failures = []
        for future in as_completed([pool.submit(work, file) for file in files]):
            try:
                future.result()
            except Unreachable:
                raise
            except DataError as error:
                failures.append(str(error))
        if failures:
            others = f" (and {len(failures) - 1} more files failed)" if len(failures) > 1 else ""
            raise DataError(f"{min(failures)}{others}")

    def room_for(self, files: list[Published]) -> None:
        needed = sum(file.size or 0 for file in files)
        free = shutil.disk_usage(self.folder).free + sum(path.stat().st_size for path in self.folder.rglob("*.part"))
        if needed > free:
            amounts = f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free"
            raise DataError(f"{self.folder}: {amounts}; make room or choose another folder")

    def note(self, file: Published, value: str | None) -> None:
        target = self.folder / file.path
        state = target.stat()
        self.record["files"][file.path] = [state.st_size, state.st_mtime_ns, value or hash_file(target)]

    def tick(self, file: Published | None = None, received: int = 0) -> None:
        with self.lock:
            self.report.bytes += received
            if file is not None:
                self.good.add(file)
            if self.progress is not None:
                self.progress(len(self.good), self.total, self.report.bytes)

    def save(self) -> None:
        content = json.dumps(self.record)
        if content != self.recorded:
            with contextlib.suppress(OSError):  # without it the next run hashes again, no more
                write_whole(self.folder / RECORD, content.encode())


def _read_record(folder: Path, corpus: str) -> dict[str, Any]:
    fresh: dict[str, Any] = {"corpus": corpus, "source": None, "listing": [], "files": {}}
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return fresh
    if not isinstance(record, dict) or record.keys() != fresh.keys():
        return fresh
    if record["corpus"] != corpus:
        raise OptionError("out", str(folder), f"that folder holds {record['corpus']}: give {corpus} its own")
    return record
