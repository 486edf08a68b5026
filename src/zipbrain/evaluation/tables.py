"""A table of results, once: shown in a terminal by rich, written as Markdown or LaTeX, its raw rows as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

NAMES: Final = {
    "accuracy": "Acc",
    "balanced_accuracy": "BAcc",
    "auroc": "AUROC",
    "pr_auc": "PR-AUC",
    "kappa": "Kappa",
    "weighted_f1": "W-F1",
}
NOTHING: Final = "-"
TASK: Final = ("checkpoint", "model", "dataset", "split", "windows", "subjects")  # columns of every CSV file

_ORDER: Final = ("auroc", "pr_auc", "kappa", "weighted_f1", "accuracy", "balanced_accuracy")  # the paper's tables

_LATEX: Final = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "→": r"$\to$", "×": r"$\times$", "±": r"$\pm$",
    "†": r"$^\dagger$", "ρ": r"$\rho$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One row: a label and one text per column.

    Attributes
    ----------
    cells : tuple of str
        The label first.
    quiet : bool
        Belongs to the row above it (an interval, a paper's value): shown dim.
    best : frozenset of int
        Cells that are the best of their column in their section: shown bold.
    """

    cells: tuple[str, ...]
    quiet: bool = False
    best: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """Rows that belong together, with a heading or none."""

    heading: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Grid:
    """A table, ready to be shown in any form.

    Attributes
    ----------
    title : str
    columns : tuple of str
        Heads; a line break in one is kept in a terminal and is a space elsewhere.
    sections : tuple of Section
    left : frozenset of int
        Columns whose texts stand on the left; the others on the right.
    """

    title: str
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    left: frozenset[int] = field(default=frozenset({0}))

    def to_rich(self) -> Table:
        """For a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, title=self.title, title_justify="left", collapse_padding=True, pad_edge=False)
        for number, head in enumerate(self.columns):
            table.add_column(head, justify="left" if number in self.left else "right", vertical="bottom")
        for section in self.sections:
            if section.heading:
                table.add_row(Text(section.heading, style="bold cyan"))
            for line in section.lines:
                style = "dim" if line.quiet else ""
                cells = (Text(c, style="bold" if i in line.best else style) for i, c in enumerate(line.cells))
                table.add_row(*cells)
            if section is not self.sections[-1]:
                table.add_section()
        return table

    def to_markdown(self) -> str:
        """A pipe table under its title; the section stands in the first column."""
        grouped = any(section.heading for section in self.sections)
        heads = [*(["Ratio"] if grouped else []), *(head.replace("\n", " ") for head in self.columns)]
        sides = [*([":--"] if grouped else []), *(":--" if i in self.left else "--:" for i in range(len(self.columns)))]
        lines = [f"**{self.title}**", "", _pipes(heads), _pipes(sides)]
        for section in self.sections:
            for line in section.lines:
                cells = [c.strip().replace("*", r"\*") for c in line.cells]
                cells = [f"**{c}**" if i in line.best else c for i, c in enumerate(cells)]
                cells = [f"*{c}*" if line.quiet and c else c for c in cells]
                lines.append(_pipes([*([section.heading] if grouped else []), *cells]))
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A table in the paper's layout; needs the package booktabs."""
        form = "".join("l" if i in self.left else "r" for i in range(len(self.columns)))
        heads = " & ".join(latex(head.replace("\n", " ")) for head in self.columns)
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{form}}}", r"\toprule", rf"{heads} \\"]
        for section in self.sections:
            lines.append(r"\midrule")
            if section.heading:
                lines.append(rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{latex(section.heading)}}}}} \\")
            for line in section.lines:
                cells = [latex(cell) for cell in line.cells]
                cells = [rf"\textbf{{{c}}}" if i in line.best else c for i, c in enumerate(cells)]
                cells = [rf"{{\footnotesize {c}}}" if line.quiet and c else c for c in cells]
                lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{latex(self.title)}}}", r"\end{table}"]
        return "\n".join(lines) + "\n"


def in_order(scores: Iterable[str]) -> list[str]:
    """The metrics that there are, in the order of the paper's columns."""
    held = set(scores)
    return [name for name in _ORDER if name in held]


def markdown_of(grids: Iterable[Grid], notes: Iterable[str]) -> str:
    """Tables, then the notes as a list."""
    items = [f"- \\{note}" if note[:1] in "*+-" else f"- {note}" for note in notes]
    return "\n".join([*(grid.to_markdown() for grid in grids), *items, ""])


def latex_of(grids: Iterable[Grid], notes: Iterable[str]) -> str:
    """The notes as comments, then the tables."""
    return "\n".join([*(f"% {note}" for note in notes), *(grid.to_latex() for grid in grids)])


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the union of their columns; None and NaN are empty, lists are joined by spaces."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_plain(row.get(name)) for name in columns])
    return out.getvalue()


def number(value: float | None, form: str = ".4f") -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None or math.isnan(value) else format(value, form)


def interval(pair: Sequence[float] | None) -> str:
    """``[.612 .701]``, or a dash."""
    if pair is None or any(value is None or math.isnan(value) for value in pair):
        return NOTHING
    return "[" + " ".join(_short(value) for value in pair) + "]"


def best_of(column: Iterable[float | None]) -> set[int]:
    """Places of the largest number (all of them, if tied to four digits); none among fewer than two."""
    values = [(place, round(v, 4)) for place, v in enumerate(column) if v is not None and not math.isnan(v)]
    top = max((value for _, value in values), default=0.0)
    return {place for place, value in values if value == top} if len(values) > 1 else set()


def latex(text: str) -> str:
    """Plain text with LaTeX's own characters escaped; leading blanks become an indent."""
    stripped = text.lstrip(" ")
    indent = r"\quad " if len(stripped) < len(text) and stripped else ""
    return indent + "".join(_LATEX.get(character, character) for character in stripped)


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.2f}"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
