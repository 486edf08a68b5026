"""What a journal says of one session: windows that were decided, alarms from beginning to end, a reviewer's marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zipbrain.errors import DataError, OptionError
from zipbrain.live.chain import current_facts, read_chain
from zipbrain.live.verify import journal_path

Stretch = tuple[float, float]  # seconds of the stream, from and to


@dataclass(frozen=True)
class AlarmStretch:
    """An alarm condition from beginning to end in stream time, and when the alarm was given."""

    alarm: str
    start_s: float
    stop_s: float
    given_s: float  # later than start_s by the reach of the filter and the time of the model


@dataclass(frozen=True)
class ReviewerMark:
    """A stretch that a reviewer called an event or a false alarm."""

    start_s: float
    stop_s: float
    label: str
    by: str


@dataclass
class SessionRecord:
    """One session of a journal.

    Attributes
    ----------
    facts : dict
        Of its first line.
    windows, undecided : int
        How many windows there are, and how many have no decision.
    stop_s : float
        End of the last window; the record begins at 0.
    decided : list of (start, stop)
        Stretches that decided windows cover, in order and apart.
    alarms : list of AlarmStretch
        Physiological ones.
    marks : list of ReviewerMark
    """

    facts: dict[str, Any]
    windows: int = 0
    undecided: int = 0
    stop_s: float = 0.0
    decided: list[Stretch] = field(default_factory=list)
    alarms: list[AlarmStretch] = field(default_factory=list)
    marks: list[ReviewerMark] = field(default_factory=list)

    @property
    def rules(self) -> dict[str, tuple[str, ...]]:
        """Classes of every alarm that was watched for."""
        rules = (self.facts.get("thresholds") or {}).get("rules", ())
        found = {rule["name"]: tuple(rule["classes"]) for rule in rules}
        return found | {one.alarm: () for one in self.alarms if one.alarm not in found}


def read_record(place: str | Path, session: int | None = None) -> SessionRecord:
    """One session of a journal; DataError if the journal was changed or has several and none was chosen.

    Parameters
    ----------
    place : str or Path
        The session's folder, or the journal.
    session : int, optional
        Its number, from 1; not needed where there is one.
    """
    path = journal_path(place)
    chain = read_chain(path)
    if chain.fault:
        line, why = chain.fault
        raise DataError(f"{path}: line {line} of the journal: {why}; evaluate a journal that was not changed")
    parts: list[list[dict[str, Any]]] = []
    for row in chain.lines:
        if row["kind"] == "session":
            parts.append([])
        if parts:
            parts[-1].append(row)
    if not parts:
        raise DataError(f"{path}: the journal has no session; run zipbrain live first")
    if session is None and len(parts) > 1:
        raise OptionError(
            "--session", None, f"the journal has {len(parts)} sessions: choose one, from 1 to {len(parts)}"
        )
    if session is not None and not 1 <= session <= len(parts):
        raise OptionError("--session", session, f"the journal has the sessions 1 to {len(parts)}")
    try:
        return _gather(parts[(session or 1) - 1])
    except (KeyError, TypeError, ValueError) as error:
        words = f"a line lacks what zipbrain writes ({type(error).__name__}: {error})"
        raise DataError(f"{path}: {words}; evaluate a journal of zipbrain live") from None


def _gather(lines: Iterable[dict[str, Any]]) -> SessionRecord:
    record: SessionRecord | None = None
    decided: list[Stretch] = []
    delays: dict[float, float] = {}  # of decisions, by the end of their windows
    begun: dict[str, float] = {}
    for line in lines:
        kind, facts = line["kind"], line["facts"]
        if record is None:
            record = SessionRecord(facts)
        elif kind == "decision":
            start, stop = float(facts["start_s"]), float(facts["stop_s"])
            is_made = facts["decision"] >= 0 and None not in facts["probabilities"]
            record.windows, record.undecided = record.windows + 1, record.undecided + (not is_made)
            record.stop_s = max(record.stop_s, stop)
            delays[stop] = float(facts["delay_s"] or 0.0)
            if is_made:
                decided.append((start, stop))
        elif kind == "event" and current_facts(facts)["category"] == "physiological" and facts["alarm"]:
            if facts["kind"] == "raised":
                begun[facts["alarm"]] = float(facts["time_s"])
            elif facts["kind"] in ("ended", "cleared") and facts["alarm"] in begun:
                start = begun.pop(facts["alarm"])
                record.alarms.append(_alarm(facts["alarm"], start, float(facts["time_s"]), delays))
        elif kind == "mark":
            by = str(facts.get("by", ""))
            record.marks.append(ReviewerMark(float(facts["time_s"]), float(facts["stop_s"]), facts["label"], by))
    assert record is not None  # every part begins with its session
    record.alarms += [_alarm(name, start, record.stop_s, delays) for name, start in begun.items()]
    record.alarms.sort(key=lambda one: (one.start_s, one.alarm))
    record.decided = join_stretches(decided)
    return record


def _alarm(name: str, start: float, stop: float, delays: dict[float, float]) -> AlarmStretch:
    return AlarmStretch(name, start, max(stop, start), start + delays.get(start, 0.0))


def join_stretches(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same time in stretches that are in order and don't touch."""
    joined: list[Stretch] = []
    for start, stop in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def common_stretches(one: Sequence[Stretch], other: Sequence[Stretch]) -> list[Stretch]:
    """The time that two lists of stretches, each in order and apart, have in common."""
    common: list[Stretch] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, stop = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < stop:
            common.append((start, stop))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return common


def length_s(stretches: Iterable[Stretch]) -> float:
    """Seconds of stretches that are apart."""
    return sum(stop - start for start, stop in stretches)
