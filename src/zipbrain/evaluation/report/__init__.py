"""One report of stored results, as HTML that needs nothing else, Markdown, CSV and LaTeX."""

from __future__ import annotations

from zipbrain.evaluation.report.content import Picture, Report, Section, Table, build
from zipbrain.evaluation.report.write import Written, write_report

__all__ = ["Picture", "Report", "Section", "Table", "Written", "build", "write_report"]
