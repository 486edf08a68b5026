"""The alarm engine: decisions and faults -> alarms raised, ended, acknowledged; a state machine without a clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from zipbrain.edge.prediction import NO_DECISION
from zipbrain.errors import OptionError
from zipbrain.live.alarm_rules import AlarmRules, Rule
from zipbrain.live.decision import Decision
from zipbrain.numerals import finite_number

Category = Literal["physiological", "technical"]  # of IEC 60601-1-8, whose priorities are high, medium and low
NO_ALARM: Final = "there is no alarm of that name"
UNACKNOWLEDGED: Final = "not acknowledged before the restart"
LAPSED: Final = f"{UNACKNOWLEDGED}, and no latching rule has this name now"


@dataclass(frozen=True)
class Event:
    """A change of an alarm, or of the pause of all signals.

    Parameters
    ----------
    time_s : float
        Stream time in seconds; of a decision its window's end.
    kind : str
        ``"raised"`` (the condition began), ``"ended"`` (it is over, the signal stays until it is acknowledged),
        ``"cleared"`` (condition and signal are over), ``"acknowledged"``, ``"changed"`` (a technical alarm has other
        words), ``"kept"`` (left unacknowledged by the session before), ``"lapsed"`` (the same, but no
        latching rule has its name now), ``"paused"``, ``"resumed"``, ``"refused"`` (a command that can't be obeyed).
    alarm : str
        Its name; empty for a pause.
    category : str
        ``"physiological"`` or ``"technical"``.
    words : str
        Why, for a person.
    by : str
        Who acknowledged or paused.
    """

    time_s: float
    kind: str
    alarm: str
    category: Category
    words: str = ""
    by: str = ""


@dataclass
class _Alarm:
    """One alarm: its condition (none, pending, present) and its signal (none, given, acknowledged)."""

    name: str
    category: Category
    is_latching: bool
    rule: Rule | None = None
    is_present: bool = False
    is_signalled: bool = False
    is_pending: bool = False
    held_s: float = 0.0  # decided seconds at or above `on` while pending
    quiet_until_s: float = -math.inf  # end of the refractory time
    since_s: float | None = None
    words: str = ""

    @property
    def state(self) -> str:
        if self.is_present:
            return "on" if self.is_signalled else "acknowledged"
        if self.is_signalled:
            return "latched"
        return "pending" if self.is_pending else "off"

    def event(self, time_s: float, kind: str, words: str = "", by: str = "") -> Event:
        return Event(time_s, kind, self.name, self.category, words or self.words, by)

    def start(self, time_s: float, words: str) -> Event:
        self.is_present = self.is_signalled = True
        self.is_pending, self.since_s, self.words = False, time_s, words
        return self.event(time_s, "raised")

    def stop(self, time_s: float, words: str = "") -> Event:
        """End the condition; the signal stays if the alarm latches and was not acknowledged."""
        self.is_present = False
        self.is_signalled &= self.is_latching
        self.since_s = time_s
        return self.event(time_s, "ended" if self.is_signalled else "cleared", words)

    def acknowledge(self, time_s: float, by: str) -> list[Event]:
        self.is_signalled, self.since_s = False, time_s
        events = [self.event(time_s, "acknowledged", by=by)]
        return events if self.is_present else [*events, self.event(time_s, "cleared", by=by)]


class AlarmEngine:
    """Alarms by rules: the same calls give the same events, whenever they are made.

    Time is stream time in seconds and comes in with every call. A pause silences signals and hides nothing:
    conditions begin, end and latch meanwhile, and `state` says until when it lasts.
    """

    def __init__(self, rules: AlarmRules) -> None:
        self.rules = rules
        self._alarms = {rule.name: _Alarm(rule.name, "physiological", rule.latching, rule) for rule in rules.rules}
        self._places = {rule.name: [rules.classes.index(name) for name in rule.classes] for rule in rules.rules}
        self._now: float | None = None  # the latest time of any call
        self._decided_at = 0.0  # the time of the call that brought the last decision
        self._decided_until = -math.inf  # the end of the last decided window
        self._paused_until: float | None = None

    def keep(self, names: Iterable[str], time_s: float) -> list[Event]:
        """Keep the signals of alarms that the session before this one left unacknowledged (`latched_alarms`).

        Where no latching rule has the name any more, there is no signal to keep: the event ``"lapsed"`` says so.
        """
        events = self._advance(time_s)
        for name in names:
            alarm = self._alarms.get(name)
            if alarm is None or not alarm.is_latching:
                events.append(Event(time_s, "lapsed", name, "physiological", LAPSED))
            elif not alarm.is_signalled:
                alarm.is_signalled, alarm.since_s, alarm.words = True, time_s, UNACKNOWLEDGED
                events.append(alarm.event(time_s, "kept"))
        return events

    def decide(self, decision: Decision) -> list[Event]:
        """Events of a window; without a decision it neither raises nor ends a physiological alarm."""
        stop = finite_number("stop_s", decision.stop_s)
        events = self._advance(stop)
        if not decision.is_made:
            return events
        if len(decision.probabilities) != len(self.rules.classes):
            found = f"{len(decision.probabilities)} probabilities"
            raise OptionError("decision", found, f"the rules are for {len(self.rules.classes)} classes")
        # A window counts for no more than its own length: what was never looked at is no evidence.
        step = max(min(stop - self._decided_until, stop - decision.start_s), 0.0)
        self._decided_at, self._decided_until = self._now or 0.0, max(stop, self._decided_until)
        for alarm in list(self._alarms.values()):
            if alarm.rule is not None:
                value = float(decision.probabilities[self._places[alarm.name]].sum(dtype=float))
                events += _judge(alarm, alarm.rule, value, stop, step)
        return events + self._set(NO_DECISION, False, self._now or 0.0, "")

    def technical(self, name: str, is_on: bool, time_s: float, words: str = "") -> list[Event]:
        """Events of a fault that was judged: it began, has other words, or is over."""
        if name in self._alarms and self._alarms[name].rule is not None:
            raise OptionError("name", name, "a physiological alarm has that name")
        return self._advance(time_s) + self._set(name, is_on, time_s, words)

    def acknowledge(self, alarm: str, time_s: float, by: str) -> list[Event]:
        """Silence an alarm until it is raised again; an empty name means all that give a signal."""
        events = self._advance(time_s)
        found = self._alarms.get(alarm)
        chosen = [one for one in self._alarms.values() if one.is_signalled and alarm in ("", one.name)]
        if not chosen:
            words = NO_ALARM if alarm and found is None else "it gives no signal that could be acknowledged"
            category = found.category if found else "technical"
            return [*events, Event(time_s, "refused", alarm, category, words, by)]
        return events + [event for one in chosen for event in one.acknowledge(time_s, by)]

    def pause(self, seconds: float, time_s: float, by: str) -> list[Event]:
        """Silence all signals for so many seconds; another pause replaces the first one."""
        events, longest = self._advance(time_s), self.rules.longest_pause_s
        try:
            length = finite_number("seconds", seconds)
        except OptionError:
            length = -1.0
        if not 1 <= length <= longest:
            words = f"a pause lasts from 1 to {longest:g} s"
            return [*events, Event(time_s, "refused", "", "technical", words, by)]
        self._paused_until = time_s + length
        return [*events, Event(time_s, "paused", "", "technical", f"for {length:g} s", by)]

    def resume(self, time_s: float, by: str) -> list[Event]:
        """End a pause before its time."""
        events = self._advance(time_s)
        if self._paused_until is None:
            return [*events, Event(time_s, "refused", "", "technical", "there is no pause", by)]
        self._paused_until = None
        return [*events, Event(time_s, "resumed", "", "technical", "before its time", by)]

    def tick(self, time_s: float) -> list[Event]:
        """Events that come by time alone: a pause that ends, decisions that fail to appear."""
        return self._advance(time_s)

    def state(self) -> dict[str, Any]:
        """All alarms as JSON has them; physiological ones first, in the rules' order."""
        alarms = [
            {
                "name": alarm.name,
                "category": alarm.category,
                "state": alarm.state,
                "since_s": alarm.since_s,
                "words": alarm.words,
                "classes": list(alarm.rule.classes) if alarm.rule else [],
                "threshold_on": alarm.rule.on if alarm.rule else None,
                "threshold_off": alarm.rule.off if alarm.rule else None,
            }
            for alarm in list(self._alarms.values())  # another thread may add one
        ]
        return {"alarms": alarms, "paused_until_s": self._paused_until}

    def _advance(self, time_s: float) -> list[Event]:
        """Take note of the time; it never runs backwards."""
        time_s = finite_number("time_s", time_s)
        if self._now is None:
            self._now = self._decided_at = time_s
        self._now = now = max(self._now, time_s)
        events = []
        if self._paused_until is not None and now >= self._paused_until:
            events.append(Event(self._paused_until, "resumed", "", "technical", "the pause is over"))
            self._paused_until = None
        if now - self._decided_at >= self.rules.no_decision_s:
            alarm = self._alarms.get(NO_DECISION)
            if alarm is None or not alarm.is_present:
                events += self._set(NO_DECISION, True, now, f"none for {self.rules.no_decision_s:g} s")
        return events

    def _set(self, name: str, is_on: bool, time_s: float, words: str) -> list[Event]:
        alarm = self._alarms.get(name)
        if alarm is None:
            if not is_on:
                return []
            alarm = self._alarms[name] = _Alarm(name, "technical", self.rules.technical_latching)
        if is_on and not alarm.is_present:
            return [alarm.start(time_s, words)]
        if is_on and words and words != alarm.words:
            alarm.words = words
            return [alarm.event(time_s, "changed")]
        return [alarm.stop(time_s, words)] if alarm.is_present and not is_on else []


def latched_alarms(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the physiological alarms whose signal is still on after these events of a journal."""
    given: dict[str, None] = {}
    for event in events:
        if event["category"] == "physiological" and event["kind"] in ("raised", "kept"):
            given[event["alarm"]] = None
        elif event["kind"] in ("acknowledged", "cleared"):
            given.pop(event["alarm"], None)
    return list(given)


def _judge(alarm: _Alarm, rule: Rule, value: float, time_s: float, step: float) -> list[Event]:
    """Events of one decided window, `step` decided seconds after the one before."""
    words = f"{' + '.join(rule.classes)} {value:.3f}"
    if alarm.is_present:
        if value >= rule.off:
            return []
        alarm.quiet_until_s = time_s + rule.refractory_s
        return [alarm.stop(time_s, words)]
    if value < rule.on or time_s < alarm.quiet_until_s:
        alarm.is_pending = False
        return []
    if not alarm.is_pending:
        alarm.is_pending, alarm.held_s = True, 0.0
        alarm.since_s = alarm.since_s if alarm.is_signalled else time_s
    else:
        alarm.held_s += step
    return [alarm.start(time_s, words)] if alarm.held_s >= rule.min_duration_s else []
