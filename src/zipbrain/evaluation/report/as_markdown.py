"""A report as Markdown, with its pictures in a folder beside it."""

from __future__ import annotations

import re

from zipbrain.evaluation.report.content import Report, Section, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def as_markdown(report: Report, folder: str) -> str:
    """The whole page; pictures are named by their path in `folder`."""
    lines = [f"# {_escape(report.title)}", "", *_sentences(report.text, report.warnings)]
    for section in report.sections:
        lines += _section(section, 2, folder)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, level: int, folder: str) -> list[str]:
    lines = [f"{'#' * level} {_escape(section.title)}", "", *_sentences(section.text, section.warnings)]
    for table in section.tables:
        lines += [*_table(table), "", _escape(table.caption), ""]
    for picture in section.pictures:
        lines += [
            f"![{_escape(picture.alt)}]({folder}/{picture.name}.{picture.kind})",
            "",
            _escape(picture.caption),
            "",
        ]
    for part in section.inside:
        lines += _section(part, level + 1, folder)
    return lines


def _sentences(text: list[str], warnings: list[str]) -> list[str]:
    lines = []
    for line in [*map(_escape, text), *(f"> **Note.** {_escape(line)}" for line in warnings)]:
        lines += [line, ""]
    return lines


def _table(table: Table) -> list[str]:
    ruler = ["---" if place < table.words else "--:" for place in range(len(table.columns))]
    rows = [[_escape(value) for value in row] for row in (table.columns, *table.rows)]
    return [f"| {' | '.join(row)} |" for row in (rows[0], ruler, *rows[1:])]


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
