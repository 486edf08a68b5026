"""Refusals: every error zipbrain raises on purpose, each one line that says what was wrong and what to do."""

from __future__ import annotations

from zipbrain.text import printable


class ZipbrainError(Exception):
    """Base class of all errors raised on purpose by zipbrain; its text is one line, whatever names are in it."""

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


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
        super().__init__(f"{name}: got {given!r}, but {allowed}")
        self.name, self.given, self.allowed = name, given, allowed

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.name, self.given, self.allowed)


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
