"""Evaluation of alarms against known events: sensitivity, false alarms per 24 h and delay, from the journal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from zipbrain.binomial import count_bounds, share_bounds
from zipbrain.errors import DataError, OptionError
from zipbrain.live.record import SessionRecord, Stretch, common_stretches, join_stretches, length_s, read_record
from zipbrain.numerals import finite_number
from zipbrain.signal.label_tables import read_table, seconds

BEFORE_S: Final = 30.0  # seconds before an event from which on an alarm detects it
AFTER_S: Final = 60.0  # seconds after its end until which it does
FEWEST_EVENTS: Final = 5  # for an interval of the sensitivity and a 95th percentile of the delay

_TWO_SIDED: Final = 0.975  # confidence of each bound of a 95 % interval
_DAY: Final = 86_400.0  # seconds

Interval = tuple[float, float]


@dataclass(frozen=True)
class KnownEvent:
    """A true event, in stream time."""

    start_s: float
    stop_s: float
    label: str = ""


@dataclass(frozen=True)
class AlarmScore:
    """Scores of one alarm; None where there is nothing to count."""

    alarm: str
    classes: tuple[str, ...]
    events: int
    detected: int
    unseen: int  # events without any decision; they count as missed
    sensitivity: float | None
    sensitivity_interval: Interval | None
    alarms: int
    false_alarms: int
    confirmed_false: int  # that a reviewer marked as false
    false_per_day: float
    false_per_day_interval: Interval
    precision: float | None  # share of the alarms that met an event
    delay_median_s: float | None  # from an event's beginning to the alarm
    delay_p95_s: float | None
    time_in_events: float | None  # share of the events' decided seconds in alarm
    time_elsewhere: float | None  # share of the other decided seconds in alarm


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found."""

    journal: str
    truth: str  # the file, or "marks of a reviewer"
    before_s: float
    after_s: float
    recorded_h: float
    decided_h: float
    windows: int
    undecided: int
    scores: tuple[AlarmScore, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as JSON has it."""
        return asdict(self)


def evaluate(
    place: str | Path,
    truth: str | Path | None = None,
    *,
    before_s: float = BEFORE_S,
    after_s: float = AFTER_S,
    session: int | None = None,
) -> Evaluation:
    """Score the alarms of a session against known events.

    An event is detected if an alarm overlaps it or the tolerance around it; an alarm that overlaps none is false.

    Parameters
    ----------
    place : str or Path
        The session's folder, or its journal.
    truth : str or Path, optional
        A table with the columns onset and duration, in seconds of the stream, and label if there are several kinds;
        without one, what a reviewer marked as an event.
    before_s, after_s : float
        The tolerance.
    session : int, optional
        Which one of a journal with several.
    """
    for name, value in (("--before", before_s), ("--after", after_s)):
        if finite_number(name, value) < 0:
            raise OptionError(name, value, "it must be 0 or more seconds")
    record = read_record(place, session)
    if not record.decided:
        raise DataError(
            f"{place}: not one of its {record.windows} windows has a decision; there is nothing to evaluate"
        )
    named = "marks of a reviewer" if truth is None else str(truth)
    events = _marked(record) if truth is None else read_truth(Path(truth), record)
    if events and not any(_overlap((event.start_s, event.stop_s), one) for event in events for one in record.decided):
        covered = f"{record.decided[0][0]:g} to {record.decided[-1][1]:g} s"
        raise DataError(f"{named}: none of its {len(events)} events lies where there are decisions ({covered})")
    if not record.rules:
        raise DataError(f"{place}: the session watched for no alarm; give it rules (zipbrain live --init-alarms)")
    wanted = _watched(record)
    labels = {event.label for event in events if event.label}
    if labels and not labels & wanted:
        has, asked = ", ".join(sorted(labels)), ", ".join(sorted(wanted))
        words = f"its labels are {has}, but the alarms and their classes are {asked}"
        raise DataError(f"{named}: {words}; use these names")
    scores = tuple(_score(name, record, events, (before_s, after_s)) for name in record.rules)
    hours = record.stop_s / 3600, length_s(record.decided) / 3600
    counts = record.windows, record.undecided
    return Evaluation(
        str(place), named, before_s, after_s, *hours, *counts, scores, tuple(_notes(record, events, scores))
    )


def read_truth(path: Path, record: SessionRecord) -> list[KnownEvent]:
    """The events of a table; DataError names the row that can't be used."""
    events = []
    for number, row in enumerate(read_table(path, ("onset", "duration")), 1):
        try:
            onset, duration = seconds(row.get("onset")), seconds(row.get("duration"))
        except ValueError as error:
            raise DataError(f"{path}: row {number}: {error}; onset and duration must be seconds") from None
        if onset is None or duration is None or duration < 0:
            found = f"onset {row.get('onset')!r}, duration {row.get('duration')!r}"
            raise DataError(f"{path}: row {number} has {found}; both must be seconds, the duration 0 or more")
        if onset + duration <= 0 or onset >= record.stop_s:
            where = f"from {onset:g} to {onset + duration:g} s"
            advice = "onsets are seconds from the stream's first sample"
            raise DataError(
                f"{path}: row {number} lies {where}, outside of the record (0 to {record.stop_s:g} s); {advice}"
            )
        events.append(KnownEvent(onset, onset + duration, row.get("label", "")))
    return events


def _marked(record: SessionRecord) -> list[KnownEvent]:
    events = [KnownEvent(mark.start_s, mark.stop_s) for mark in record.marks if mark.label == "event"]
    if not events and not any(mark.label == "false alarm" for mark in record.marks):
        advice = "give --truth, or mark events on the page"
        raise DataError(f"the journal has no marks of a reviewer; {advice}")
    return events


def _score(
    name: str, record: SessionRecord, events: Sequence[KnownEvent], tolerance: tuple[float, float]
) -> AlarmScore:
    classes, decided = record.rules[name], record.decided
    known = join_stretches((event.start_s, event.stop_s) for event in events if event.label in ("", name, *classes))
    widened = [(start - tolerance[0], stop + tolerance[1]) for start, stop in known]
    alarms = {(alarm.start_s, alarm.stop_s): alarm.given_s for alarm in record.alarms if alarm.alarm == name}
    met = [[alarms[one] for one in alarms if _overlap(one, event)] for event in widened]
    delays = [min(given) - start for given, (start, _) in zip(met, known, strict=True) if given]
    wrong = [one for one in alarms if not any(_overlap(one, event) for event in widened)]
    refuted = [(mark.start_s, mark.stop_s) for mark in record.marks if mark.label == "false alarm"]
    days = length_s(decided) / _DAY
    low, high = count_bounds(len(wrong), _TWO_SIDED)
    in_events = common_stretches(known, decided)
    in_alarm = common_stretches(join_stretches(alarms), decided)
    both, elsewhere = length_s(common_stretches(in_alarm, in_events)), length_s(decided) - length_s(in_events)
    return AlarmScore(
        alarm=name,
        classes=classes,
        events=len(known),
        detected=len(delays),
        unseen=sum(not any(_overlap(event, one) for one in decided) for event in known),
        sensitivity=len(delays) / len(known) if known else None,
        sensitivity_interval=_share_interval(len(delays), len(known)),
        alarms=len(alarms),
        false_alarms=len(wrong),
        confirmed_false=sum(any(_overlap(one, mark) for mark in refuted) for one in wrong),
        false_per_day=len(wrong) / days,
        false_per_day_interval=(low / days, high / days),
        precision=1 - len(wrong) / len(alarms) if alarms else None,
        delay_median_s=statistics.median(delays) if delays else None,
        delay_p95_s=float(np.percentile(delays, 95)) if len(delays) >= FEWEST_EVENTS else None,
        time_in_events=both / length_s(in_events) if in_events else None,
        time_elsewhere=(length_s(in_alarm) - both) / elsewhere if elsewhere > 0 else None,
    )


def _watched(record: SessionRecord) -> set[str]:
    """Labels that an event may have: names of alarms and of the classes that they watch for."""
    return {name for alarm, classes in record.rules.items() for name in (alarm, *classes)}


def _overlap(one: Stretch, other: Stretch) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _share_interval(count: int, total: int) -> Interval | None:
    return share_bounds(count, total, _TWO_SIDED) if total >= FEWEST_EVENTS else None


def _notes(record: SessionRecord, events: Sequence[KnownEvent], scores: Sequence[AlarmScore]) -> list[str]:
    """Caveats on the figures."""
    notes = []
    decided = length_s(record.decided)
    if decided < _DAY:
        notes.append(f"false alarms per 24 h are extrapolated from {decided / 3600:.2g} h with decisions")
    if any(0 < score.events < FEWEST_EVENTS for score in scores):
        notes.append(f"fewer than {FEWEST_EVENTS} events: no interval of the sensitivity")
    if any(score.unseen for score in scores):
        notes.append("events without any decision count as missed")
    if strange := sorted({event.label for event in events if event.label} - _watched(record)):
        notes.append(f"no alarm watches for {', '.join(strange)}: these events were left out")
    notes.append("intervals (95 %) take events as independent; those of one person are not quite")
    return notes
