"""Live: an exported file on a stream -> decisions, alarms and a journal, with numpy and ONNX Runtime alone (lazy)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.live.session": "Session",
        "zipbrain.live.source": "Chunk Source SourceEnded SourceLost",
        "zipbrain.live.decision": "Decision",
        "zipbrain.live.alarm_rules": "AlarmRules Rule",
        "zipbrain.live.alarms": "AlarmEngine Event",
        "zipbrain.live.outputs": "Output SessionFacts",
        "zipbrain.live.journal": "Journal",
    },
    "evaluate verify",
)
