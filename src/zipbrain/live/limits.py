"""Limits of the numbers that a session is given: finite, and such that its samples can be counted."""

from __future__ import annotations

from typing import Final

from zipbrain.errors import OptionError
from zipbrain.numerals import finite_number

LONGEST_S: Final = 1e9  # seconds of a stream or of a hop: thirty years


def check_seconds(name: str, seconds: float) -> float:
    """The seconds of an option; refused if they are none, or more than a stream can have."""
    if not 0 <= finite_number(name, seconds) <= LONGEST_S:
        raise OptionError(name, seconds, f"it must be a number of seconds from 0 to {LONGEST_S:g}")
    return seconds


def check_days(name: str, days: float) -> float:
    """The days of an option; refused if they are no number of at least 0."""
    if finite_number(name, days) < 0:
        raise OptionError(name, days, "it must be a number of days, 0 or more")
    return days
