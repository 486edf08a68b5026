"""Verification of a journal: whole, torn at its end by a kill, or changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zipbrain.live.chain import JOURNAL, read_chain


@dataclass(frozen=True)
class JournalReport:
    """What `verify` found in a journal."""

    path: str
    lines: int  # that hold together
    sessions: int
    is_closed: bool  # False for a session that runs still or was killed: no fault
    torn_bytes: int  # of an incomplete last line
    mended: int  # incomplete lines that a later session put on record
    lost: int  # lines that could not be written, by the journal's own account
    fault_line: int | None  # line of the file, counted from 1
    fault: str
    last_hash: str  # kept elsewhere, it shows later that no lines were cut off the end

    @property
    def verdict(self) -> str:
        """``"changed"``, ``"torn at its end"``, ``"not closed"`` or ``"whole"``."""
        if self.fault:
            return "changed"
        return "torn at its end" if self.torn_bytes else "whole" if self.is_closed else "not closed"

    @property
    def is_intact(self) -> bool:
        """True unless the journal was changed."""
        return not self.fault

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {**asdict(self), "verdict": self.verdict}


def journal_path(place: str | Path) -> Path:
    """The journal's file in a folder, or the file itself."""
    path = Path(place)
    return path / JOURNAL if path.is_dir() else path


def verify(place: str | Path) -> JournalReport:
    """The report on a journal's hash chain; DataError if it can't be read or has another format."""
    path = journal_path(place)
    chain = read_chain(path)
    kinds = [line["kind"] for line in chain.lines]
    where, why = chain.fault or (None, "")
    if not kinds and where is None and not chain.torn:
        where, why = 1, "the journal is empty"
    elif kinds and kinds[0] != "session":
        where, why = 1, "the journal does not begin with a session"
    return JournalReport(
        path=str(path),
        lines=len(kinds),
        sessions=kinds.count("session"),
        is_closed=bool(kinds) and kinds[-1] == "closed",
        torn_bytes=len(chain.torn),
        mended=chain.mended,
        lost=sum(line["facts"].get("lines", 0) for line in chain.lines if line["kind"] == "lost"),
        fault_line=where,
        fault=why,
        last_hash=chain.last,
    )
