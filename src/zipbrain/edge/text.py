"""Names and texts of files as what they are: words, never bytes that are no text or commands to a terminal."""

from __future__ import annotations


def readable(text: str) -> str:
    """Text that can be written as UTF-8: names of files may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Text in one line that moves no cursor and changes no colour."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
