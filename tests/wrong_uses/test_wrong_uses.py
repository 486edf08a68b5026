"""No wrong use is silent or ends in a traceback, and the documentation shows what is said to each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.shared.results import shown_table
from tests.wrong_uses import WRONG_USES, WrongUse, answer_to, table


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


SHOWN = shown_table("wrong uses")


@pytest.mark.parametrize("use", WRONG_USES, ids=lambda use: use.name)
def test_a_wrong_use_is_said_as_the_documentation_shows_it(use: WrongUse, tmp_path: Path) -> None:
    answer = answer_to(use, tmp_path)
    assert answer.words, "nothing was said"
    assert answer.way in ("refused", "warned", "said", "exit 1", "exit 2")
    row = table({one.name: answer for one in WRONG_USES}).splitlines()[2 + WRONG_USES.index(use)]
    assert row in SHOWN.splitlines(), "run `python -m tests.wrong_uses`"


def test_the_table_has_every_wrong_use_once() -> None:
    titles = [cells[1] for cells in rows(SHOWN)]
    assert sorted(titles) == sorted(use.title for use in WRONG_USES)
    assert len(set(titles)) == len(titles)
