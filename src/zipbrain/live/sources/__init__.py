"""The sources of `zipbrain live`, one file each. A new one is a subclass of `SourceKind` and a call of `register`."""

from __future__ import annotations

from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.live.source import Source
from zipbrain.live.sources.base import SourceKind, read_options
from zipbrain.live.sources.lsl import LSLKind
from zipbrain.live.sources.replay import ReplayKind

__all__ = ["SOURCES", "SourceKind", "list_streams", "open_source", "register"]

SOURCES: Final[dict[str, SourceKind]] = {}


def register(kind: type[SourceKind]) -> type[SourceKind]:
    """Let `zipbrain live` know a kind of source by its name."""
    SOURCES[kind.name] = kind()
    return kind


for _kind in (ReplayKind, LSLKind):
    register(_kind)


def open_source(given: str, **reading: Any) -> Source:
    """The source that a text such as ``"lsl:Amplifier"`` or ``"replay:night.edf?speed=10"`` names.

    Parameters
    ----------
    given : str
        Kind, what it is, and options: ``kind:what?option=value&option=value``.
    units, check
        As for `zipbrain.edge.predict`.
    """
    name, colon, rest = given.partition(":")
    kind = SOURCES.get(name)
    if kind is None or not colon or not rest:
        forms = ", ".join(known.form for known in SOURCES.values())
        raise OptionError("--source", given, f"it must be like {forms}")
    what, options = read_options(rest, kind)
    return kind.open(what, options, **reading)


def list_streams() -> list[dict[str, Any]]:
    """What can be read now, as every kind of source finds it."""
    return [stream for kind in SOURCES.values() for stream in kind.find()]
