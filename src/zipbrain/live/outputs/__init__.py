"""The outputs of a live session, one file each. A new one is a subclass of `Output` and a call of `register`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.live.outputs.base import Output, SessionFacts
from zipbrain.live.outputs.csv import DecisionTable
from zipbrain.live.outputs.edf import EDFSignals
from zipbrain.live.outputs.jsonl import EventStream
from zipbrain.live.outputs.lsl import LSLOutlets

__all__ = ["OUTPUTS", "Output", "SessionFacts", "choose_outputs", "register"]

OUTPUTS: Final[dict[str, type[Output]]] = {}


def register(kind: type[Output]) -> type[Output]:
    """Let `live` know an output by its name."""
    OUTPUTS[kind.name] = kind
    return kind


def choose_outputs(names: Sequence[str]) -> list[Output]:
    """New outputs by their names, each able to run here."""
    for name in names:
        if name not in OUTPUTS or names.count(name) > 1:
            raise OptionError("outputs", name, f"choose from {', '.join(OUTPUTS)}, each once")
        OUTPUTS[name]().require()
    return [OUTPUTS[name]() for name in names]


for _kind in (DecisionTable, EventStream, EDFSignals, LSLOutlets):
    register(_kind)
