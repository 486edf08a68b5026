"""Refusals: every error zipbrain raises on purpose, each one line that says what was wrong and what to do."""

from __future__ import annotations

from typing import Final

from zipbrain.text import printable

_LONGEST: Final = 400  # characters of a value in an error
_LONGEST_LINE: Final = 3000  # characters of an error


class ZipbrainError(Exception):
    """Base class of all errors raised on purpose by zipbrain; its text is one line, whatever names are in it."""

    def __str__(self) -> str:
        text = printable(" ".join(super().__str__().splitlines()))
        return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 500]} ... {text[-400:]}"


class OptionError(ZipbrainError, ValueError):
    """An argument has a value that is not allowed.

    Parameters
    ----------
    name : str
        The argument's name as the caller wrote it.
    given : object
        What was given.
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, name: str, given: object, allowed: str) -> None:
        super().__init__(f"{name}: got {_shown(given)}, but {allowed}")
        self.name, self.given, self.allowed = name, given, allowed

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.name, self.given, self.allowed)


def _shown(given: object) -> str:
    """What was given, as Python writes it, or as much of it as fits in a line."""
    try:
        words = repr(given)
    except ValueError:  # Python writes no integers of thousands of digits
        return "a number of thousands of digits"
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 100]} ... {words[-50:]}"


class ShapeError(OptionError):
    """A tensor has the wrong shape, dtype or device."""


class UnsupportedModel(ZipbrainError, TypeError):
    """A model that has no known seam between attention and feed-forward."""


class MissingExtra(ZipbrainError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'zipbrain[{extra}]'")
        self.package, self.extra, self.purpose = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        return type(self), (self.package, self.extra, self.purpose)


class DataError(ZipbrainError, ValueError):
    """A recording, a label file or a prepared folder that can't be used; the message names the file and what to do."""


class ModelFileError(ZipbrainError, ValueError):
    """An exported file that can't be used; the message names the file and what to do."""
