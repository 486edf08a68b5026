"""Where figures and documentation lie, and how rows get there: CSV, JSON beside it, tables between markers."""

from __future__ import annotations

import csv
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
DEMO = ROOT / "src" / "zipbrain" / "demo_model"


def write_csv(name: str, rows: Sequence[Mapping[str, Any]], folder: Path = RESULTS) -> Path:
    """Write rows as NAME.csv; the first row names the columns."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(name: str, content: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write what goes with the rows, such as machine and versions, as NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def read_csv(name: str, folder: Path = RESULTS) -> list[dict[str, str]]:
    """The stored rows of NAME.csv."""
    with (folder / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def cpu_name() -> str:
    """The processor's name, as Linux gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def tables_of(text: str) -> dict[str, str]:
    """What a page has between its markers, by name."""
    return dict(re.findall(r"<!-- table: (.+?) -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL))


def page_with(name: str, folder: Path = DOCS) -> Path:
    """The one page below a folder, or the README beside it, that has a place for a table."""
    found = [page for page in (folder.parent / "README.md", *sorted(folder.rglob("*.md"))) if page.is_file()]
    pages = [page for page in found if f"<!-- table: {name} -->\n" in page.read_text()]
    if len(pages) != 1:
        raise SystemExit(f"the table {name} has a place on {len(pages)} pages of {folder}: one must have its markers")
    return pages[0]


def shown_table(name: str) -> str:
    """What the documentation shows between the markers of a table."""
    return tables_of(page_with(name).read_text())[name]


def fill(wanted: Mapping[str, Callable[[], str]], folder: Path = DOCS) -> None:
    """Write every table between its markers, whichever page has them."""
    for name, make in wanted.items():
        page = page_with(name, folder)
        before, start, rest = page.read_text().partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(f"{page.name} has no end of the table {name}")
        page.write_text(f"{before}{start}\n{make()}\n\n{end}{after}")
