"""Tables: numbers and intervals as texts, the best of a column, escapes of Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math

import pytest

from zipbrain.evaluation.tables import Group, Row, Table, best_of, csv_text, interval, latex, number
from zipbrain.metrics import in_order


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ((0.6123, 0.7014), "[.612 .701]"),
        ((-0.0123, 0.5), "[-.012 .500]"),
        ((0.95, 1.0), "[.950 1.00]"),
        ((0.9996, 1.0), "[1.00 1.00]"),
        ((math.nan, 1.0), "-"),
        (None, "-"),
    ],
)
def test_intervals_are_short(pair: tuple[float, float] | None, text: str) -> None:
    assert interval(pair) == text


def test_what_is_missing_is_a_dash() -> None:
    assert [number(None), number(math.nan), number(0.12345), number(-0.1, "+.1f")] == ["-", "-", "0.1235", "-0.1"]


def test_the_best_are_all_that_are_equal_to_four_digits_and_none_alone() -> None:
    assert best_of([0.1, 0.30001, 0.29999, math.nan, None]) == {1, 2}
    assert best_of([-0.3, -0.2]) == {1}
    assert best_of([0.1, math.nan]) == set()


def test_metrics_stand_in_the_papers_order() -> None:
    assert in_order(["accuracy", "kappa", "auroc"]) == ["auroc", "kappa", "accuracy"]


def test_every_form_escapes_what_is_special_to_it() -> None:
    row = Row(("ToMe*", "5 % & more_", "a|b"), best=frozenset({1}))
    below = Row(("  95 %", "", "†"), quiet=True)
    grid = Table("T_1", ("Method", "two\nlines", "c"), (Group("80 %", (row, below)),))
    text = grid.to_markdown()
    assert r"| 80 % | ToMe\* | **5 % & more\_** | a\|b |" in text
    assert "| 80 % | *95 %* |  | *†* |" in text
    assert "two lines" in text
    tex = grid.to_latex()
    assert r"ToMe* & \textbf{5 \% \& more\_} & a|b \\" in tex
    assert r"{\footnotesize \quad 95 \%} &  & {\footnotesize $^\dagger$} \\" in tex
    assert r"\multicolumn{3}{l}{\textit{80 \%}} \\" in tex
    assert r"\caption{T\_1}" in tex
    assert latex("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"


def test_csv_has_the_union_of_columns_and_empty_cells() -> None:
    text = csv_text([{"a": 1, "b": math.nan}, {"a": 'say "x", y', "c": (1, 2)}, {"b": None}])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["a"] for row in rows] == ["1", 'say "x", y', ""]
    assert [row["b"] for row in rows] == ["", "", ""]
    assert rows[1]["c"] == "1 2"
