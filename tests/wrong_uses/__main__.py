"""Write the table of wrong uses into docs/reference/wrong_uses.md."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.shared.results import fill
from tests.wrong_uses import WRONG_USES, Answer, answer_to, table

if __name__ == "__main__":
    answers: dict[str, Answer] = {}
    for use in WRONG_USES:
        with tempfile.TemporaryDirectory() as folder:
            answers[use.name] = answer_to(use, Path(folder))
            print(f"{use.name}: {answers[use.name].way}: {answers[use.name].words}", flush=True)
    fill({"wrong uses": lambda: table(answers)})
