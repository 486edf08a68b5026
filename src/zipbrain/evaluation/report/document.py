"""A report as a document: sections of sentences, tables and pictures, written as Markdown and LaTeX."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zipbrain.evaluation.plots.style import matplotlib
from zipbrain.evaluation.tables import Table, latex_of
from zipbrain.text import escape_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of a file, with its name (no suffix), its caption and a text in place of it."""

    name: str
    content: bytes
    kind: str
    caption: str
    alt: str
    is_small: bool = False  # stands beside several others

    @classmethod
    def of(
        cls, figure: Figure, name: str, caption: str, alt: str, kind: str = "svg", *, is_small: bool = False
    ) -> Picture:
        """Render a figure as ``"svg"`` or ``"png"``; equal figures give equal bytes."""
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with matplotlib().rc_context({"svg.hashsalt": "zipbrain", "text.parse_math": False}):
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
        return cls(name, buffer.getvalue(), kind, caption, alt, is_small)


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
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        return not (self.text or self.warnings or self.tables or self.pictures or self.inside)


@dataclass
class Document:
    """A title, sentences and warnings about the whole, a section for each task, and the verdict of each task."""

    title: str
    text: list[str]
    warnings: list[str]
    sections: list[Section]
    headline: list[str] = field(default_factory=list)

    def parts(self) -> Iterator[tuple[tuple[str, ...], Section]]:
        """All sections from top to bottom, each with the titles that lead to it, its own last."""
        yield from _parts(self.sections, ())

    def to_markdown(self, folder: str) -> str:
        """The whole page; pictures are named by their path in `folder`."""
        lines = [f"# {escape_markdown(self.title)}", *(f"**{escape_markdown(line)}**" for line in self.headline)]
        lines += _sentences(self.text, self.warnings)
        for path, section in self.parts():
            lines += [f"#{'#' * len(path)} {escape_markdown(section.title)}"]
            lines += _sentences(section.text, section.warnings)
            for table in section.tables:
                lines += [table.to_markdown().rstrip(), escape_markdown(table.title)]
            for picture in section.pictures:
                place = f"{folder}/{picture.name}.{picture.kind}"
                lines += [f"![{escape_markdown(picture.alt)}]({place})", escape_markdown(picture.caption)]
        return "\n\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """All tables, one after the other, to be read with ``\\input``; needs booktabs and graphicx."""
        text = latex_of([], [r"needs \usepackage{booktabs} and \usepackage{graphicx}", *self.warnings]) + "\n"
        for path, section in self.parts():
            if section.tables or section.warnings:
                name = ": ".join(path)
                titles = (" ".join([f"{name}.", table.title, *section.warnings]) for table in section.tables)
                tables = [replace(table, title=title) for table, title in zip(section.tables, titles, strict=True)]
                text += latex_of(tables, [name, *section.warnings]) + "\n"
        return text


def _parts(sections: list[Section], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Section]]:
    for section in sections:
        here = (*path, section.title)
        yield here, section
        yield from _parts(section.inside, here)


def _sentences(text: list[str], warnings: list[str]) -> list[str]:
    return [*map(escape_markdown, text), *(f"> **Note.** {escape_markdown(line)}" for line in warnings)]
