"""Results that version 0.1.0 stored are read, and give the tables that it wrote of them (tests/evaluation/stored)."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from zipbrain.evaluation import Store, write_report
from zipbrain.evaluation.result import Result, results_of

STORED = Path(__file__).parent / "stored"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert write_report(STORED, out).records == 28
    return out


def markdown_tables(text: str) -> list[list[dict[str, str]]]:
    """Every pipe table as rows by column, whatever its columns' order."""
    tables: list[list[dict[str, str]]] = []
    heads: list[str] = []
    for line in text.replace("–", "-").splitlines():
        cells = [cell.strip().replace("\\", "") for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heads = []
        elif not heads:
            heads = cells
            tables.append([])
        elif not set("".join(cells)) <= {"-", ":"}:
            tables[-1].append(dict(zip(heads, cells, strict=True)))
    return tables


def test_the_csv_file_has_the_same_values(written: Path) -> None:
    texts = ((folder / "report.csv").read_text(encoding="utf-8") for folder in (STORED, written))
    old, new = ([*csv.DictReader(io.StringIO(text))] for text in texts)
    assert new == old


HEADS = {"same decision": "decisions unchanged", "interval": "95 % interval"}
OPTIONS = {"-": "-", "not recorded": "unknown", "not recorded (default options)": "the defaults"}


def in_words_of_today(row: dict[str, str]) -> dict[str, str]:
    """A row as it is said now: times as fast in place of latencies, ratios in per cent."""
    said = {}
    for head, cell in row.items():
        value, is_none = cell.removesuffix(" %"), cell == "-"
        if head == "recipe chosen on":
            said["options"] = OPTIONS.get(cell, f"chosen on {cell}")
        elif head == "ratio asked":
            said["asked"] = cell if is_none else "maximum" if cell == "max" else f"{100 * float(cell):g} %"
        elif head == "latency":
            said["times as fast"] = cell if is_none else f"{100 / float(value):.2f}"
        elif head == "token load":
            said[head] = cell if is_none else f"{float(value):.0f} %"
        else:
            said[HEADS.get(head, head)] = cell
    return said


def joined(tables: list[list[dict[str, str]]]) -> list[list[dict[str, str]]]:
    """A table of further scores as more columns of the one before it."""
    found: list[list[dict[str, str]]] = []
    for rows in tables:
        if "logit error" in rows[0]:
            found[-1] = [first | more for first, more in zip(found[-1], rows, strict=True)]
        else:
            found.append(rows)
    return found


def test_the_tables_have_the_same_cells(written: Path) -> None:
    old, new = (markdown_tables((folder / "report.md").read_text(encoding="utf-8")) for folder in (STORED, written))
    assert len(old) >= 3
    for row in (row for rows in old for row in rows if row.get("method", "").startswith(("EViT", "ToFu"))):
        row["recipe chosen on"] = "not recorded"  # their defaults were others then
    assert joined(new) == [[in_words_of_today(row) for row in rows] for rows in old]


def test_a_stored_record_is_a_result_and_back() -> None:
    records = Store(STORED).records()
    results, remarks = results_of(records)
    assert remarks == []
    for record, result in zip(records, results, strict=True):
        if record["kind"] not in ("latency", "flops"):
            assert Result.of(result.to_record()) == result
            assert result.to_record().keys() >= record.keys()
