"""Where a corpus is published: a public file tree with its listing, or a page where one has to apply."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree

from zipbrain.errors import DataError
from zipbrain.transfer import Published

Read = Callable[[str], bytes]  # fetches a small file from an address


@dataclass(frozen=True)
class FileTree:
    """A public file tree."""

    name: str  # of the corpus, in lower case
    url: str  # its root, without a slash at the end
    listing: Callable[[str, Read], list[Published]]  # root, reader of an address -> files
    needed: re.Pattern[str] = re.compile(r".*")  # paths that zipbrain reads or that describe the corpus
    version: str = ""  # end of the DOI in dataset_description.json, where only the newest is served
    aliases: tuple[str, ...] = ()  # other names of the corpus, lower case, without hyphens

    def notes(self, folder: Path) -> list[str]:
        """A note where the corpus in `folder` is of another version than expected."""
        if not self.version:
            return []
        try:
            doi = str(json.loads((folder / "dataset_description.json").read_text())["DatasetDOI"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return [f"no version found in dataset_description.json; {self.version} is expected"]
        return [] if doi.endswith(self.version) else [f"this is {doi}; {self.version} is expected"]


@dataclass(frozen=True)
class OnRequest:
    """A corpus that can't be fetched for you: where to get it and how its files have to lie."""

    name: str
    page: str
    how: str
    tree: str
    aliases: tuple[str, ...] = ()


def physionet(root: str, read: Read) -> list[Published]:
    """Files of a PhysioNet project, from its SHA256SUMS.txt; RECORDS shows that it came whole."""
    sums = {}
    try:
        text = read(f"{root}/SHA256SUMS.txt").decode()
    except UnicodeDecodeError:
        raise DataError(f"{root}/SHA256SUMS.txt: not a text file; is this a PhysioNet file tree?") from None
    for number, line in enumerate(text.splitlines(), 1):
        found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *]?(\S.*)", line.strip())
        if found:
            sums[_safe(found[2], root)] = found[1].lower()
        elif line.strip():
            raise DataError(f"{root}/SHA256SUMS.txt: line {number} is not 'hash path'; is this a PhysioNet file tree?")
    records = read(f"{root}/RECORDS") if "RECORDS" in sums else b""
    if hashlib.sha256(records).hexdigest() != sums.get("RECORDS"):
        raise DataError(f"{root}/RECORDS: missing, or not as SHA256SUMS.txt says; run again, or name another mirror")
    listed = {*sums, *(path.rpartition(".")[0] for path in sums)}  # a record is named with its extension or without
    lost = [record for record in records.decode().split() if record not in listed]
    if lost:
        raise DataError(f"{root}/SHA256SUMS.txt: cut off, {lost[0]} of RECORDS is missing; run again")
    return [Published(path, f"{root}/{quote(path)}", f"sha256:{value}") for path, value in sorted(sums.items())]


def openneuro(root: str, read: Read) -> list[Published]:
    """Files of an OpenNeuro dataset, from the listing of its S3 bucket.

    S3 gives sizes and ETags. The ETag of an object that was sent in one piece and is not encrypted is its MD5; an
    object sent in several pieces can be checked by its size only.
    """
    bucket, _, folder = root.rpartition("/")
    prefix, token = f"{unquote(folder)}/", ""
    files: dict[str, Published] = {}
    while True:
        query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
        page = f"{bucket}?{urlencode(query)}"
        try:
            tree = ElementTree.fromstring(read(page))
        except ElementTree.ParseError as error:
            raise DataError(f"{page}: this is no S3 listing ({error}); is {root} an S3 folder?") from None
        for entry in tree.iterfind("{*}Contents"):
            key, etag = entry.findtext("{*}Key", ""), entry.findtext("{*}ETag", "").strip('"')
            if not key.startswith(prefix) or key.endswith("/"):
                continue
            path = _safe(key.removeprefix(prefix), root)
            value = f"md5:{etag.lower()}" if re.fullmatch(r"[0-9a-fA-F]{32}", etag) else None
            files[path] = Published(path, f"{bucket}/{quote(key)}", value, int(entry.findtext("{*}Size", "0")))
        if tree.findtext("{*}IsTruncated") != "true":
            break
        before, token = token, tree.findtext("{*}NextContinuationToken", "")
        if token in ("", before):
            raise DataError(f"{page}: the listing stops half-way; run again")
    if not files:
        raise DataError(f"{page}: nothing is listed there; is {root} the folder of the dataset?")
    return [files[path] for path in sorted(files)]


def _safe(path: str, root: str) -> str:
    """Refuse a path that would leave the folder it is put in."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\\:\0]", path):
        raise DataError(f"{root}: lists {path!r}, which is no path inside the corpus; nothing was fetched")
    return "/".join(parts)
