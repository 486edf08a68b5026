"""Fixtures of the tests in this folder."""

from __future__ import annotations

from interpreted import interpreter, launches

__all__ = ["interpreter", "launches"]
