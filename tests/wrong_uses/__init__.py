"""Wrong uses of zipbrain and what it says to each.

A file per area; each function decorated with `wrong_use` commits one mistake in an empty folder. It speaks in one of
four ways: a refusal (an error of zipbrain is raised), a warning, a failed command (`return command(...)`), or words
that it printed (the function returns them). `python -m tests.wrong_uses` writes the documentation's table.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zipbrain.cli import main
from zipbrain.errors import ZipbrainError

Mistake = Callable[[Path], object]


@dataclass(frozen=True)
class WrongUse:
    """One mistake of a user, in a few words, and the code that makes it."""

    area: str
    title: str
    commit: Mistake

    @property
    def name(self) -> str:
        return f"{self.area}-{self.commit.__name__}"


@dataclass(frozen=True)
class Answer:
    """What zipbrain said, and how: `refused`, `warned`, `exit 1`, `exit 2` or `said`."""

    way: str
    words: str


WRONG_USES: list[WrongUse] = []


def wrong_use(title: str) -> Callable[[Mistake], Mistake]:
    """Register a function that makes this mistake in the empty folder it is given."""

    def register(commit: Mistake) -> Mistake:
        WRONG_USES.append(WrongUse(commit.__module__.rpartition(".")[2], title, commit))
        return commit

    return register


def command(*arguments: object) -> Answer:
    """The exit code of a command and the last line of its standard error."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()):
        code = main([str(argument) for argument in arguments])
    lines = shown.getvalue().strip().splitlines() or [""]
    return Answer(f"exit {code}", lines[-1].removeprefix("error: "))


def answer_to(use: WrongUse, folder: Path) -> Answer:
    """What zipbrain says to a mistake, with the folder's name left out; an empty answer if it says nothing."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            returned = use.commit(folder)
        except ZipbrainError as error:
            return Answer("refused", _shortened(str(error), folder))
    if isinstance(returned, Answer):
        return Answer(returned.way, _shortened(returned.words, folder))
    ours = [str(one.message) for one in warned if issubclass(one.category, UserWarning)]
    if ours:
        return Answer("warned", _shortened(ours[0], folder))
    return Answer("said", _shortened(str(returned or ""), folder))


def _shortened(words: str, folder: Path) -> str:
    return " ".join(words.replace(f"{folder}/", "").replace(str(folder), "DIR").split())


def table(answers: dict[str, Answer]) -> str:
    """Markdown rows of all wrong uses, given the answer to each by name."""
    rows = ["| Area | Wrong use | What happens | What zipbrain says |", "|---|---|---|---|"]
    for use in WRONG_USES:
        answer = answers[use.name]
        said = re.sub(r"([|<>*_`\\])", r"\\\1", answer.words)
        rows.append(f"| {use.area.replace('_', ' ')} | {use.title} | {answer.way} | {said} |")
    return "\n".join(rows)


for _area in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    if not _area.stem.startswith("test_"):
        importlib.import_module(f"tests.wrong_uses.{_area.stem}")  # once, whatever name this package was imported by
