"""The journal's hash chain: one line of JSON per fact, each with the hash of the line before and its own."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import DataError
from zipbrain.files import encode_nan

FORMAT: Final = 1  # version of the journal's lines
JOURNAL: Final = "journal.jsonl"
ORIGIN: Final = "0" * 64  # the hash before the first line

_LARGEST_LINE: Final = 2**22  # bytes; a decision has a few hundred
_END_BYTES: Final = 2**23  # of a journal that are read to go on with it: twice the largest line
_SESSION: Final = b',"kind":"session","facts":{'
_EVENT: Final = b',"kind":"event","facts":{'
_END: Final = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
_END_LENGTH: Final = len(',"hash":""}') + 64


def encode_line(number: int, before: str, time: str, kind: str, facts: dict[str, Any]) -> tuple[bytes, str]:
    """A line of the journal with its newline, and its hash."""
    content = {"number": number, "before": before, "time": time, "kind": kind, "facts": encode_nan(facts)}
    body = json.dumps(content, separators=(",", ":"), allow_nan=False, default=str).encode()[:-1]
    own = hashlib.sha256(body).hexdigest()
    return body + f',"hash":"{own}"}}\n'.encode(), own


@dataclass
class Chain:
    """A journal's lines as far as they hold together, and the first fault."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    before: int = 0  # lines before these, which were not read
    last: str = ORIGIN
    torn: bytes = b""  # an incomplete line at the end, left by a kill
    mended: int = 0  # incomplete lines that a later session put on record
    fault: tuple[int, str] | None = None  # line of what was read, counted from 1, and what is wrong with it

    @property
    def count(self) -> int:
        """Lines of the journal up to the last one."""
        return self.before + len(self.lines)


def read_chain(path: Path) -> Chain:
    """The lines of a journal up to its first fault; DataError if it can't be read or has a newer format."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: the journal can't be read ({error.strerror}); name a folder of zipbrain live"
        ) from None
    return _follow(path, content, Chain())


def read_end(path: Path) -> Chain:
    """The last few thousand lines of a journal: continuing a long one takes as little time as a short one.

    The first of them is believed if its own hash holds; what follows is checked as `read_chain` does it.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _END_BYTES, 0))
            content = file.read()
    except OSError as error:
        raise DataError(f"{path}: the journal can't be read ({error.strerror}); name another folder") from None
    chain = Chain()
    while size > _END_BYTES and content:
        content = content.partition(b"\n")[2]
        row = content.partition(b"\n")[0]
        if _has_own_hash(row):
            first = json.loads(row)
            chain.before, chain.last = first["number"] - 1, first["before"]
            break
    return _follow(path, content, chain) if content or not size else read_chain(path)


def read_alarm_events(path: Path) -> list[dict[str, Any]]:
    """Alarm events of a journal's last session; lines of other kinds are not parsed."""
    found = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        place = max(memory.rfind(_SESSION), 0)
        for mark in (_SESSION, _EVENT):
            at = place
            while (at := memory.find(mark, at)) >= 0:
                end = memory.find(b"\n", at)
                row = memory[memory.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(memory)]
                at += len(mark)
                if not _has_own_hash(row):
                    continue
                line = json.loads(row)
                if line["kind"] == "session":
                    _check_format(path, line["facts"].get("format"))
                elif line["kind"] == "event":
                    found.append(current_facts(line["facts"]))
    return found


def current_facts(event: dict[str, Any]) -> dict[str, Any]:
    """The facts of an event under today's keys: older journals call its category `priority`."""
    return {"category" if key == "priority" else key: value for key, value in event.items()}


def _follow(path: Path, content: bytes, chain: Chain) -> Chain:
    """Add the lines of some content to those that a chain has."""
    *rows, tail = content.split(b"\n")
    torn = b""
    for place, row in enumerate(rows, 1):
        line, why = read_row(row, chain)
        if torn:
            facts = line["facts"] if line and line["kind"] == "torn" else {}
            if (facts.get("bytes"), facts.get("sha256")) != (len(torn), hashlib.sha256(torn).hexdigest()):
                chain.fault = place - 1, "it was changed, or is torn in the middle of the journal"
                return chain
            chain.mended, torn = chain.mended + 1, b""
        if line is None:
            if place < len(rows) and _is_torn(row, chain):
                torn = row
                continue
            chain.fault = place, why
            return chain
        if line["kind"] == "session":
            _check_format(path, line["facts"].get("format"))
        chain.lines.append(line)
        chain.last = line["hash"]
    if tail and not _is_torn(tail, chain):
        chain.fault = len(rows) + 1, "it was changed: it is no beginning of a line that belongs here"
    else:
        chain.torn = tail
    return chain


def read_row(row: bytes, chain: Chain) -> tuple[dict[str, Any] | None, str]:
    """A line's content, or None and why it does not follow the lines before it."""
    if not _has_own_hash(row):
        return None, f"it was changed: its hash is another one (or a zipbrain with a format above {FORMAT} wrote it)"
    line: dict[str, Any] = json.loads(row)
    if line["number"] != chain.count + 1:
        return (
            None,
            f"it has number {line['number']} in place of {chain.count + 1}: lines were removed, added or moved",
        )
    if line["before"] != chain.last:
        return None, "it does not follow the line before it: lines were removed, added or moved"
    return line, ""


def _has_own_hash(row: bytes) -> bool:
    """True for a line that ends in the hash of what stands before it."""
    end = _END.fullmatch(row, max(len(row) - _END_LENGTH, 0))
    return len(row) <= _LARGEST_LINE and end is not None and _hash(row[: end.start()]) == end[1]


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _is_torn(row: bytes, chain: Chain) -> bool:
    """True for the beginning of the next line, as a kill leaves it; a power loss may leave zeros behind it."""
    expected = f'{{"number":{chain.count + 1},"before":"{chain.last}","time":"'.encode()
    text = row.rstrip(b"\0")
    if (end := _END.search(text)) is not None and (end.end() < len(row) or text[: end.end()] != row):
        return False
    return text[: len(expected)] == expected[: len(text)]


def _check_format(path: Path, found: object) -> None:
    if found != FORMAT:
        raise DataError(
            f"{path}: a journal of format {found!r}, but this zipbrain reads format {FORMAT}; update zipbrain"
        )
