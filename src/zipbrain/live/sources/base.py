"""The interface of a kind of source: its name, how one is written, opened and found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from zipbrain.errors import OptionError
from zipbrain.live.source import Source


class SourceKind(ABC):
    """A kind of source, as ``kind:what?option=value`` names it."""

    name: ClassVar[str]
    form: ClassVar[str]  # how one is written
    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def open(self, what: str, options: dict[str, str], **reading: Any) -> Source:
        """The source; refused in one line where there is none of that name."""

    def find(self) -> list[dict[str, Any]]:
        """Streams that can be read now: source, name, type, channels, rate, host."""
        return []


def read_options(text: str, kind: SourceKind) -> tuple[str, dict[str, str]]:
    """``"night.edf?speed=10"`` -> ``("night.edf", {"speed": "10"})``; unknown options are refused."""
    what, mark, rest = text.rpartition("?") if "?" in text else (text, "", "")
    if mark and not what:
        raise OptionError("--source", text, f"it must be like {kind.form}")
    options: dict[str, str] = {}
    for part in filter(None, rest.split("&")):
        name, equals, value = part.partition("=")
        if name not in kind.options or not equals or name in options:
            known = ", ".join(kind.options) or "none"
            raise OptionError("--source", part, f"an option of {kind.name} is written name=value, once; known: {known}")
        options[name] = value
    return what, options


def read_number(name: str, text: str, low: float, high: float) -> float:
    """A number of a source's options, within bounds."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise OptionError(f"--source {name}", text, f"it must be a number from {low:g} to {high:g}")
    return value
