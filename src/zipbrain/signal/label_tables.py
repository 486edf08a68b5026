"""Tables of labels from outside: text within bounds, columns by name, seconds as numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError
from zipbrain.signal.recording import PACKED

_LARGEST_TEXT: Final = 1 << 25  # bytes of a table of labels
_MOST_ROWS: Final = 200_000  # of a table
_SHOWN: Final = 300  # characters of column names in an error


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """Read a table with these columns, separated by commas, semicolons or tabs; column names in any case."""
    lines = read_labels(path).splitlines()
    if len(lines) > _MOST_ROWS:
        raise DataError(f"{path}: has more than {_MOST_ROWS:,} rows; split it, with its recordings, into several")
    header = lines[0] if lines else ""
    rows = csv.reader(lines, delimiter=max(",;\t", key=header.count), skipinitialspace=True)
    try:
        names = [name.strip().lower() for name in next(rows, [])]
        missing = [column for column in columns if column not in names]
        if missing:
            there = "".join(letter if letter.isprintable() else "?" for letter in ", ".join(names)[:_SHOWN]) or "none"
            raise DataError(f"{path}: has no column {' and no '.join(missing)}; its columns are {there}")
        twice = [column for column in columns if names.count(column) > 1]
        if twice:
            raise DataError(f"{path}: has {names.count(twice[0])} columns {twice[0]}; keep the one that is meant")
        return [dict(zip(names, (cell.strip() for cell in row), strict=False)) for row in rows if any(row)]
    except csv.Error as error:  # a quotation without end, over the length that a cell may have
        raise DataError(f"{path}: can't be read as a table ({error}); correct its quotation marks") from None


def seconds(text: str | None) -> float | None:
    """A number of seconds; None for an empty cell or n/a. Anything else is a ValueError."""
    if text is None or text.lower() in ("", "n/a", "nan"):
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def read_labels(path: Path) -> str:
    """The text of a file of labels; one that is no text, or too large for one, is a `DataError`."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise DataError(f"{path}: is no file; it must be a table of labels")
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        words = f"can't be read ({getattr(error, 'strerror', None) or error})"
        raise DataError(f"{path}: {words}; it must be a table of labels") from None
    if len(content) > _LARGEST_TEXT:
        raise DataError(f"{path}: has more than {_LARGEST_TEXT >> 20} MB; it must be a table of labels")
    if content.startswith(PACKED):
        raise DataError(f"{path}: is packed, as .gz, .zip and .xlsx files are; unpack it, or save it as CSV in UTF-8")
    if b"\0" in content:
        raise DataError(f"{path}: is no text in UTF-8, as it holds zeros; save it as CSV in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:  # a replacement would make two names one
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: is no text in UTF-8 (line {line}); save it as CSV in UTF-8") from None
