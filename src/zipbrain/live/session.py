"""A live session: one source, one model, one folder; decisions, alarms and a journal until it ends or is stopped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from zipbrain.edge.audit import promised_agreement
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.predict_one import rename
from zipbrain.errors import DataError, OptionError
from zipbrain.live.acquisition import Acquisition
from zipbrain.live.alarm_rules import AlarmRules
from zipbrain.live.alarms import AlarmEngine, Event, latched_alarms
from zipbrain.live.board import Board
from zipbrain.live.decider import Decider
from zipbrain.live.decision import Decision
from zipbrain.live.electrodes import Electrodes
from zipbrain.live.journal import Journal
from zipbrain.live.limits import check_days, check_seconds
from zipbrain.live.outputs import Output, SessionFacts
from zipbrain.live.outputs.dispatch import Dispatcher
from zipbrain.live.pipeline import Pipeline
from zipbrain.live.retention import remove_old_signals
from zipbrain.live.session_state import SessionSummary, describe_state, summarise
from zipbrain.live.source import Source
from zipbrain.live.watchdog import Watchdog
from zipbrain.signal.cutting import check_hop
from zipbrain.signal.montage import derive
from zipbrain.signal.recording import Array
from zipbrain.signal.window_stream import WindowStream

_TICK_S: Final = 0.1  # between two looks at the source, at commands, and at the clock
_PUBLISH_S: Final = 0.2  # between two states on the board
_LONG_CALL_S: Final = 1.0  # of the model, after which outputs get alarms without its thread
_JOIN_S: Final = 10.0  # for a decision that is being made, at the end

State = dict[str, Any]
News = Sequence[Decision | Event]
Watch = Callable[[State, News], None]


class Session:
    """One source, one model, one folder.

    Parameters
    ----------
    model : EdgeModel
    source : Source
        Closed at the end of the session.
    out : path
        The session's folder; a journal that is there is continued.
    rules : AlarmRules, optional
        `AlarmRules.default` of the model's classes if not given.
    outputs : sequence of Output
        Where decisions, alarms and samples go besides the journal.
    hop_s : float, optional
        Seconds from one window to the next; the model's own if not given.
    is_causal : bool
        Filter with minimum phase: no delay for the future, and not the answers of `predict`.
    audit, audit_seed : float, int
        This share of the windows, drawn with this seed, runs again uncompressed, for a file with a second look.
    channels : dict of str to str, optional
        The source's names of electrodes, ``{"C3": "EEG 1"}``.
    has_board : bool
        Keep the last hour of signals in the folder, for the page.
    check : bool
        Refuse amplitudes that can't be microvolts in the first ten seconds, and watch them afterwards.
    name : str
        What the session is called; the folder's name if not given.
    retain : float, optional
        Days after which signal files of earlier sessions are removed from the folder.
    """

    def __init__(
        self,
        model: EdgeModel,
        source: Source,
        out: str | Path,
        *,
        rules: AlarmRules | None = None,
        outputs: Sequence[Output] = (),
        hop_s: float | None = None,
        is_causal: bool = False,
        audit: float | None = None,
        audit_seed: int = 0,
        channels: Mapping[str, str] | None = None,
        has_board: bool = True,
        check: bool = True,
        name: str = "",
        retain: float | None = None,
    ) -> None:
        self.model, self.source, self.out, self.name = model, source, Path(out), name or Path(out).resolve().name
        convention = model.description.convention
        self.hop_s = check_hop(convention.hop_s if hop_s is None else check_seconds("hop_s", hop_s), convention)
        self.ch_names = _renamed(source, channels or {})
        self.rules = rules or AlarmRules.default(model.description.classes)
        if self.rules.classes != model.description.classes:
            raise OptionError("rules", self.rules.classes, f"the model has the classes {model.description.classes}")
        self.needed = _needed(convention.montage, self.ch_names, source.name)
        options: dict[str, Any] = {"hop_s": self.hop_s, "limits": source.limits, "check": check, "is_causal": is_causal}
        self.stream = WindowStream(self.ch_names, source.sfreq, convention, **options)
        self.notes = [*getattr(source, "notes", ()), *self.stream.notes]  # channels, units, rates: said before it runs
        self.decider = Decider(model, self.hop_s, is_live=source.is_live, audit=audit, seed=audit_seed)
        self.engine, self.outputs, self.is_causal = AlarmEngine(self.rules), Dispatcher(outputs), is_causal
        self.started, self.acquisition = datetime.now(UTC), Acquisition(source)
        electrodes = Electrodes(self.ch_names, source.sfreq, source.limits)
        self.pipeline = Pipeline(self.acquisition, self.stream, self.decider, self, electrodes)
        self.watchdog = Watchdog(self.acquisition, self.pipeline, self.needed)
        self.newest: Decision | None = None
        self.summary: SessionSummary | None = None
        self.last_alarm: Event | None = None
        self.because, self.events = Counter[str](), Counter[str]()
        self._has_board, self._retain = has_board, None if retain is None else check_days("retain", retain)
        self._board: Board | None = None
        self._no_board = ""  # why the board could not be made
        self._journal: Journal | None = None
        self._guard = threading.Lock()  # of the alarm engine and of `_fresh`
        self._stop, self._failure = threading.Event(), list[BaseException]()
        self._fresh, self.gaps, self._now_s = list[Decision | Event](), 0, 0.0

    def stop(self) -> None:
        """End the session from another thread; what was decided is kept."""
        self._stop.set()

    def run(self, duration_s: float | None = None, watch: Watch | None = None) -> SessionSummary:
        """Decide until the source ends, the time is over or `stop` is called.

        Parameters
        ----------
        duration_s : float, optional
            Seconds of the stream after which the session ends.
        watch : callable, optional
            Called ten times a second with the state as it stands on the board, and what happened since the last call.
        """
        duration_s = None if duration_s is None else check_seconds("duration", duration_s)
        begin = time.monotonic()
        with Journal(self.out, self._facts()) as journal:
            self._journal = journal
            facts = SessionFacts(
                self.ch_names,
                self.source.sfreq,
                self.model.description.classes,
                self.hop_s,
                self.stream.window_s,
                self.started,
                self.name,
                self.out,
            )
            for removed in () if self._retain is None else remove_old_signals(self.out, self._retain):
                journal.write("removed", **asdict(removed))
            with self._guard:  # an alarm that latched before a kill still gives its signal
                self._keep(self.engine.keep(latched_alarms(journal.earlier_events), 0.0))
            try:
                if self._has_board:
                    self._open_board()
                self.outputs.open(facts)
                self._run(duration_s, watch)
            finally:
                self.acquisition.stop()
                self.outputs.close()
                summary = self.summary = summarise(self, time.monotonic() - begin)
                journal.write("summary", **summary.to_dict())
                if self._board is not None:
                    self._board.publish(describe_state(self))
                    self._board.close()
        if self._failure:
            raise self._failure[0]
        return summary

    def _open_board(self) -> None:
        """Make the board for the page; a session on a full disk runs without it, and the alarm `disk` says so."""
        try:
            self._board = Board(self.out, self.ch_names, self.source.sfreq)
        except DataError as error:
            self._no_board = str(error)

    def _run(self, duration_s: float | None, watch: Watch | None) -> None:
        """Start the acquisition and the worker, and watch over both."""
        worker = threading.Thread(target=self._work, name="worker", daemon=True)
        if duration_s is not None:
            self.pipeline.end = round(duration_s * self.source.sfreq)
        self.acquisition.start()
        worker.start()
        published = -_PUBLISH_S
        try:
            while worker.is_alive() and not self._stop.wait(_TICK_S):
                seen = self._tick()
                if self.pipeline.call_s > _LONG_CALL_S:
                    self.outputs.deliver_if_free()
                now = time.monotonic()
                if self._board is not None and now - published >= _PUBLISH_S:
                    self._board.publish(describe_state(self))
                    published = now
                if watch is not None:
                    watch(describe_state(self), seen)
        finally:
            self._stop.set()
            worker.join(_JOIN_S)
            seen = self._tick()
            self.outputs.deliver_if_free()  # the worker delivers no more, and what this last look found is new
            if watch is not None:
                watch(describe_state(self), seen)

    def _work(self) -> None:
        """Cut and decide windows until the end, in the worker's thread."""
        try:
            while not self._stop.is_set() and not self.pipeline.is_at_end:
                if self.acquisition.is_over and self.pipeline.is_idle:
                    self.pipeline.finish()
                    break
                self.pipeline.turn()
                self.outputs.deliver()
            self.outputs.deliver()
        except BaseException as error:
            self._failure.append(error)

    # --- called by the pipeline, in the worker's thread ---

    def hear(self, first: int, rows: Array) -> None:
        """Pass samples to the board and the outputs."""
        if self._board is not None:
            self._board.samples(first, rows)
        self.outputs.samples(first, rows)

    def decide(self, decision: Decision) -> None:
        """Journal a decision, judge alarms by it, and pass both to the outputs."""
        self.note("decision", **decision.to_dict())
        with self._guard:
            self._fresh.append(decision)
            self.outputs.add(decision)
            self._keep(self.engine.decide(decision))
        self.newest = decision
        if decision.decision < 0:
            self.because[decision.note.partition(":")[0]] += 1
        self.outputs.deliver()

    def note(self, kind: str, /, **facts: Any) -> None:
        """Write a line of the journal."""
        if self._journal is not None:
            self._journal.write(kind, **facts)

    # --- called by the thread that runs the session ---

    def now_s(self) -> float:
        """Stream time in seconds; while no samples come, it advances with the monotonic clock."""
        now = self.pipeline.position / self.source.sfreq
        if self.source.is_live:
            now = max(now, self.acquisition.position / self.source.sfreq + time.monotonic() - self.acquisition.heard_at)
        self._now_s = max(self._now_s, now)
        return self._now_s

    def failures(self) -> dict[str, str]:
        """Why an output, the page or the journal can't be written at the moment, by name."""
        found = self.outputs.failures()
        if self._no_board:
            found["page"] = self._no_board
        if self._journal is not None and self._journal.failure:
            found["journal"] = self._journal.failure
        return found

    def _tick(self) -> News:
        """Journal notices, obey commands, judge technical alarms; the decisions and events since the last call."""
        for notice in self.acquisition.notices():
            self.watchdog.see(notice)
            self.gaps += notice[0] == "gap"
            self.note(notice[0], **notice[1])
        with self._guard:
            now = self.now_s()
            for command in self._board.commands() if self._board is not None else ():
                self._obey(command, now)
            found = self.watchdog.judge(self.failures())
            found["amplitude"] = bool(self.stream.implausible), self.stream.implausible
            for name, (is_on, words) in found.items():
                self._keep(self.engine.technical(name, is_on, now, words if is_on else ""))
            self._keep(self.engine.tick(now))
            seen, self._fresh = self._fresh, []
        return seen

    def _obey(self, command: Mapping[str, Any], now: float) -> None:
        """Carry out what a viewer asked for."""
        by = command["by"]
        if command["command"] == "acknowledge":
            self._keep(self.engine.acknowledge(command["alarm"], now, by))
        elif command["command"] == "pause":
            self._keep(self.engine.pause(command["seconds"], now, by))
        elif command["command"] == "resume":
            self._keep(self.engine.resume(now, by))
        else:
            self.note("mark", **{name: command[name] for name in ("time_s", "stop_s", "label", "by")})

    def _keep(self, events: Sequence[Event]) -> None:
        """Journal events and queue them for the outputs; the caller holds the guard."""
        for event in events:
            self.note("event", **asdict(event))
            self.events[event.kind] += 1
            if event.kind == "raised":
                self.last_alarm = event
            self.outputs.add(event)
            self._fresh.append(event)

    def _facts(self) -> dict[str, Any]:
        """Facts of the journal's first line."""
        said = self.model.description
        return {
            "model": self.model.sha256,
            "recipe": said.recipe,
            "promised": promised_agreement(said),
            "thresholds": self.rules.to_dict(),
            "classes": said.classes,
            "name": self.name,
            "source": self.source.name,
            "ch_names": self.ch_names,
            "notes": self.notes,
            "sfreq": self.source.sfreq,
            "hop_s": self.hop_s,
            "is_causal": self.is_causal,
            "window_s": self.stream.window_s,
            "reach_s": self.stream.reach_s,
            "late_s": self.stream.late_s,
            "runtime": self.model.runtime,
            "started": self.started.isoformat(),
        }


def _renamed(source: Source, channels: Mapping[str, str]) -> tuple[str, ...]:
    """The source's channels under the model's names."""
    named = SimpleNamespace(path=source.name, ch_names=list(source.ch_names))
    rename(named, channels)
    return tuple(named.ch_names)


def _needed(montage: Any, ch_names: Sequence[str], name: str) -> tuple[str, ...]:
    """The channels that the model needs."""
    try:
        return tuple(ch_names[row] for row in derive(montage, ch_names).picks)
    except DataError as error:
        raise DataError(f"{name}: {error}; if they have other names there, give these (--rename)") from None
