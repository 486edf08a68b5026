"""LSL: two outlets, alarms as markers and the probabilities of every decision, for other programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.lsl_library import load_pylsl
from zipbrain.live.outputs.base import Output, SessionFacts


class LSLOutlets(Output):
    """Streams ``<name> markers`` (type Markers) and ``<name> probabilities`` (type Probabilities, a channel a class).

    A marker is ``kind/alarm``, such as ``raised/seizure``. NaN in all channels is no decision. Time stamps say when a
    decision was made, on LSL's clock; its window ended `delay_s` before that.
    """

    name = "lsl"
    package = "pylsl"
    extra = "live"

    def open(self, facts: SessionFacts) -> None:
        pylsl = load_pylsl("the output lsl")
        self._clock = pylsl.local_clock
        source = f"zipbrain {facts.name} {facts.started.isoformat()}"
        markers = pylsl.StreamInfo(
            f"{facts.name} markers", "Markers", 1, pylsl.IRREGULAR_RATE, pylsl.cf_string, f"{source} markers"
        )
        shares = pylsl.StreamInfo(
            f"{facts.name} probabilities",
            "Probabilities",
            len(facts.classes),
            pylsl.IRREGULAR_RATE,
            pylsl.cf_float32,
            f"{source} probabilities",
        )
        described = shares.desc()
        described.append_child_value("hop_s", f"{facts.hop_s:g}")
        described.append_child_value("window_s", f"{facts.window_s:g}")
        channels = described.append_child("channels")
        for name in facts.classes:
            channels.append_child("channel").append_child_value("label", name)
        self._markers: Any = pylsl.StreamOutlet(markers)
        self._shares: Any = pylsl.StreamOutlet(shares)

    def decide(self, decision: Decision) -> None:
        shares = decision.probabilities if decision.is_made else np.full(len(decision.probabilities), np.nan)
        self._shares.push_sample([float(value) for value in shares], self._clock())

    def tell(self, event: Event) -> None:
        self._markers.push_sample([f"{event.kind}/{event.alarm}" if event.alarm else event.kind], self._clock())

    def close(self) -> None:
        self._markers = self._shares = None  # pylsl closes an outlet with its last reference
