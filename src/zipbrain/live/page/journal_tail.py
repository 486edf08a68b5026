"""The journal's newest lines as they are written: those a page shows, without names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from zipbrain.live.chain import JOURNAL, current_facts

FIRST_BYTES: Final = 16 * 2**20  # read from the end of a journal that is longer: hours of decisions
STEP_BYTES: Final = 2**18  # read at once, so that a long journal holds up no viewer

# What a page may show of each kind of line; other kinds and other facts, which may hold names, stay where they are.
_SHOWN: Final = {
    "session": (),
    "decision": ("start_s", "stop_s", "probabilities", "decision", "note", "looked_twice"),
    "event": ("time_s", "kind", "alarm", "category", "priority", "words", "by"),
    "gap": ("time_s", "finding", "samples", "seconds", "words"),
    "clock": ("time_s", "finding", "samples", "seconds", "words"),
    "source": ("time_s", "state"),
    "skipped": ("start_s", "stop_s"),
    "mark": ("time_s", "stop_s", "label", "by"),
    "lost": ("lines",),
    "torn": ("bytes",),
    "closed": (),
}


class JournalTail:
    """Lines of a journal from its end on; a journal that is missing, replaced or cut short is begun again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._place, self._node, self._rest = 0, (-1, -1), b""
        self._has_start, self._is_at_end = False, False

    @property
    def is_whole(self) -> bool:
        """True once every line of the newest session was read, from its first one on."""
        return self._has_start and self._is_at_end

    def read(self) -> list[dict[str, Any]]:
        """The next complete lines ``{"line": kind, "time", ...facts}``, oldest first; empty if there are none."""
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                if (state.st_dev, state.st_ino) != self._node or state.st_size < self._place:
                    self._node, self._rest = (state.st_dev, state.st_ino), b""
                    self._place, self._has_start = max(state.st_size - FIRST_BYTES, 0), False
                if state.st_size == self._place:
                    return []
                file.seek(self._place)
                content = file.read(STEP_BYTES)
        except OSError:
            return []
        self._place += len(content)
        self._is_at_end = self._place >= state.st_size
        *rows, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > STEP_BYTES:  # no line of a journal
            self._rest = b""
        lines = [line for row in rows if (line := _read(row)) is not None]
        self._has_start = self._has_start or any(line["line"] == "session" for line in lines)
        return lines


def _read(row: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(row)
        kind, facts = content["kind"], content["facts"]
        shown = current_facts({name: facts[name] for name in _SHOWN[kind] if name in facts})
        return {"line": kind, "time": content["time"], **shown}
    except (ValueError, KeyError, TypeError, RecursionError):  # torn, or the end of a line that began earlier
        return None
