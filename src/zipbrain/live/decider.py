"""A window of a stream -> a decision: second look and audit where there is time, and how long it took."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zipbrain.edge.audit import read_audit
from zipbrain.edge.model import EdgeModel, as_probabilities
from zipbrain.edge.prediction import NO_ANSWER
from zipbrain.live.decision import Decision
from zipbrain.live.merge_map import merge_map
from zipbrain.metrics import is_doubtful

if TYPE_CHECKING:
    from zipbrain.signal.window_stream import StreamWindow

NO_TIME: Final = "no time for a second look"

_KEPT: Final = 1000  # decisions whose times are kept
_USUAL: Final = 0.95  # quantile that stands for the time of the next window
_TWICE: Final = 2.0  # times the usual time that must be left for a second look: the uncompressed network is slower


class Delays:
    """Times of the last thousand decisions, and the longest of all."""

    def __init__(self) -> None:
        self._kept = deque[float](maxlen=_KEPT)
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Add a time."""
        self._kept.append(seconds)
        self.longest = max(self.longest, seconds)

    def quantile(self, share: float) -> float:
        """The time that this share of the decisions did not exceed; 0 before the first."""
        return float(np.quantile(np.array(self._kept), share)) if self._kept else 0.0


class Decider:
    """Runs a model on one window after the other.

    Parameters
    ----------
    model : EdgeModel
    hop_s : float
        Seconds from one window to the next: what a decision may take.
    is_live : bool
        True if the stream does not wait: a second look is then left out where it would come too late.
    audit : float, optional
        This share of the windows runs again uncompressed after its decision, where there is time.
    seed : int
        Of the audit's draw.

    Attributes
    ----------
    counts : Counter of str
        "decided", "undecided", "looked_twice", "looks_skipped", "late_decisions" (took longer than a hop) and
        "audits_skipped".
    compute : Delays
        From the arrival of a window's last needed sample to its decision.
    merges : dict or None
        Merge map of the last window, for a file with groups (`merge_map.merge_map`), with its times.
    """

    def __init__(
        self, model: EdgeModel, hop_s: float, *, is_live: bool, audit: float | None = None, seed: int = 0
    ) -> None:
        self.model, self.counts, self.compute = model, Counter[str](), Delays()
        self.merges: dict[str, Any] | None = None
        self.audit = read_audit(audit, seed, model.description, model.path)
        self._hop_s, self._is_live = hop_s, is_live
        self._draw = None if self.audit is None else self.audit.draw("live")
        second = model.description.second_look or {}
        self._margin = float(second.get("margin", 0.0)) if model.description.looks_twice else None

    def decide(self, window: StreamWindow, stop_s: float, waited_s: float, ready_at: float) -> Decision:
        """The decision of a window that was complete at `ready_at`, `waited_s` of the stream after its end."""
        place = window.start_s, stop_s
        if window.flag:
            self.counts["undecided"] += 1
            nothing = np.full(len(self.model.description.classes), np.nan, dtype=np.float32)
            return Decision(*place, nothing, -1, window.flag, delay_s=waited_s + time.monotonic() - ready_at)
        begin = time.monotonic()
        has_time = self._has_time(begin, ready_at)
        margin = None if has_time or self._margin is None else 0.0  # no window is closer than that
        logits, twice, groups = self.model.look_with_groups(window.x[np.newaxis], margin)
        probabilities = as_probabilities(logits)[0]
        end = time.monotonic()
        if groups is not None and (found := merge_map(groups[0], self.model.description.convention.ch_names)):
            self.merges = {"start_s": window.start_s, "stop_s": stop_s, "looked_twice": bool(twice[0]), **found}
        is_made = bool(np.isfinite(probabilities).all())
        note = "" if is_made else NO_ANSWER
        if margin is not None and not twice[0] and is_doubtful(logits, self._margin or 0.0)[0]:
            self.counts["looks_skipped"] += 1
            note = note or NO_TIME
        self.counts["decided" if is_made else "undecided"] += 1
        self.counts["looked_twice"] += int(twice[0])
        self.counts["late_decisions"] += int(self._is_live and end - ready_at > self._hop_s)
        self.compute.add(end - ready_at)
        decision = int(probabilities.argmax()) if is_made else -1
        return Decision(*place, probabilities, decision, note, bool(twice[0]), end - begin, waited_s + end - ready_at)

    def check(self, window: StreamWindow, found: Decision, ready_at: float) -> dict[str, Any] | None:
        """What the uncompressed network says of a window that was drawn for the audit; None for the others."""
        if self.audit is None or self._draw is None or not found.is_made:
            return None
        if self._draw.random() >= self.audit.share:
            return None
        if not self._has_time(time.monotonic(), ready_at):
            self.counts["audits_skipped"] += 1
            return None
        again = as_probabilities(self.model.look(window.x[np.newaxis], math.inf)[0])
        self.audit = self.audit.add(found.probabilities[np.newaxis], again)
        agrees = int(again[0].argmax()) == found.decision
        return {"start_s": found.start_s, "probabilities": again[0], "agrees": agrees}

    def _has_time(self, now: float, ready_at: float) -> bool:
        """True if twice the usual time is left before the next window is due."""
        return not self._is_live or now + _TWICE * self.compute.quantile(_USUAL) < ready_at + self._hop_s
