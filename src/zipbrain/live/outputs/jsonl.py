"""JSON lines: decisions and alarms in the order in which they came, for programs that follow a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from zipbrain.files import encode_nan
from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.outputs.base import Output, SessionFacts
from zipbrain.live.outputs.lines import LineFile, new_path


class EventStream(Output):
    """``events_<start>.jsonl``: first ``{"session": ...}``, then ``{"decision": ...}`` and ``{"event": ...}``."""

    name = "jsonl"

    def open(self, facts: SessionFacts) -> None:
        self._file = LineFile(new_path(facts.folder, "events", facts.started, "jsonl"))
        told = {key: value for key, value in vars(facts).items() if key != "folder"}
        self._append("session", {**told, "started": facts.started.isoformat()})

    def decide(self, decision: Decision) -> None:
        self._append("decision", decision.to_dict())

    def tell(self, event: Event) -> None:
        self._append("event", asdict(event))

    def close(self) -> None:
        self._file.close()
        self.failure = self._file.failure

    def _append(self, kind: str, facts: dict[str, Any]) -> None:
        self._file.append(json.dumps({kind: encode_nan(facts)}, separators=(",", ":"), allow_nan=False))
        self.failure = self._file.failure
