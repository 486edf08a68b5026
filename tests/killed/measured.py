"""The one list of fields that are measured times or dates, and a folder's content without them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any, Final

# Names of fields (JSON, state files) and of columns (CSV, Markdown, LaTeX).
MEASURED: Final = frozenset(
    {
        "seconds",  # prepare: report.json; finetune: log.csv and state.pt; compare, search: results.jsonl
        "seconds_per_epoch",  # finetune: run.json
        "times_real_time",  # predict: summary and table
        "latency",  # compare: results.jsonl
        "latency_seconds",  # compare: compare.csv
        "latency_original_seconds",
        "latency_to_original",
        "latency_to_slicing",
        "time to original",  # compare: compare.md and compare.tex
        "time to slicing",
        "state.pt",  # finetune: its hash in sha256.json, since it holds "seconds"
    }
)
# How lines of a document begin that say what was measured in words.
MEASURED_LINES: Final = ("- Which to use:", "% Which to use:")  # compare.md and compare.tex


def content_of(folder: Path) -> dict[str, Any]:
    """Every file and folder below a folder by its path; measured fields are left out, other files are hashes."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = "folder" if path.is_dir() else _READERS.get(path.suffix, _hash)(path)
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Paths that only one of two folders holds, or whose contents differ."""
    alone = [f"only here: {name}" for name in sorted(one.keys() - other.keys())]
    alone += [f"missing: {name}" for name in sorted(other.keys() - one.keys())]
    return alone + [f"differs: {name}" for name in sorted(one.keys() & other.keys()) if one[name] != other[name]]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_times(value: Any) -> Any:
    """The same content without measured fields, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in MEASURED}
    if isinstance(value, list | tuple):
        return [without_times(inner) for inner in value]
    return value


def _json(path: Path) -> str:
    return json.dumps(without_times(json.loads(path.read_text())))


def _json_lines(path: Path) -> list[str]:
    return [json.dumps(without_times(json.loads(line))) for line in path.read_text().splitlines()]


def _csv(path: Path) -> list[list[str]]:
    return _without_columns(list(csv.reader(io.StringIO(path.read_text()))))


def _without_columns(rows: list[list[str]]) -> list[list[str]]:
    """Rows without the columns whose head, in the first row, is a measured one."""
    timed = {place for place, name in enumerate(rows[0] if rows else ()) if name.strip() in MEASURED}
    return [[cell for place, cell in enumerate(row) if place not in timed] for row in rows]


def _table_text(path: Path) -> list[Any]:
    """Lines of a document; those of a table as cells, without measured columns."""
    found: list[Any] = []
    table: list[list[str]] = []
    lines = [line for line in path.read_text().splitlines() if not line.startswith(MEASURED_LINES)]
    for line in [*lines, ""]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)[|&]", line.removesuffix(r"\\"))]
        if len(cells) > 1:
            table.append(cells)
        elif table and not line.startswith(("\\midrule", "\\multicolumn")):
            found += [*_without_columns(table), line]
            table = []
        else:
            found.append(line)
    return found


def _state(path: Path) -> str:
    """A state file of finetune, as torch reads it, without measured fields."""
    import torch

    state = without_times(torch.load(path, map_location="cpu", weights_only=True))
    digest = hashlib.sha256()
    _feed(digest, state)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            digest.update(repr(name).encode())
            _feed(digest, inner)
    elif isinstance(value, list):
        for inner in value:
            _feed(digest, inner)
    else:
        digest.update(value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode())


_READERS: Final = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".md": _table_text,
    ".tex": _table_text,
    ".pt": _state,
}
