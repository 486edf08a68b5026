"""The messages of one bed to its viewers: ten a second, each made once, whatever the number of viewers."""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.files import encode_nan
from zipbrain.live.board import BoardReader
from zipbrain.live.chain import current_facts
from zipbrain.live.page.journal_tail import JournalTail

TICK_S: Final = 0.1
MOST_WAITING: Final = 20  # messages that a viewer may lag behind before it gets the newest
MOST_FETCHED_S: Final = 130.0  # of signals in one answer

_MOST_HZ: Final = 300.0  # of the signals in a browser; faster ones are averaged
_MOST_DECISIONS: Final = 21_600  # six hours at one a second
_MOST_LINES: Final = 200
_MOST_HAPPENINGS: Final = 2000  # alarms, marks and gaps that are drawn
_MOST_SECONDS: Final = 3600
_MOST_NEW_S: Final = 15.0  # of signals in one message, for replays that run fast; older ones are fetched
_SECONDS_AT_ONCE: Final = 60  # of the overview
_UNNAMED: Final = ("name", "file", "path", "folder", "recording", "subject", "patient")  # keys that may hold a name


class BedMessages:
    """The board and the journal of one folder as messages.

    Parameters
    ----------
    folder : Path
    label : str
        What viewers see as the session's name.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.number, self.messages = 0, deque[bytes](maxlen=MOST_WAITING)
        self.decisions: deque[list[Any]] = deque(maxlen=_MOST_DECISIONS)
        self.lines: deque[dict[str, Any]] = deque(maxlen=_MOST_LINES)
        self.happenings: deque[dict[str, Any]] = deque(maxlen=_MOST_HAPPENINGS)
        self.overview: deque[list[Any]] = deque(maxlen=_MOST_SECONDS)
        self.merges: dict[str, Any] | None = None  # of the last decided window
        self.raised: dict[str, Any] | None = None  # the newest line of an alarm that went on
        self.state: dict[str, Any] = {}
        self.board = BoardReader(folder)
        self._tail = JournalTail(folder)
        self._begin()

    def _begin(self) -> None:
        """Start again with the session that the board shows now."""
        self.factor = max(round(self.board.sfreq / _MOST_HZ), 1) if self.board.sfreq > _MOST_HZ else 1
        self._position = self.board.written // self.factor
        self._second, self._sequence, self.state, self.merges = 0, 0, {}, None
        self._moved = (self.board.written, time.monotonic() - min(self.board.silent_s, 86_400.0))
        self.overview.clear()

    @property
    def rate(self) -> float:
        """Samples per second that viewers get."""
        return self.board.sfreq / self.factor

    @property
    def is_whole(self) -> bool:
        """True if `happenings` are all of the session's; a long journal is read from its newest part on."""
        return self._tail.is_whole and len(self.happenings) < _MOST_HAPPENINGS

    def hello(self) -> str:
        """What a viewer must know before its first message."""
        content = {
            "label": self.label,
            "session": self.board.session,
            "failure": self.board.failure,
            "channels": self.board.ch_names,
            "rate": self.rate,
            "kept_s": self.board.rows / self.board.sfreq if self.board.sfreq else 0,
            "number": self.number,
            "state": self.state,
            "decisions": list(self.decisions),
            "lines": list(self.lines),
            "happenings": list(self.happenings),
            "is_whole": self.is_whole,
            "raised": self.raised,
            "overview": list(self.overview),
        }
        return json.dumps(content, separators=(",", ":"))

    def advance(self, counts: dict[str, int]) -> bytes:
        """The next message: what came since the last one, and `counts` of the viewers."""
        is_new = self.board.refresh()
        if is_new:
            self._begin()
        fresh: dict[str, Any] = {"session": self.board.session, **self._life(), "counts": counts}
        if self.board.sequence != self._sequence:
            self._sequence = self.board.sequence
            self.state = _without_names(_with_categories(self.board.state() or {}))
            self.merges = self.state.pop("merges", None)  # large, and seldom looked at
            self.state["has_merges"] = self.merges is not None
            fresh["state"] = self.state
        fresh |= self._news() | {"is_whole": self.is_whole}
        if seconds := self._new_seconds():
            fresh["overview"] = seconds
        first, rows = self._new_samples()
        self.number += 1
        message = _pack({"number": self.number, "sent": time.monotonic(), "first": first, **fresh}, rows)
        self.messages.append(message)
        return message

    def _life(self) -> dict[str, Any]:
        """Facts that tell a running session from a dead one: its writer, and the age of what it wrote."""
        written, now = self.board.written, time.monotonic()
        if written != self._moved[0]:
            self._moved = (written, now)
        return {
            "alive": self.board.has_writer(),
            "wall": round(time.time(), 2),
            "silent_s": round(min(self.board.silent_s, 1e9), 2),
            "samples_s": round(now - self._moved[1], 2) if written else None,
        }

    def _news(self) -> dict[str, Any]:
        """New decisions and lines of the journal."""
        decisions: list[list[Any]] = []
        lines: list[dict[str, Any]] = []
        for line in self._tail.read():
            if line["line"] == "decision":
                decisions.append(_point(line))
                continue
            if line["line"] == "session":  # stream time begins again
                self.decisions.clear()
                self.happenings.clear()
                decisions, self.raised = [], None
            if (line.get("kind"), line.get("category")) == ("raised", "physiological"):
                self.raised = line
            if line["line"] in ("mark", "gap") or line.get("category") == "physiological":
                self.happenings.append(line)
            lines.append(line)
        self.decisions.extend(decisions)
        self.lines.extend(lines)
        news = {"decisions": decisions, "lines": lines}
        return {name: entries for name, entries in news.items() if entries}

    def _new_samples(self) -> tuple[int, NDArray[np.float32]]:
        stop = self.board.written // self.factor
        start = max(self._position, stop - int(_MOST_NEW_S * self.rate))
        self._position = stop
        return self.samples(start, stop)

    def samples(self, first: int, stop: int) -> tuple[int, NDArray[np.float32]]:
        """Samples (n, C) at the viewers' rate as far as they are kept, and the first's index."""
        begin, rows = self.board.samples(first * self.factor, stop * self.factor)
        if self.factor == 1 or not len(rows):
            return begin // self.factor, rows
        rows = rows[-begin % self.factor :]
        whole = len(rows) // self.factor * self.factor
        means = rows[:whole].reshape(-1, self.factor, rows.shape[1]).mean(1)
        return -(-begin // self.factor), means.astype(np.float32)

    def fetch(self, start_s: float, stop_s: float) -> bytes:
        """A stretch of the past as one message, at most 130 s of it."""
        stop_s = min(stop_s, start_s + MOST_FETCHED_S)
        first, rows = self.samples(int(max(start_s, 0) * self.rate), int(max(stop_s, 0) * self.rate))
        return _pack({"first": first, "session": self.board.session}, rows)

    def _new_seconds(self) -> list[list[Any]]:
        """Of every full second: its number and the median over channels of its peak-to-peak amplitude."""
        sfreq = self.board.sfreq
        if not sfreq:
            return []
        last = int(self.board.written / sfreq)
        self._second = max(self._second, int(self.board.oldest / sfreq) + 1 if self.board.oldest else 0)
        until = min(last, self._second + _SECONDS_AT_ONCE)
        found: list[list[Any]] = []
        for second in range(self._second, until):
            _, rows = self.board.samples(round(second * sfreq), round((second + 1) * sfreq))
            spans = np.ptp(rows, axis=0) if len(rows) else np.array([np.nan])
            kept = spans[np.isfinite(spans)]
            found.append([second, round(float(np.median(kept)), 1) if len(kept) else None])
        self._second = max(until, self._second)
        self.overview.extend(found)
        return found

    def summary(self) -> dict[str, Any]:
        """What a tile of the wall shows."""
        electrodes = self.state.get("electrodes", {})
        newest = self.decisions[-1] if self.decisions else None
        return {
            "label": self.label,
            "failure": self.board.failure,
            "session": self.board.session,
            **self._life(),
            "alarms": self.state.get("alarms"),
            "time_s": self.state.get("time_s"),
            "wall": self.state.get("wall"),
            "source": self.state.get("source"),
            "model": self.state.get("session", {}),
            "bad": {name: found for name, found in electrodes.items() if found != "good"},
            "newest": newest,
            "raised": self.raised,
            "closed": bool(self.lines) and self.lines[-1]["line"] == "closed",
            "decisions": list(self.decisions)[-120:],
        }


def _pack(header: dict[str, Any], rows: NDArray[np.float32]) -> bytes:
    """A message: lengths, the header as JSON, and samples (n, C) as float32."""
    text = json.dumps(encode_nan(header), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)  # so that the samples are aligned
    return struct.pack("<II", len(text), len(rows)) + text + np.ascontiguousarray(rows, "<f4").tobytes()


def _point(line: dict[str, Any]) -> list[Any]:
    """A decision as a point of the trend: stop, probabilities or None, class, note, whether it looked twice."""
    made = line.get("decision", -1) >= 0
    rounded = [None if p is None else round(float(p), 4) for p in line.get("probabilities") or ()]
    return [
        line.get("stop_s"),
        rounded if made else None,
        line.get("decision"),
        line.get("note"),
        line.get("looked_twice"),
    ]


def _with_categories(state: dict[str, Any]) -> dict[str, Any]:
    """A state whose alarms have today's keys, also where an earlier zipbrain wrote it."""
    alarms = state.get("alarms")
    if not isinstance(alarms, dict):
        return state
    return state | {"alarms": alarms | {"alarms": [current_facts(one) for one in alarms.get("alarms", ())]}}


def _without_names(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what may be a person's name: names of the session, of its source and of files."""
    kept = dict(state)
    for part in ("session", "source"):
        if isinstance(kept.get(part), dict):
            kept[part] = {key: value for key, value in kept[part].items() if key not in _UNNAMED}
    return kept
