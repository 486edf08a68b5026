"""What a live session shows in a terminal: trends, alarms, electrodes, delays; or lines for a log; or JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zipbrain.cli.terminal import Console
from zipbrain.files import encode_nan
from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.watchdog import describe_electrodes
from zipbrain.text import printable

State = dict[str, Any]
News = Sequence[Decision | Event]

WARNING: Final = "Not a medical device: never rely on it for care."

_BARS: Final = "▁▂▃▄▅▆▇█"
_TREND: Final = 48  # decisions of a trend
_FRAMES: Final = 5.0  # per second
_LINE_S: Final = 10.0  # between two lines of a log
_EVENTS: Final = 4  # newest ones that are shown
_CLASSES: Final = 8  # whose trends are shown
_STYLES: Final = {"on": "bold white on red", "latched": "bold black on yellow", "acknowledged": "yellow"}


class View(Protocol):
    """Shows a session while it runs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, state: State, news: News) -> None:
        """Show the newest state, and what happened since the last call."""


def choose_view(*, as_json: bool) -> View:
    """JSON lines on stdout, a picture that is drawn again in a terminal, lines elsewhere."""
    if as_json:
        return JSONLines()
    console = Console(highlight=False)
    return Panel(console) if console.is_terminal else Lines(console)


class JSONLines:
    """A line of JSON for every decision and every event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, state: State, news: News) -> None:
        """Print the news."""
        for item in news:
            content = {"line": "decision", **item.to_dict()} if isinstance(item, Decision) else None
            print(json.dumps(encode_nan(content or {"line": "event", **asdict(item)})), flush=True)


class Lines:
    """Lines for a log: one for every event, and one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, state: State, news: News) -> None:
        """Print what is new."""
        for item in news:
            if isinstance(item, Event):
                self._print(describe_event(item))
        now = time.monotonic()
        if now - self._said >= _LINE_S and (state["decision"] or self._said < 0):
            self._said = now
            self._print(describe_moment(state))

    def _print(self, words: str) -> None:
        self._console.print(Text(words), soft_wrap=True)


class Panel:
    """Trends, alarms, electrodes and delays, drawn again five times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._trends: deque[Decision] = deque(maxlen=_TREND)
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._drawn = -math.inf

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, state: State, news: News) -> None:
        """Draw what is new."""
        for item in news:
            (self._trends if isinstance(item, Decision) else self._events).append(item)  # type: ignore[arg-type]
        if time.monotonic() - self._drawn >= 1 / _FRAMES or state["source"]["state"] == "ended":
            self._drawn = time.monotonic()
            self._live.update(self.draw(state), refresh=True)

    def draw(self, state: State) -> RenderableType:
        """The picture of a state."""
        session = state["session"]
        head = Text.assemble(
            (f"{session['name']}  ", "bold"),
            f"{session['model']}, windows of {session['window_s']:g} s every {session['hop_s']:g} s\n",
            f"{clock(state['time_s'])}  ",
            self._source(state["source"]),
        )
        parts: list[RenderableType] = [head, self._alarms(state), self._trend(session["classes"])]
        parts += [_facts(state), *(Text(describe_event(event), style="dim") for event in self._events)]
        return Group(*parts, Text(WARNING, style="italic dim"))

    def _source(self, source: dict[str, Any]) -> Text:
        style = "green" if source["state"] == "live" else "dim" if source["state"] == "ended" else "bold red"
        words = f" ({source['words']})" if source["words"] else ""
        return Text(printable(f"{source['name']}: {source['state']}{words}"), style=style)

    def _alarms(self, state: State) -> Text:
        found, shown = state["alarms"], Text()
        for alarm in found["alarms"]:
            is_quiet = alarm["state"] in ("off", "pending")
            if is_quiet and alarm["category"] == "technical":
                continue
            style = _STYLES.get(alarm["state"], "green" if alarm["state"] == "off" else "yellow")
            words = "" if is_quiet else f" since {clock(alarm['since_s'])}: {printable(alarm['words'])}"
            mark = "ALARM " if alarm["category"] == "physiological" and not is_quiet else ""
            shown.append(f" {mark}{printable(alarm['name'])} {alarm['state']} ", style=style)
            shown.append(f"{words}\n")
        if found["paused_until_s"] is not None:
            shown.append(f" signals paused until {clock(found['paused_until_s'])} \n", style="bold black on yellow")
        return shown if shown else Text("no alarm is defined: --init-alarms writes an example\n", style="dim")

    def _trend(self, classes: Sequence[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, show_header=False, padding=(0, 1), pad_edge=False)
        for _ in range(3):
            table.add_column(no_wrap=True)
        if not self._trends:
            table.add_row("", Text("the first window is not complete", style="dim"), "")
            return table
        means = [sum(float(d.probabilities[k]) for d in self._trends if d.is_made) for k in range(len(classes))]
        for k in sorted(sorted(range(len(classes)), key=lambda k: -means[k])[:_CLASSES]):
            bars = "".join(_bar(float(d.probabilities[k])) if d.is_made else "·" for d in self._trends)
            newest = self._trends[-1]
            is_best = newest.decision == k
            value = f"{float(newest.probabilities[k]):.2f}" if newest.is_made else "  – "
            table.add_row(Text(printable(classes[k])[:16]), bars, Text(value, style="bold" if is_best else ""))
        if not self._trends[-1].is_made:
            table.add_row("", Text(f"no decision: {printable(self._trends[-1].note)}"[:60], style="yellow"), "")
        return table


def _facts(state: State) -> Text:
    counters, delay = state["counters"], state["delay_s"]
    bad = {name: state["electrodes"][name] for name in state["needed"] if state["electrodes"][name] != "good"}
    words = f"electrodes  {len(state['needed']) - len(bad)} of {len(state['needed'])} good"
    shown = Text(words + (f"; {printable(describe_electrodes(bad))}" if bad else ""), style="yellow" if bad else "")
    shown.append(f"\n{describe_delay(delay)}\n", style="")
    shown.append(
        f"windows     {counters['decided']} decided, {counters['undecided']} not, {counters['skipped']} skipped"
    )
    if counters["looked_twice"] or counters["looks_skipped"]:
        shown.append(f"; second looks {counters['looked_twice']}, no time for {counters['looks_skipped']}")
    if counters["audited"]:
        shown.append(f"; audit {counters['agreeing']} of {counters['audited']} agree")
    kinds = ("dropped", "duplicated", "jumbled", "late_samples", "overflow")
    lost = [f"{counters[kind]} {kind.removesuffix('_samples')}" for kind in kinds if counters[kind]]
    gaps = f"{counters['gaps']} gap{'s' * (counters['gaps'] != 1)}"
    shown.append(f"\nsamples     {counters['samples']:,}; {', '.join([gaps, *lost])}\n")
    for name, why in state["failures"].items():
        shown.append(printable(f"not written: {name}: {why}\n"), style="bold red")
    return shown


def describe_delay(delay: dict[str, Any]) -> str:
    """``delay       filter 0.10 s + compute 0.012 s (95 % 0.030 s, longest 0.044 s)``"""
    compute = f"{delay['compute_p50']:.3f} s (95 % {delay['compute_p95']:.3f} s, longest {delay['compute_max']:.3f} s)"
    return f"delay       filter {delay['filter']:.2f} s + compute {compute}"


def describe_event(event: Event) -> str:
    """``00:12:31 raised seizure: seizure 0.912``"""
    who = f" by {event.by}" if event.by else ""
    name = event.alarm or "signals"
    words = f": {event.words}" if event.words else ""
    return printable(f"{clock(event.time_s)} {event.kind:<12} {name} ({event.category}){who}{words}")


def describe_moment(state: State) -> str:
    """The newest decision, the source and the counters in one line."""
    counters, newest, classes = state["counters"], state["decision"], state["session"]["classes"]
    if newest is None:
        said = "no window yet"
    elif newest["decision"] < 0:
        said = f"no decision ({newest['note']})"
    else:
        said = f"{classes[newest['decision']]} {newest['probabilities'][newest['decision']]:.2f}"
    on = [alarm["name"] for alarm in state["alarms"]["alarms"] if alarm["state"] in ("on", "latched")]
    alarms = f"alarms {', '.join(on)}" if on else "no alarm"
    counts = f"{counters['decided']} decided, {counters['undecided']} not, {counters['skipped']} skipped"
    delay = f"delay {state['delay_s']['shown'] or 0:.2f} s"
    return printable(f"{clock(state['time_s'])} {state['source']['state']:<12} {said}; {alarms}; {counts}; {delay}")


def clock(seconds: float) -> str:
    """``00:12:31``"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def _bar(value: float) -> str:
    return _BARS[min(int(value * len(_BARS)), len(_BARS) - 1)]
