"""A made-up session in a folder, in real time: EEG-like signals, seizures, decisions, alarms, gaps and a journal.

    python -m benchmarks.live.made_up_session DIR [--past 3600] [--seizures 20,400] [--audit]

What pages are looked at and tested with: everything a session writes, without a model. It obeys the page's commands.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from zipbrain.live.board import Board
from zipbrain.live.decision import Decision
from zipbrain.live.journal import Journal

# 23 channels, as hospital recordings have them
NAMES = ["FP1", "FPZ", "FP2", "F7", "F3", "FZ", "F4", "F8", "T7", "C3", "CZ", "C4", "T8", "P7", "P3", "PZ", "P4", "P8"]
NAMES += ["O1", "OZ", "O2", "A1", "A2"]
SFREQ, WINDOW_S, HOP_S = 256.0, 10.0, 1.0
ON, OFF = 0.8, 0.5


class Signals:
    """EEG-like samples that depend on their index alone: the same stretch is the same whenever it is computed."""

    def __init__(self, seizures: list[float], seizure_s: float, seed: int = 0) -> None:
        self.seizures, self.seizure_s = seizures, seizure_s
        rng = np.random.default_rng(seed)
        size = int(64 * SFREQ)
        spectrum = rng.normal(size=(len(NAMES), size // 2 + 1)) + 1j * rng.normal(size=(len(NAMES), size // 2 + 1))
        hertz = np.fft.rfftfreq(size, 1 / SFREQ)
        shared = rng.normal(size=(4, size // 2 + 1)) + 1j * rng.normal(size=(4, size // 2 + 1))
        spectrum = 0.6 * spectrum + rng.uniform(-0.7, 0.7, (len(NAMES), 4)) @ shared
        spectrum *= (hertz > 0.5) / np.maximum(hertz, 1) ** 0.9 * (hertz < 70)
        noise = np.fft.irfft(spectrum, size)
        self.noise = 14 * noise / noise.std(1, keepdims=True)
        self.alpha = np.array([1.0 if name[0] in "OP" else 0.25 for name in NAMES])[:, None]
        self.phase = rng.uniform(0, 0.6, (len(NAMES), 1))
        self.focus = np.array([1.0 if name in ("T7", "F7", "P7", "C3") else 0.45 for name in NAMES])[:, None]

    def seizing(self, time_s: float) -> float:
        """0 to 1: how far a seizure has gone at this time."""
        for start in self.seizures:
            if start <= time_s < start + self.seizure_s:
                return min((time_s - start) / 4, 1.0)
        return 0.0

    def rows(self, first: int, count: int) -> np.ndarray:
        """Samples (23, n) in microvolts: O1 is flat, T8 noisy."""
        index = np.arange(first, first + count)
        seconds = index / SFREQ
        waxing = 0.5 + 0.5 * np.sin(2 * np.pi * seconds / 7.3)
        rows = self.noise[:, index % self.noise.shape[1]]
        rows = rows + 22 * self.alpha * waxing * np.sin(2 * np.pi * 9.7 * seconds + self.phase)
        blink = np.exp(-(((seconds % 6.1) - 3) ** 2) / 0.02) * 90
        rows[:3] -= blink
        strength = np.array([self.seizing(float(moment)) for moment in seconds])
        if strength.any():
            wave = 2 * ((3.1 * seconds) % 1) - 1
            spike = np.exp(-(((3.1 * seconds) % 1 - 0.15) ** 2) / 0.001)
            rows = rows * (1 - 0.5 * strength) + self.focus * strength * (90 * wave - 190 * spike)
        rows[NAMES.index("O1")] = 0
        rows[NAMES.index("T8")] *= 4
        return rows


class MadeUpSession:
    """Board and journal of a session that decides by looking into its own script."""

    def __init__(
        self, folder: Path, *, seizures: list[float], audit: bool = False, past_s: float = 0, seizure_s: float = 25
    ) -> None:
        facts = {"model": "sha256:made up", "recipe": {}, "thresholds": {"on": ON, "off": OFF}}
        self.journal = Journal(folder, facts)
        self.board = Board(folder, NAMES, SFREQ, seconds=3600)
        self.signals, self.audit = Signals(seizures, seizure_s), audit
        self.first, self.due, self.source = 0, 0.0, "live"
        self.counters: Counter[str] = Counter({"samples": 0, "gaps": 0, "dropped": 0, "skipped": 0, "undecided": 0})
        self.alarm = {"name": "seizure", "classes": ["seizure"], "category": "physiological", "state": "off"}
        self.alarm |= {"since_s": None, "words": "", "threshold_on": ON, "threshold_off": OFF}
        self.technical = {"name": "source", "category": "technical", "state": "off", "since_s": None, "words": ""}
        self.paused_until_s: float | None = None
        self.newest: Decision | None = None
        self.started = datetime.now(UTC) - timedelta(seconds=past_s)
        self.stopping, self.silence = threading.Event(), threading.Event()
        while self.first < past_s * SFREQ:
            self.read(int(10 * SFREQ))

    @property
    def time_s(self) -> float:
        return self.first / SFREQ

    def read(self, count: int) -> None:
        """Take the next samples; every sixtieth second or so some are missing."""
        if int(self.time_s) % 331 == 330:
            missing = int(2 * SFREQ)
            self.counters.update(gaps=1, dropped=missing)
            self.journal.write("gap", time_s=self.time_s, seconds=2.0)
            self.first += missing
        self.board.samples(self.first, self.signals.rows(self.first, count))
        self.first += count
        self.counters["samples"] += count
        while self.due + WINDOW_S <= self.time_s:
            self.decide(self.due, self.due + WINDOW_S)
            self.due += HOP_S

    def decide(self, start_s: float, stop_s: float) -> None:
        rng = np.random.default_rng(int(stop_s))
        strength = self.signals.seizing(stop_s - 3)
        chance = 0.05 + 0.08 * np.sin(stop_s / 47) ** 2 + 0.03 * rng.normal() + 0.88 * strength
        chance = float(np.clip(chance, 0.004, 0.985))
        note = "gap" if stop_s % 331 >= 329 or (stop_s > 331 and stop_s % 331 < WINDOW_S) else ""
        shares = np.float32([1 - chance, chance]) if not note else np.float32([np.nan, np.nan])
        looked = 0.3 < chance < 0.7
        decision = -1 if note else int(chance > 0.5)
        made = Decision(start_s, stop_s, shares, decision, note, looked, 0.021 + 0.002 * abs(rng.normal()), 0.36)
        self.newest = made
        self.journal.write("decision", **made.to_dict())
        self.counters["undecided" if note else "decided"] += 1
        self.counters["looked_twice"] += looked
        if self.audit and int(stop_s) % 10 == 0 and not note:
            self.counters.update(audited=1, agreeing=int(stop_s) % 500 != 0)
        if not note:
            self._alarm(chance)

    def _alarm(self, chance: float) -> None:
        state = self.alarm["state"]
        if chance >= ON and state in ("off", "latched") and self.paused_until_s is None:
            self.alarm |= {"state": "on", "since_s": self.time_s, "words": f"seizure above {ON:g}"}
            self.tell("raised", self.alarm)
        elif chance < OFF and state == "on":
            self.alarm |= {"state": "latched", "since_s": self.time_s}
            self.tell("ended", self.alarm)
        elif chance < OFF and state == "acknowledged":
            self.alarm |= {"state": "off", "words": ""}
            self.tell("cleared", self.alarm)

    def tell(self, kind: str, alarm: dict[str, Any], by: str = "") -> None:
        facts = {"alarm": alarm["name"], "category": alarm["category"], "words": alarm["words"], "by": by}
        self.journal.write("event", time_s=self.time_s, kind=kind, **facts)

    def obey(self) -> None:
        """Do what the page asked for."""
        for command in self.board.commands():
            if command["command"] == "acknowledge" and self.alarm["state"] in ("on", "latched"):
                self.tell("acknowledged", self.alarm, command["by"])
                state = "acknowledged" if self.alarm["state"] == "on" else "off"
                self.alarm |= {"state": state, "since_s": self.time_s}
            elif command["command"] == "pause":
                self.paused_until_s = self.time_s + command["seconds"]
                self.tell("paused", self.alarm | {"words": f"for {command['seconds']:g} s"}, command["by"])
            elif command["command"] == "resume" and self.paused_until_s is not None:
                self.paused_until_s = None
                self.tell("resumed", self.alarm, command["by"])
            elif command["command"] == "mark":
                self.journal.write("mark", **{key: value for key, value in command.items() if key != "command"})
        if self.paused_until_s is not None and self.time_s >= self.paused_until_s:
            self.paused_until_s = None
            self.tell("resumed", self.alarm)

    def publish(self) -> None:
        state: dict[str, Any] = {
            "session": {"name": "Jane Doe", "model": "LaBraM, r = 0.8", "classes": ["background", "seizure"]},
            "time_s": self.time_s,
            "wall": datetime.now(UTC).isoformat(),
            "delay_s": {
                "filter": 0.13,
                "compute_p50": 0.021,
                "compute_p95": 0.024,
                "compute_max": 0.041,
                "shown": 0.36,
            },
            "decision": None if self.newest is None else self.newest.to_dict(),
            "electrodes": dict.fromkeys(NAMES, "good") | {"O1": "flat", "T8": "noisy"},
            "alarms": {"alarms": [dict(self.alarm), dict(self.technical)], "paused_until_s": self.paused_until_s},
            "counters": dict(self.counters),
            "source": {"state": self.source, "name": "Jane Doe's amplifier"},
            "failures": [],
        }
        state["session"] |= {"hop_s": HOP_S, "window_s": WINDOW_S, "started": self.started.isoformat()}
        state["merges"] = self._merges()
        self.board.publish(state)

    def _merges(self) -> dict[str, Any]:
        """A grouping like the model's: neighbours in time join the first of them."""
        rng = np.random.default_rng(int(self.due))
        patches = int(WINDOW_S)
        source = np.arange(len(NAMES) * patches)
        for token in range(1, len(source)):
            if token % patches and rng.uniform() < 0.75:
                source[token] = source[token - 1]
        facts = {"start_s": self.due - HOP_S, "stop_s": self.due - HOP_S + WINDOW_S, "looked_twice": False}
        return facts | {"electrodes": list(NAMES), "patches": patches, "source": source.tolist()}

    def run(self, seconds: float, silent_after_s: float = float("inf")) -> None:
        """Go on in real time; after `silent_after_s` no more samples arrive."""
        begun, published, before = time.monotonic(), -1.0, 0.0
        owed = 0.0  # samples that are due
        while not self.stopping.is_set() and (now := time.monotonic() - begun) < seconds:
            passed, before = now - before, now
            is_silent = now >= silent_after_s or self.silence.is_set()
            if not is_silent:
                owed += passed * SFREQ
                self.read(int(owed))
                owed -= int(owed)
            self._watch(is_silent)
            self.obey()
            if now - published >= 0.2:
                self.publish()
                published = now
            time.sleep(0.04)

    def _watch(self, is_silent: bool) -> None:
        """The technical alarm of a source that is silent."""
        if is_silent == (self.source == "lost"):
            return
        self.source = "lost" if is_silent else "live"
        since = {"state": "on" if is_silent else "off", "since_s": self.time_s}
        self.technical |= since | {"words": "no samples arrive" if is_silent else ""}
        self.tell("raised" if is_silent else "cleared", self.technical)

    def close(self) -> None:
        self.journal.close()
        self.board.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--past", type=float, default=0, help="seconds that it ran already")
    parser.add_argument("--seizures", default="20", help="seconds after now, with commas; before now if negative")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--silent-after", type=float, default=float("inf"))
    parser.add_argument("--audit", action="store_true")
    given = parser.parse_args()
    seizures = [given.past + float(word) for word in given.seizures.split(",") if word]
    session = MadeUpSession(given.folder, seizures=seizures, audit=given.audit, past_s=given.past)
    print("ready", flush=True)
    try:
        session.run(given.seconds, given.silent_after)
    finally:
        session.close()


if __name__ == "__main__":
    main()
