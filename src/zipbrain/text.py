"""Names and texts from outside as what they are, words: no command to a terminal, a spreadsheet or a browser."""

from __future__ import annotations

import re
from html import escape
from typing import Any, Final

_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # how a spreadsheet's formula begins

_MARKDOWN: Final = re.compile(r"([\\`*_<>|]|\](?=[(\[:]))")


def readable(text: str) -> str:
    """Text that can be written as UTF-8: names of files may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Text in one line that moves no cursor, changes no colour and reads from left to right."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table_cell(value: Any) -> Any:
    """A value for a CSV or TSV file: text in one line, behind a ``'`` where a spreadsheet would run it as a formula."""
    if not isinstance(value, str):
        return value
    words = printable(" ".join(value.split()))
    return f"'{words}" if words.startswith(_FORMULA) and not _is_number(words) else words


def escape_markdown(text: str) -> str:
    """Plain text on one line with Markdown's own characters escaped."""
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))


def html_text(text: str) -> str:
    """Text for a page or an attribute of one, with markup and control characters as words."""
    return escape("\n".join(map(printable, text.split("\n"))))


def _is_number(words: str) -> bool:
    try:
        float(words)
    except ValueError:
        return False
    return True
