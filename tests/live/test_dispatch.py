"""Outputs of a session: each is called by one thread at a time, and hears of alarms while the model hangs in a call."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from zipbrain.edge import EdgeModel
from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.outputs import Output, SessionFacts
from zipbrain.live.outputs.dispatch import Dispatcher
from zipbrain.live.session import Session

from ..edge import tiny_onnx
from .made_up_source import Scripted, noise, paced

NAMES = tiny_onnx.convention().ch_names
SFREQ = 200.0


class Spy(Output):
    """An output that takes its time, and notes what it was given and whether two threads were in it at once."""

    name = "spy"

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls, self.has_overlapped, self.is_open = list[str](), False, False
        self.on_event: Any = lambda event: None
        self._guard = threading.Lock()

    def _take(self, call: str) -> None:
        if not self._guard.acquire(blocking=False):
            self.has_overlapped = True
            return
        self.calls.append(call)
        time.sleep(0.001)
        self._guard.release()

    def open(self, facts: SessionFacts) -> None:
        self.is_open = True

    def samples(self, first: int, rows: Any) -> None:
        self._take("samples")

    def decide(self, decision: Decision) -> None:
        self._take("decision")

    def tell(self, event: Event) -> None:
        self._take("event")
        self.events.append(event)
        self.on_event(event)

    def close(self) -> None:
        self._take("close")
        self.is_open = False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EdgeModel:
    return EdgeModel(tiny_onnx.save(tmp_path_factory.mktemp("model") / "tiny.onnx"), threads=1)


def test_a_model_that_hangs_in_a_call_is_an_alarm_that_outputs_get_before_it_comes_back(model, tmp_path, monkeypatch):
    look, heard, heard_in_time = EdgeModel.look_with_groups, threading.Event(), list[bool]()

    def hang_once(self: EdgeModel, *arguments: Any) -> Any:
        if not heard_in_time:
            heard_in_time.append(heard.wait(20))
        return look(self, *arguments)

    monkeypatch.setattr(EdgeModel, "look_with_groups", hang_once)
    x = noise(len(NAMES), round(30 * SFREQ))
    spy = Spy()
    spy.on_event = lambda event: heard.set() if (event.alarm, event.kind) == ("behind", "raised") else None
    source = Scripted(NAMES, SFREQ, [x[:, :1000], *paced(x[:, 1000:], SFREQ)])
    session = Session(model, source, tmp_path, outputs=[spy], hop_s=0.5)

    def watch(state: Any, news: Any) -> None:
        if heard_in_time and state["counters"]["decided"] > 1:
            session.stop()

    session.run(watch=watch)
    assert heard_in_time == [True]
    (alarm,) = [event for event in spy.events if (event.alarm, event.kind) == ("behind", "raised")]
    assert "not answered" in alarm.words
    assert not spy.has_overlapped
    assert not spy.is_open


def test_decisions_and_events_reach_an_output_in_order_and_by_one_thread_at_a_time():
    spy = Spy()
    outputs = Dispatcher([spy])
    outputs.open(SessionFacts(("A",), 1.0, ("a", "b"), 1.0, 1.0, None, "", None))  # type: ignore[arg-type]
    is_over = threading.Event()

    def deliver_until_over() -> None:
        while not is_over.is_set():
            outputs.deliver_if_free()

    watching = threading.Thread(target=deliver_until_over)
    watching.start()
    for second in range(100):
        outputs.samples(second, np.zeros((1, 1)))
        outputs.add(Decision(second, second + 1.0, np.float32([0, 1]), 1))
        outputs.add(Event(second, "raised", "a", "physiological"))
        outputs.deliver()
    is_over.set()
    watching.join()
    outputs.close()
    outputs.samples(100, np.zeros((1, 1)))  # of a thread that comes back late
    assert not spy.has_overlapped
    assert [event.time_s for event in spy.events] == list(range(100))
    told = [call for call in spy.calls if call in ("decision", "event")]
    assert told == ["decision", "event"] * 100
    assert spy.calls[-1] == "close"
