"""The output formats of `predict`, one file each. A new one is a subclass of `Format` and a call of `register`."""

from __future__ import annotations

from typing import Final

from zipbrain.edge.formats.base import MARK, Format, json_bytes
from zipbrain.edge.formats.bids import BIDSEvents
from zipbrain.edge.formats.csv import WindowTable
from zipbrain.edge.formats.edf import EDFAnnotations
from zipbrain.edge.formats.figure import Figure
from zipbrain.edge.formats.yasa import Hypnogram

__all__ = ["FORMATS", "MARK", "Format", "json_bytes", "register"]

FORMATS: Final[dict[str, Format]] = {}


def register(kind: type[Format]) -> type[Format]:
    """Let `predict` know a format by its name."""
    FORMATS[kind.name] = kind()
    return kind


for _kind in (WindowTable, EDFAnnotations, BIDSEvents, Hypnogram, Figure):
    register(_kind)
