"""The alarm engine: what raises, ends, latches and silences an alarm, over any sequence of windows and calls."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipbrain.errors import OptionError
from zipbrain.live.alarm_rules import AlarmRules, Rule
from zipbrain.live.alarms import AlarmEngine, Event, latched_alarms
from zipbrain.live.decision import Decision
from zipbrain.live.journal import Journal

CLASSES = ("background", "seizure")
WINDOW = 4.0


def window(stop: float, value: float | None) -> Decision:
    """A window that ends at `stop`; None for one without a decision."""
    shares = np.float32([math.nan, math.nan] if value is None else [1 - value, value])
    return Decision(
        stop - WINDOW, stop, shares, -1 if value is None else int(value > 0.5), "flat" if value is None else ""
    )


def engine(**options) -> AlarmEngine:
    general = {name: options.pop(name) for name in ("no_decision_s", "technical_latching") if name in options}
    rule = Rule("seizure", ("seizure",), **{"on": 0.8, "off": 0.5, **options})
    return AlarmEngine(AlarmRules(CLASSES, (rule,), **general))


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def run(alarm: AlarmEngine, values: list[float | None], start: float = 10.0) -> list[Event]:
    return [event for second, value in enumerate(values) for event in alarm.decide(window(start + second, value))]


def state(alarm: AlarmEngine, name: str = "seizure") -> str:
    return next(one["state"] for one in alarm.state()["alarms"] if one["name"] == name)


def test_an_alarm_begins_after_its_minimum_duration_and_ends_below_the_off_threshold():
    alarm = engine(min_duration_s=2, refractory_s=0, latching=False)
    events = run(alarm, [0.1, 0.9, 0.9, 0.7, 0.9, 0.9, 0.9, 0.6, 0.5, 0.49, 0.1])
    assert [(event.kind, event.time_s) for event in events] == [("raised", 16.0), ("cleared", 19.0)]


def test_a_latched_alarm_stays_until_it_is_acknowledged():
    alarm = engine(min_duration_s=0)
    assert kinds(run(alarm, [0.9, 0.1])) == ["raised", "ended"]
    assert state(alarm) == "latched"
    alarm.tick(1e6)
    assert state(alarm) == "latched"
    assert kinds(alarm.acknowledge("seizure", 1e6, "viewer")) == ["acknowledged", "cleared"]
    assert state(alarm) == "off"


def test_an_acknowledged_alarm_is_silent_until_its_condition_ends_and_then_clears():
    alarm = engine(min_duration_s=0, refractory_s=0)
    run(alarm, [0.9])
    assert kinds(alarm.acknowledge("", 10.5, "viewer")) == ["acknowledged"]
    assert state(alarm) == "acknowledged"
    assert kinds(run(alarm, [0.9, 0.2, 0.9], start=11.0)) == ["cleared", "raised"]


def test_windows_without_a_decision_neither_raise_nor_end_and_become_a_technical_alarm():
    alarm = engine(min_duration_s=5, no_decision_s=30)
    assert run(alarm, [0.9, None, None, None, None, 0.9]) == []  # of five seconds the window's own four count
    assert kinds(run(alarm, [0.9], start=16.0)) == ["raised"]
    events = run(alarm, [None] * 40, start=17.0)
    assert [(event.kind, event.alarm, event.category) for event in events] == [("raised", "no decision", "technical")]
    assert state(alarm) == "on"
    assert kinds(run(alarm, [0.9], start=60.0)) == ["cleared"]


def test_unseen_time_is_no_evidence():
    alarm = engine(min_duration_s=10)
    assert run(alarm, [0.9]) + run(alarm, [0.9], start=500.0) == [
        Event(500.0, "raised", "no decision", "technical", "none for 60 s"),
        Event(500.0, "cleared", "no decision", "technical", "none for 60 s"),
    ]


def test_a_technical_alarm_is_apart_and_ends_with_its_fault():
    alarm = engine()
    assert kinds(alarm.technical("source", True, 1.0, "silent for 3 s")) == ["raised"]
    assert alarm.technical("source", True, 2.0, "silent for 3 s") == []
    assert kinds(alarm.technical("source", True, 3.0, "stream lost")) == ["changed"]
    assert kinds(alarm.technical("source", False, 4.0)) == ["cleared"]
    assert alarm.technical("gap", False, 4.0) == []
    latched = engine(technical_latching=True)
    latched.technical("disk", True, 1.0)
    assert kinds(latched.technical("disk", False, 2.0)) == ["ended"]
    with pytest.raises(OptionError):
        alarm.technical("seizure", True, 5.0)


def test_what_can_not_be_done_is_said():
    alarm = engine()
    wrong = [*alarm.acknowledge("fire", 1.0, "x"), *alarm.acknowledge("seizure", 1.0, "x"), *alarm.resume(1.0, "x")]
    wrong += [event for length in (0, -1, 601, math.nan, math.inf, "5") for event in alarm.pause(length, 1.0, "x")]
    assert kinds(wrong) == ["refused"] * 9
    assert alarm.state()["paused_until_s"] is None
    with pytest.raises(OptionError):
        alarm.tick(math.nan)
    with pytest.raises(OptionError):
        alarm.decide(Decision(0.0, 1.0, np.float32([0.2, 0.3, 0.5]), 2))


def test_a_pause_hides_nothing_and_ends_by_itself():
    alarm = engine(min_duration_s=0)
    assert kinds(alarm.pause(60, 9.0, "viewer")) == ["paused"]
    assert kinds(run(alarm, [0.9])) == ["raised"]
    assert alarm.state()["paused_until_s"] == 69.0
    assert alarm.tick(69.5) == [Event(69.0, "resumed", "", "technical", "the pause is over")]
    assert state(alarm) == "on"


OPTIONS = st.fixed_dictionaries(
    {
        "on": st.sampled_from([0.6, 0.8, 1.0]),
        "off": st.sampled_from([0.2, 0.6]),
        "min_duration_s": st.sampled_from([0.0, 1.0, 2.5]),
        "refractory_s": st.sampled_from([0.0, 3.0, 20.0]),
        "latching": st.booleans(),
    }
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.none() | st.floats(0, 1)),
        st.tuples(st.just("decide"), st.sampled_from([0.0, 1.0])),
        st.tuples(st.just("acknowledge"), st.sampled_from(["", "seizure"])),
        st.tuples(st.just("pause"), st.floats(-1, 700)),
        st.tuples(st.just("resume"), st.none()),
        st.tuples(st.just("technical"), st.booleans()),
        st.tuples(st.just("wait"), st.floats(0, 100)),
    ),
    max_size=60,
)


def play(options, calls):
    """Every call with its time, its events and the state after it."""
    alarm, now = engine(**options), 0.0
    for call, value in calls:
        now += value if call == "wait" else 1.0
        if call == "decide":
            events = alarm.decide(window(now, value))
        elif call == "technical":
            events = alarm.technical("gap", value, now)
        elif call == "wait":
            events = alarm.tick(now)
        elif call == "resume":
            events = alarm.resume(now, "viewer")
        else:
            events = getattr(alarm, call)(value, now, "viewer")
        yield call, value, now, events, alarm.state()


@given(OPTIONS, CALLS)
def test_the_rules_hold_over_any_sequence_of_calls(options, calls):
    is_present, ended, is_latched, raised = False, -math.inf, False, None
    for call, value, now, events, after in play(options, calls):
        own = [event for event in events if event.alarm == "seizure" and event.kind != "refused"]
        shown = after["alarms"][0]["state"]
        for event in own:
            if event.kind == "raised":
                assert call == "decide"
                assert value >= np.float32(options["on"]) - 1e-6
                assert not is_present
                assert event.time_s - ended >= options["refractory_s"]
                is_present, raised = True, event.time_s
            elif event.kind in ("ended", "cleared") and is_present:
                assert value is not None
                assert value < options["off"] + 1e-6
                is_present, ended = False, event.time_s
            is_latched = event.kind == "ended" or (is_latched and event.kind not in ("acknowledged", "raised"))
        if call == "decide" and value is not None and value < options["off"] - 1e-6:
            assert not is_present  # one decided window below the threshold ends the condition
        assert is_present == (shown in ("on", "acknowledged"))
        assert is_latched == (shown == "latched")
        assert not is_latched or options["latching"]
        paused = after["paused_until_s"]
        assert paused is None or now < paused <= now + 600
        assert raised is None or raised <= now


@given(OPTIONS, CALLS)
def test_every_change_of_state_is_an_event_and_the_same_calls_give_the_same_events(options, calls):
    silent = {"off", "pending"}
    before: dict[str, str] = {}
    paused = None
    first = list(play(options, calls))
    for *_, events, after in first:
        for alarm in after["alarms"]:
            old, new = before.get(alarm["name"], "off"), alarm["state"]
            told = [event for event in events if event.alarm == alarm["name"] and event.kind != "refused"]
            assert bool(told) or old == new or {old, new} <= silent
            before[alarm["name"]] = new
        assert after["paused_until_s"] == paused or any(event.kind in ("paused", "resumed") for event in events)
        paused = after["paused_until_s"]
    assert [list(map(asdict, call[3])) for call in first] == [
        list(map(asdict, call[3])) for call in play(options, calls)
    ]


def test_a_latched_alarm_outlives_a_restart_of_the_session(tmp_path):
    def session(values=(), *, is_acknowledged=False) -> str:
        alarm = engine(min_duration_s=0)
        with Journal(tmp_path, {"model": "", "recipe": {}, "thresholds": {}}) as journal:
            events = alarm.keep(latched_alarms(journal.earlier_events), 0.0) + run(alarm, values)
            events += alarm.acknowledge("seizure", 20.0, "viewer") if is_acknowledged else []
            for event in events:
                journal.write("event", **asdict(event))
        return state(alarm)

    assert [session([0.9, 0.1]), session(), session([0.1])] == ["latched"] * 3
    assert [session(is_acknowledged=True), session()] == ["off", "off"]


def test_a_latched_alarm_without_a_latching_rule_after_the_restart_is_said_to_lapse():
    events = engine(latching=False).keep(["seizure", "fire"], 0.0)
    assert [(event.kind, event.alarm) for event in events] == [("lapsed", "seizure"), ("lapsed", "fire")]
    assert all("not acknowledged" in event.words and "no latching rule" in event.words for event in events)
    assert latched_alarms(map(asdict, events)) == []  # said once
