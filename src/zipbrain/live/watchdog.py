"""The watchdog: what is wrong with a session now, as technical alarms by name, with words for a person."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from zipbrain.live.acquisition import Acquisition, Notice
from zipbrain.live.electrodes import State
from zipbrain.live.pipeline import Pipeline

SILENT_S: Final = 2.5  # seconds without samples after which the source counts as silent

_LONG_CALL_S: Final = 2.5  # seconds of one call of the model after which it is behind; a hop, where that is longer
_KEPT_S: Final = 10.0  # seconds for which a gap, a clock that was set or a skipped window keeps its alarm on
_LOOK_S: Final = 0.5  # seconds between two looks at the electrodes
_NAMED: Final = 6  # electrodes that a sentence names


class Watchdog:
    """Judges an acquisition and its pipeline; it keeps no samples and waits for nothing.

    Parameters
    ----------
    acquisition : Acquisition
    pipeline : Pipeline
    needed : sequence of str
        Channels that the model needs.
    """

    def __init__(self, acquisition: Acquisition, pipeline: Pipeline, needed: Sequence[str]) -> None:
        self._acquisition, self._pipeline, self._needed = acquisition, pipeline, tuple(needed)
        self._moments: dict[str, tuple[float, str]] = {}  # when a gap, a jump, a skip was last seen, and its words
        self.electrodes: dict[str, State] = pipeline.electrodes.states()
        self._looked_at = 0.0

    @property
    def source_state(self) -> str:
        """``"waiting"``, ``"live"``, ``"silent"``, ``"lost"``, ``"ended"`` or ``"failed"``."""
        state = self._acquisition.state
        return "silent" if state in ("live", "waiting") and self._is_silent() else state

    def see(self, notice: Notice) -> None:
        """Take note of a gap, or of a clock that was set or drifts."""
        kind, facts = notice
        finding = facts.get("finding")
        if kind == "gap":
            words = f"{facts['seconds']:.3g} s are missing"
        elif kind == "clock" and finding == "jump":
            words = f"the source's clock was set by {facts['seconds']:+.3g} s"
        elif kind == "clock" and finding == "drift":
            words = f"the source's clock is off by {facts['ppm']:+.0f} ppm"
        else:
            return
        self._moments[kind] = time.monotonic(), words

    def judge(self, failures: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
        """For every technical alarm by name: whether it is on, and its words."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at, self.electrodes = now, self._pipeline.electrodes.states()
        lost = self._acquisition.state in ("lost", "failed")
        silent = f"no samples for {SILENT_S:.1f} s"
        found: dict[str, tuple[bool, str]] = {
            "source": (lost or self.source_state == "silent", self._acquisition.words if lost else silent),
            "disk": (bool(failures), "; ".join(f"{name}: {words}" for name, words in failures.items())),
        }
        self._see_calls(now)
        for kind in ("gap", "clock", "behind"):
            at, words = self._moments.get(kind, (-_KEPT_S, ""))
            found[kind] = (now - at < _KEPT_S, words)
        bad = {name: self.electrodes[name] for name in self._needed if self.electrodes[name] != "good"}
        is_known = self._acquisition.received > 0 and not found["source"][0]
        found["electrode"] = (bool(bad) and is_known, describe_electrodes(bad))
        return found

    def _is_silent(self) -> bool:
        return self._acquisition.source.is_live and time.monotonic() - self._acquisition.heard_at > SILENT_S

    def _see_calls(self, now: float) -> None:
        """Take note of a model that is too slow: windows were skipped, or a call has lasted too long."""
        longest = max(_LONG_CALL_S, self._pipeline.stream.hop_s)
        if self._acquisition.source.is_live and self._pipeline.call_s > longest:
            self._moments["behind"] = now, f"the model has not answered for {longest:.3g} s"
        elif now - self._pipeline.skipped_at < _KEPT_S:
            words = "the model is slower than the stream: windows are skipped"
            self._moments["behind"] = self._pipeline.skipped_at, words


def describe_electrodes(states: Mapping[str, Any]) -> str:
    """``"flat: F3, C4; missing: O1"``"""
    kinds: dict[str, list[str]] = {}
    for name, state in states.items():
        if state != "good":
            kinds.setdefault(state, []).append(name)
    parts = []
    for state, names in kinds.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts.append(f"{state}: {', '.join(names[:_NAMED])}{more}")
    return "; ".join(parts)
