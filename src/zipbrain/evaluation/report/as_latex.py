"""The tables of a report for LaTeX, with booktabs."""

from __future__ import annotations

from zipbrain.evaluation.report.content import Report, Section, Table
from zipbrain.evaluation.tables import latex


def as_latex(report: Report) -> str:
    """All tables, one after the other, to be read with ``\\input``; needs booktabs and graphicx."""
    lines = [r"% needs \usepackage{booktabs} and \usepackage{graphicx}", *_comments(report.warnings)]
    for section in report.sections:
        lines += _section(section, section.title)
    return "\n".join(lines) + "\n"


def _section(section: Section, path: str) -> list[str]:
    lines = [*_comments([path]), *_comments(section.warnings)] if section.tables or section.warnings else []
    for table in section.tables:
        lines += _table(table, path, section.warnings)
    for part in section.inside:
        lines += _section(part, f"{path}: {part.title}")
    return lines


def _comments(text: list[str]) -> list[str]:
    return [f"% {' '.join(line.split())}" for line in text]


def _table(table: Table, path: str, warnings: list[str]) -> list[str]:
    layout = "l" * table.words + "r" * (len(table.columns) - table.words)
    rows = [f"    {' & '.join(map(latex, row))} \\\\" for row in (table.columns, *table.rows)]
    caption = latex(" ".join([f"{path}.", table.caption, *warnings]))
    return [
        r"\begin{table}[ht]", r"  \centering", r"  \resizebox{\linewidth}{!}{%", rf"  \begin{{tabular}}{{{layout}}}",
        r"    \toprule", rows[0], r"    \midrule", *rows[1:], r"    \bottomrule", r"  \end{tabular}}",
        rf"  \caption{{{caption}}}", rf"  \label{{tab:{table.name}}}", r"\end{table}", "",
    ]  # fmt: skip
