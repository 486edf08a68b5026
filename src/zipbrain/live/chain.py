"""The journal's hash chain: one line of JSON per fact, each with the hash of the line before and its own."""

from __future__ import annotations

import hashlib
import json
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
    last: str = ORIGIN
    torn: bytes = b""  # an incomplete line at the end, left by a kill
    mended: int = 0  # incomplete lines that a later session put on record
    fault: tuple[int, str] | None = None  # line of the file, counted from 1, and what is wrong with it


def read_chain(path: Path) -> Chain:
    """The lines of a journal up to its first fault; DataError if it can't be read or has a newer format."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: the journal can't be read ({error.strerror}); name a folder of zipbrain live"
        ) from None
    *rows, tail = content.split(b"\n")
    chain, torn = Chain(), b""
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
    end = _END.fullmatch(row, max(len(row) - _END_LENGTH, 0))
    if len(row) > _LARGEST_LINE or end is None or hashlib.sha256(row[: end.start()]).hexdigest() != end[1].decode():
        return None, f"it was changed: its hash is another one (or a zipbrain with a format above {FORMAT} wrote it)"
    line: dict[str, Any] = json.loads(row)
    if line["number"] != len(chain.lines) + 1:
        return (
            None,
            f"it has number {line['number']} in place of {len(chain.lines) + 1}: lines were removed, added or moved",
        )
    if line["before"] != chain.last:
        return None, "it does not follow the line before it: lines were removed, added or moved"
    return line, ""


def _is_torn(row: bytes, chain: Chain) -> bool:
    """True for the beginning of the next line, as a kill leaves it; a power loss may leave zeros behind it."""
    expected = f'{{"number":{len(chain.lines) + 1},"before":"{chain.last}","time":"'.encode()
    text = row.rstrip(b"\0")
    if (end := _END.search(text)) is not None and (end.end() < len(row) or text[: end.end()] != row):
        return False
    return text[: len(expected)] == expected[: len(text)]


def _check_format(path: Path, found: object) -> None:
    if found != FORMAT:
        raise DataError(
            f"{path}: a journal of format {found!r}, but this zipbrain reads format {FORMAT}; update zipbrain"
        )
