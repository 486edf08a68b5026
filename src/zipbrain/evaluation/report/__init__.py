"""One report of stored results, as HTML that needs nothing else, Markdown, CSV and LaTeX."""

from __future__ import annotations

from zipbrain.evaluation.report.document import Document, Picture, Section
from zipbrain.evaluation.report.write import Written, build, write_report

__all__ = ["Document", "Picture", "Section", "Written", "build", "write_report"]
