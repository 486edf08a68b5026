"""One file over HTTP into a `.part` file: resumed, retried, checked; and the cache. pooch moves the bytes."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from zipbrain._lazy import import_extra
from zipbrain.errors import DataError
from zipbrain.files import hash_file, scratch_folder

CACHE: Final = "ZIPBRAIN_CACHE"  # environment: folder of what was fetched
OFFLINE: Final = "ZIPBRAIN_OFFLINE"  # environment: anything but 0 forbids the network

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the next try, while tries bring no new byte
TIMEOUT = (10.0, 30.0)  # seconds for a connection, seconds of silence
LONGEST_WAIT = 60.0  # what a server may ask for with Retry-After
CHUNK = 1 << 14  # what a broken transfer loses at most
_PASSING = {408, 425, 429}  # and every 5xx


def cache_folder() -> Path:
    """Where fetched files lie: ``ZIPBRAIN_CACHE``, else the platform's folder for caches (XDG and its like)."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    pooch = import_extra("pooch", "pooch", "hub", f"the platform's cache folder (or set {CACHE})")
    return Path(pooch.os_cache("zipbrain"))


def is_offline() -> bool:
    """True if the environment forbids the network."""
    return os.environ.get(OFFLINE, "0") not in ("", "0")


class Unreachable(DataError):
    """No file of this publisher can be fetched now: no network, no such host, no room on the disk."""


class Stopped(Exception):
    """Another file's failure, or the user, ended the run; what has come stays in its `.part` file."""


@dataclass(frozen=True)
class Published:
    """A file as its publisher lists it."""

    path: str  # relative to the corpus or repository, with forward slashes
    url: str
    hash: str | None = None  # such as ``"sha256:…"``, see `zipbrain.files.hash_file`; None where none is published
    size: int | None = None  # bytes; None where the publisher does not say


def matches(path: Path, file: Published) -> bool:
    """True if a file on disk is the published one, by size and hash as far as the publisher gives them."""
    if file.size is not None and path.stat().st_size != file.size:
        return False
    return file.hash is None or hash_file(path, file.hash.partition(":")[0]) == file.hash


def read(url: str, stop: threading.Event) -> bytes:
    """Fetch a small file into memory, with the same patience as a large one."""
    with scratch_folder() as folder:
        part = folder / "listing"
        fetch(Published(url.rpartition("/")[2], url), part, stop)
        return part.read_bytes()


def fetch(
    file: Published,
    part: Path,
    stop: threading.Event,
    received: Callable[[int], object] = lambda count: None,
    *,
    extra: str = "train",
    purpose: str = "zipbrain data download",
) -> None:
    """Bring a published file whole and checked into `part`, going on from the bytes that are there already.

    A transfer that breaks off is taken up where it stopped (HTTP Range), or from the start if the server does not
    honour that. It is given up after five tries in a row without a new byte; `part` is then left behind so that another
    call can go on. Bytes whose hash is wrong are fetched once more from the start; wrong again, they are deleted.
    Setting `stop` ends the transfer with `Stopped`; `received` is called with the number of bytes of every chunk.
    `extra` and `purpose` are for the error where pooch is missing.
    """
    pooch = import_extra("pooch", "pooch", extra, purpose)
    from requests import RequestException  # pooch brings it

    idle, best, wrong = 0, _size(part), 0
    if best and (file.hash or file.size) and matches(part, file):  # the last run ended just before the renaming
        return
    if is_offline():
        raise Unreachable(f"{file.url} is not fetched: {OFFLINE} forbids the network")
    while True:
        trouble: RequestException | None = None
        whole = False
        try:
            _transfer(pooch, file, part, stop, received)
            whole = file.size is None or _size(part) == file.size
            if whole and matches(part, file):
                return
        except RequestException as error:
            trouble = error
        except _TooLong:
            whole = True
        except OSError as error:
            raise _disk(error, part) from None
        if whole:
            wrong += 1
            fault = _wrong(file, part)
            part.unlink()
            if wrong == 2:
                raise fault
            best = 0
            continue
        if trouble is not None and not _passes(trouble):
            raise _refused(file, trouble)
        reached = _size(part)
        idle, best = (0, reached) if reached > best else (idle + 1, best)
        if idle > len(WAITS):
            raise _refused(file, trouble)
        if stop.wait(max(WAITS[max(idle - 1, 0)], _asked_to_wait(trouble))):
            raise Stopped


class _TooLong(Exception):
    """The server sends more bytes than the file has."""


class _Part:
    """An open `.part` file that pooch writes to, from where the server's answer begins until `stop` is set."""

    def __init__(self, file: IO[bytes], size: int | None, stop: threading.Event, received: Callable[[int], object]):
        self.file, self.size, self.stop, self.received = file, size, stop, received
        self.offset = file.tell()

    def begin(self, response: Any, **_: Any) -> None:
        """See an answer before its body (requests' response hook) and start afresh if it does not honour the range."""
        import requests

        code = response.status_code
        if not self.offset or response.is_redirect or (code != 416 and not response.ok):
            return
        found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if code == 206 and found and int(found[1]) == self.offset:
            return
        self.file.truncate(0)
        if code != 200:  # this body is no use
            raise requests.ConnectionError("the server answered with another part of the file than the one asked for")

    def write(self, chunk: bytes) -> None:
        if self.stop.is_set():
            raise Stopped
        self.file.write(chunk)
        self.received(len(chunk))
        if self.size is not None and self.file.tell() > self.size:
            raise _TooLong

    def flush(self) -> None:
        self.file.flush()


def _transfer(
    pooch: Any, file: Published, part: Path, stop: threading.Event, received: Callable[[int], object]
) -> None:
    """One try: ask for what is missing and append it."""
    if stop.is_set():
        raise Stopped
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as opened:
        sink = _Part(opened, file.size, stop, received)
        headers = {"Accept-Encoding": "identity"}  # the hash is of the file, not of what a server makes of it
        if sink.offset:
            headers["Range"] = f"bytes={sink.offset}-"
        hooks = {"response": sink.begin}
        downloader = pooch.HTTPDownloader(chunk_size=CHUNK, timeout=TIMEOUT, headers=headers, hooks=hooks)
        downloader(file.url, sink, None)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _passes(trouble: Any) -> bool:
    """True if another try may help."""
    import requests

    if isinstance(trouble, requests.HTTPError) and trouble.response is not None:
        code = trouble.response.status_code
        return code in _PASSING or code >= 500
    return not isinstance(trouble, (requests.TooManyRedirects, ValueError))  # ValueError: an address that is none


def _asked_to_wait(trouble: Any) -> float:
    response = getattr(trouble, "response", None)
    wait = "" if response is None else response.headers.get("Retry-After", "")
    return min(float(wait), LONGEST_WAIT) if wait.isdigit() else 0.0


def _refused(file: Published, trouble: Any) -> DataError:
    import requests

    if trouble is None or isinstance(trouble, requests.exceptions.ChunkedEncodingError):
        return DataError(f"{file.url}: the transfer keeps breaking off; what has come is kept, run again to go on")
    if isinstance(trouble, requests.HTTPError) and trouble.response is not None:
        answer = f"{trouble.response.status_code} {trouble.response.reason}".strip()
        advice = "run again later, or name a mirror as base_url (--base-url)"
        return DataError(f"{file.url}: the server answered {answer}; {advice}")
    kind = "no answer in time" if isinstance(trouble, requests.Timeout) else type(trouble).__name__
    host = file.url.split("/")[2] if file.url.count("/") > 2 else file.url
    advice = "check the network or name a mirror as base_url (--base-url); what has come is kept, run again to go on"
    return Unreachable(f"{host} can't be reached ({kind} for {file.path}): {advice}")


def _wrong(file: Published, part: Path) -> DataError:
    algorithm = (file.hash or "sha256").partition(":")[0]
    wanted = " and ".join(str(what) for what in (file.size and f"{file.size} bytes", file.hash) if what)
    found = f"published are {wanted}, but {_size(part)} bytes and {hash_file(part, algorithm)} came"
    what = stand_in(part)
    return DataError(f"{file.url}: fetched twice and wrong: {found}{what and f', {what}'}; they were deleted")


def stand_in(path: Path) -> str:
    """What a file is, in words, if it is one of those that come in place of another one; else nothing."""
    with path.open("rb") as file:
        start = file.read(256).lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page: a proxy or a login page may have answered"
    return "a pointer of Git LFS and not the content" if start.startswith(b"version https://git-lfs") else ""


def _disk(error: OSError, part: Path) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "what has come is kept, make room and run again to go on"
        return Unreachable(f"{part.parent}: no room left on the disk; {advice}")
    return Unreachable(f"{part}: can't be written ({error.strerror or error}); choose another folder")
