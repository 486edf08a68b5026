"""What a report says: sections of sentences, tables and pictures, the same for every format."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zipbrain import __version__
from zipbrain.evaluation.plots.reading import Record
from zipbrain.evaluation.plots.style import matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """Rows of ready-made text; the first `words` columns hold words, the others numbers."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of a file, with its name (no suffix), caption and a text for those who can't see it."""

    name: str
    content: bytes
    kind: str
    caption: str
    alt: str

    @classmethod
    def of(cls, figure: Figure, name: str, caption: str, alt: str, kind: str = "svg") -> Picture:
        """Render a figure as ``"svg"`` or ``"png"``; equal figures give equal bytes."""
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with matplotlib().rc_context({"svg.hashsalt": "zipbrain", "text.parse_math": False}):
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
        return cls(name, buffer.getvalue(), kind, caption, alt)


@dataclass
class Section:
    """A heading, sentences, warnings, tables, pictures, and sections inside it."""

    title: str
    text: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    inside: list[Section] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.text or self.warnings or self.tables or self.pictures or self.inside)


@dataclass
class Report:
    """A title, sentences and warnings about the whole, and a section for each task."""

    title: str
    text: list[str]
    warnings: list[str]
    sections: list[Section]


def build(records: Sequence[Record], remarks: Sequence[str] = (), more: Sequence[Section] = ()) -> Report:
    """Make a report of stored records.

    Parameters
    ----------
    records : sequence of dict
        Of a `Store`.
    remarks : sequence of str
        What the store says about its file.
    more : sequence of Section
        Sections to put behind those of the records, such as pictures of an example window.
    """
    from zipbrain.evaluation.report.merge_records import joined, tasks_of
    from zipbrain.evaluation.report.sections import task_section

    groups = [(name, joined(own)) for name, own in tasks_of(records)]
    tasks = f"{len(groups)} task{'s' * (len(groups) != 1)}"
    unscored = [f"{name}: only costs are stored, no scores" for name, own in groups if not own]
    text = [f"{len(records)} stored results of {tasks}. Made by zipbrain {__version__}."]
    sections = [task_section(name, own, number) for number, (name, own) in enumerate(groups, 1) if own]
    return Report(
        "zipbrain report", text, [*remarks, *unscored], [*sections, *(part for part in more if not part.empty)]
    )
