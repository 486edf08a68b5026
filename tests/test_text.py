"""Names from outside in every kind of output: no formula, no terminal command, no markup, the same words everywhere."""

from __future__ import annotations

import ast
import csv
import io
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import zipbrain
from edge import tiny_onnx
from zipbrain.cli.terminal import Console, say
from zipbrain.edge.formats import FORMATS
from zipbrain.edge.predict_batch import RecordingResult, write_table
from zipbrain.edge.prediction import Prediction
from zipbrain.errors import DataError, ModelFileError, OptionError
from zipbrain.evaluation.report.document import Document, Section
from zipbrain.evaluation.report.html import html_page
from zipbrain.evaluation.tables import Table, csv_text, latex
from zipbrain.text import escape_markdown, html_text, printable, table_cell

FORMULAS = ["=cmd|calc!A1", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1dcmd"]
CONTROL = "night\x1b]0;title\x07\x1b[2J\u202e\u2066\x9b31m.edf"


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_word_in_a_table(text: str) -> None:
    assert str(table_cell(text)).startswith("'")
    assert table_cell(f"a {text}") == f"a {' '.join(text.split())}"


def test_numbers_and_plain_names_stay_as_they_are() -> None:
    assert [table_cell(value) for value in (-1.5, 3, None, "-1.5", "+3", "N2", "")] == [
        -1.5, 3, None, "-1.5", "+3", "N2", "",
    ]  # fmt: skip


def test_control_characters_are_shown_as_words() -> None:
    for shown in (
        printable(CONTROL),
        table_cell(CONTROL),
        html_text(CONTROL),
        escape_markdown(CONTROL),
        latex(CONTROL),
    ):
        assert str(shown).isprintable()
        assert "x1b" in str(shown)


@pytest.mark.parametrize("name", ["csv", "bids"])
@pytest.mark.parametrize("bad", [*FORMULAS, CONTROL, "two\nlines", 'quote"s'])
def test_predictions_hold_no_formula_and_no_control_character(name: str, bad: str) -> None:
    about = tiny_onnx.description(classes=(bad, "other"))
    shares = np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32)
    found = Prediction(
        Path("a.edf"), about, "ab", "none", np.array([0.0, 2.0]), shares, ("", ""), 2.0, 6.0, 1.0, datetime(2020, 1, 1)
    )
    content = FORMATS[name].contents(found)[name].decode()
    rows = list(csv.reader(io.StringIO(content), delimiter="," if name == "csv" else "\t"))
    assert len(rows) == 3
    assert [len(row) for row in rows] == [len(rows[0])] * 3
    for cell in (cell for row in rows for cell in row):
        assert cell.isprintable()
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))


def test_the_table_of_recordings_and_of_results_hold_none_either(tmp_path: Path) -> None:
    bad = RecordingResult(Path("=cmd|calc!A1.edf"), "failed", {}, {}, "@error \x1b[2J")
    rows = list(csv.reader(io.StringIO(write_table([bad], tmp_path).read_text())))
    assert (rows[1][0], rows[1][-1]) == ("'=cmd|calc!A1.edf", r"'@error \x1b[2J")
    assert csv_text([{"=a": ["=1", 2], "b": "-x\x1b"}]) == "'=a,b\n'=1 2,'-x\\x1b\n"


def test_a_page_shows_markup_and_control_characters_as_words() -> None:
    bad = f"<script>alert(1)</script>\"' {CONTROL}"
    table = Table.of(bad, (bad, "n"), [(bad, "1")])
    page = html_page(Document(bad, [bad], [bad], [Section(bad, text=[bad], tables=[table])]))
    assert page.count("<script") == 1  # our own
    assert all(line.isprintable() for line in page.split("\n"))


@pytest.mark.parametrize("kind", [DataError, ModelFileError, zipbrain.errors.ZipbrainError])
def test_an_error_is_one_printable_line_whatever_it_names(kind: type[Exception]) -> None:
    assert str(kind(f"{CONTROL}: can't be read\nat all")).isprintable()
    assert str(OptionError(CONTROL, CONTROL, CONTROL)).isprintable()


def test_a_console_shows_no_control_character_of_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"model {CONTROL}\nsecond line")
    Console().print(Table.of(CONTROL, (CONTROL, "b"), [(CONTROL, "1")]).to_rich(), soft_wrap=True)
    Console().print(f"[bold]{CONTROL}", style="red")
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "second line" in shown.split("\n")
    styled = Console(force_terminal=True, color_system="standard", file=io.StringIO())
    styled.print("words", style="red")
    assert styled.file.getvalue() == "\x1b[31mwords\x1b[0m\n"  # type: ignore[attr-defined]


def test_every_command_writes_through_that_console() -> None:
    home = Path(zipbrain.__file__).parent / "cli"
    for path in home.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and path.name != "terminal.py":
                assert node.module != "rich.console" or "Console" not in [one.name for one in node.names], path.name
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                words = ast.unparse(node.args[0])
                assert words.startswith(
                    ("json.dumps", "printable", "__version__", "context.get_help", "archive_json", "TEMPLATE")
                ), f"{path.name}: {words}"
