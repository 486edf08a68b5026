"""A table of results, once: shown in a terminal by rich, written as Markdown or LaTeX; and rows of values as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.wording import NOTHING, head_text
from zipbrain.text import escape_markdown, printable, table_cell

if TYPE_CHECKING:
    from rich.table import Table as RichTable

TASK: Final = ("checkpoint", "model", "dataset", "split", "windows", "subjects")  # columns of every CSV file

_WIDE: Final = 9  # columns that fit on a page; a LaTeX table with more is scaled

_LATEX: Final = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"→": r"$\to$", "×": r"$\times$", "±": r"$\pm$", "†": r"$^\dagger$", "ρ": r"$\rho$", "<": r"$<$", ">": r"$>$"},
}


@dataclass(frozen=True)
class Row:
    """A label and one text per column."""

    cells: tuple[str, ...]
    quiet: bool = False  # belongs to the row above it (an interval, a paper's value): shown dim
    best: frozenset[int] = frozenset()  # cells that are the best of their column in their group: shown bold


@dataclass(frozen=True)
class Group:
    """Rows that belong together, with a heading or none."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table, ready to be shown in any form."""

    title: str
    columns: tuple[str, ...]  # heads; a line break in one is kept in a terminal and is a space elsewhere
    groups: tuple[Group, ...]
    words: int = 1  # columns that hold words, which stand on the left; the others hold numbers
    name: str = ""  # for a reference to it

    @classmethod
    def of(
        cls, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1, name: str = ""
    ) -> Table:
        """A table of plain rows in one group."""
        return cls(title, tuple(columns), (Group("", tuple(Row(tuple(row)) for row in rows)),), words, name)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The cells of all rows."""
        return tuple(row.cells for group in self.groups for row in group.rows)

    def to_rich(self) -> RichTable:
        """For a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            box=SIMPLE_HEAD, title=self.title, title_justify="left", collapse_padding=True, pad_edge=False
        )
        for number, head in enumerate(self.columns):
            table.add_column(head, justify="left" if number < self.words else "right", vertical="bottom")
        for group in self.groups:
            if group.heading:
                table.add_row(Text(group.heading, style="bold cyan"))
            for row in group.rows:
                style = "dim" if row.quiet else ""
                cells = (Text(printable(c), style="bold" if i in row.best else style) for i, c in enumerate(row.cells))
                table.add_row(*cells)
            if group is not self.groups[-1]:
                table.add_section()
        return table

    def to_markdown(self) -> str:
        """A pipe table without its title; the heading of a group stands in the first column."""
        grouped = ["Ratio"] if any(group.heading for group in self.groups) else []
        sides = [":--"] * (self.words + len(grouped)) + ["--:"] * (len(self.columns) - self.words)
        lines = [_pipes([*grouped, *map(head_text, self.columns)]), _pipes(sides)]
        for group in self.groups:
            for row in group.rows:
                cells = [escape_markdown(cell) for cell in row.cells]
                cells = [f"**{c}**" if i in row.best else c for i, c in enumerate(cells)]
                cells = [f"*{c}*" if row.quiet and c else c for c in cells]
                lines.append(_pipes([*([group.heading] if grouped else []), *cells]))
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A table in the paper's layout; needs the package booktabs, and graphicx for a wide one."""
        form = "l" * self.words + "r" * (len(self.columns) - self.words)
        scaled = len(self.columns) > _WIDE
        lines = [r"\begin{table}", r"\centering", *([r"\resizebox{\linewidth}{!}{%"] if scaled else [])]
        heads = " & ".join(latex(head_text(head)) for head in self.columns)
        lines += [rf"\begin{{tabular}}{{{form}}}", r"\toprule", rf"{heads} \\"]
        for group in self.groups:
            lines.append(r"\midrule")
            if group.heading:
                lines.append(rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{latex(group.heading)}}}}} \\")
            for row in group.rows:
                cells = [latex(cell) for cell in row.cells]
                cells = [rf"\textbf{{{c}}}" if i in row.best else c for i, c in enumerate(cells)]
                cells = [rf"{{\footnotesize {c}}}" if row.quiet and c else c for c in cells]
                lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}" + "}" * scaled, rf"\caption{{{latex(self.title)}}}"]
        lines += [rf"\label{{tab:{self.name}}}"] if self.name else []
        return "\n".join([*lines, r"\end{table}"]) + "\n"


class Tabled:
    """Base of what has tables, notes and flat rows: written as Markdown, LaTeX and CSV."""

    notes: list[str]

    def tables(self) -> list[Table]:
        """The tables."""
        raise NotImplementedError

    def flat_rows(self) -> list[dict[str, Any]]:
        """Everything that is known, one line each."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON (NaN where a number is undefined)."""
        raise NotImplementedError

    def to_markdown(self) -> str:
        """The tables and the notes."""
        return markdown_of(self.tables(), self.notes)

    def to_latex(self) -> str:
        """The tables but those of words, in the paper's layout (booktabs), with the notes as comments."""
        return latex_of([table for table in self.tables() if table.words == 1], self.notes)

    def to_csv(self) -> str:
        """One line per row, with everything that is known about it."""
        return csv_text(self.flat_rows())


def markdown_of(tables: Iterable[Table], notes: Iterable[str]) -> str:
    """Tables under their titles, then the notes as a list."""
    items = [f"- \\{note}" if note[:1] in "*+-" else f"- {note}" for note in notes]
    return "\n".join([*(f"**{table.title}**\n\n{table.to_markdown()}" for table in tables), *items, ""])


def latex_of(tables: Iterable[Table], notes: Iterable[str]) -> str:
    """The notes as comments, then the tables."""
    return "\n".join([*(f"% {_one_line(note)}" for note in notes), *(table.to_latex() for table in tables)])


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the union of their columns; None and NaN are empty, lists are joined by spaces."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(table_cell, columns))
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def number(value: float | None, form: str = ".4f") -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None or math.isnan(value) else format(value, form)


def interval(pair: Sequence[float] | None) -> str:
    """``[.612 .701]``, or a dash."""
    if pair is None or any(value is None or math.isnan(value) for value in pair):
        return NOTHING
    return "[" + " ".join(_short(value) for value in pair) + "]"


def best_of(column: Iterable[float | None], larger_is_better: bool = True) -> set[int]:
    """Places of the best number (all of them, if tied to four digits); none among fewer than two."""
    values = [(place, round(v, 4)) for place, v in enumerate(column) if v is not None and not math.isnan(v)]
    top = (max if larger_is_better else min)((value for _, value in values), default=0.0)
    return {place for place, value in values if value == top} if len(values) > 1 else set()


def latex(text: str) -> str:
    """Plain text with LaTeX's own characters escaped; leading blanks become an indent."""
    text = printable(text)
    stripped = text.lstrip(" ")
    indent = r"\quad " if len(stripped) < len(text) and stripped else ""
    return indent + "".join(_LATEX.get(character, character) for character in stripped)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.2f}"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Any) -> Any:
    """A value for a CSV file."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple):
        return table_cell(" ".join(map(str, value)))
    return table_cell(value)
