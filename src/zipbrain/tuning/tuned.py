"""`Tuned`: the result of a tuning, with its recipe, its certificate and a text to print."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zipbrain.files import json_ready, write_whole
from zipbrain.recipe import Recipe
from zipbrain.tuning.candidates import Anatomy, MethodSchedule
from zipbrain.tuning.certificate import Certificate
from zipbrain.tuning.times import is_within

RECIPE: Final = "recipe.json"
RESULT: Final = "tuned.json"
OPTIONS: Final = "options.csv"


@dataclass(frozen=True)
class Option:
    """A candidate with its margin for one promise, as the choosing half shows it: expected, not certified.

    Attributes
    ----------
    agree : float
        The promise it was chosen for.
    candidate : MethodSchedule
    margin : float
        Of the second look.
    second_look_share : float
        Share of the windows that look twice.
    certification_probability : float
        Probability that the certifying half proves the promise.
    time, operations : float
        Relative to the original's, second looks included.
    """

    agree: float
    candidate: MethodSchedule
    margin: float
    second_look_share: float
    certification_probability: float
    time: float
    operations: float

    @property
    def removes(self) -> bool:
        """False for the original."""
        return any(self.candidate.removed)

    def to_dict(self) -> dict[str, Any]:
        """One row of the table."""
        return {
            "agree": self.agree,
            "time": round(self.time, 4),
            "operations": round(self.operations, 4),
            "looked_twice": round(self.second_look_share, 4),
            "chance": round(self.certification_probability, 4),
            "method": self.candidate.method["name"],
            "schedule": self.candidate.title,
            "removed": " ".join(map(str, self.candidate.removed)),
            "second_look": round(self.margin, 6),
        }


@dataclass(frozen=True)
class Tuned:
    """Result of `zipbrain.tune`; ``print`` it.

    Attributes
    ----------
    recipe : Recipe
        For `zipbrain.compress`; it holds its promise.
    certificate : Certificate
        What is promised, at which confidence and for whom.
    chosen : Option
        The candidate with its margin, as the choosing half shows it.
    time : float
        Of a call relative to the original's, measured in the runtime.
    options : tuple of Option
        The fastest candidate for each of several promises.
    agree, asked_time : float or None
        What was requested; `agree` is None if a time was.
    anatomy : Anatomy
        Tokens and blocks of the network.
    runtime : str
    batch : int
    notes : tuple of str
        Sentences without a full stop on what a user should know.
    """

    recipe: Recipe
    certificate: Certificate
    chosen: Option
    time: float
    options: tuple[Option, ...]
    agree: float | None
    asked_time: float | None
    anatomy: Anatomy
    runtime: str
    batch: int
    notes: tuple[str, ...] = ()

    @property
    def operations(self) -> float:
        """Multiply-adds of blocks, pooling and the certifying half's second looks, relative to the original's."""
        first = self.anatomy.operations(self.chosen.candidate)
        return first + self.certificate.looked_twice * self.anatomy.second_pass_cost(self.chosen.candidate)

    @property
    def is_kept(self) -> bool:
        """True if the requested promise can be made, or the requested time was reached."""
        if self.agree is None:
            return self.asked_time is None or is_within(self.time, self.asked_time)
        proved = 1.0 if not self.chosen.removes else self.certificate.evidence.bound(self.certificate.confidence)
        return self.certificate.is_promise and proved >= self.agree

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if not self.chosen.removes:
            tail = f"; its last block runs for the protected tokens alone, {1 / self.time:.2f} times as fast"
            return f"The original stays: nothing found here gains time{tail if self.anatomy.has_tail else ''}."
        kept = f"{math.floor(self.certificate.agree * 1000) / 10:g} % of the decisions unchanged"
        word = "promised" if self.certificate.is_promise else "estimated"
        return f"{1 / self.time:.2f} times as fast with at least {kept} ({word})."

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.headline
        candidate, anatomy = self.chosen.candidate, self.anatomy
        if self.chosen.removes:
            yield ""
            yield f"  speed        {1 / self.time:.2f} times as fast, measured in {self.runtime} at batch {self.batch}"
            yield f"  operations   {100 * self.operations:.0f} % of the original's, pooling and second looks included"
            left = anatomy.tokens - sum(candidate.removed)
            yield f"  tokens       {left} of {anatomy.tokens} left; {candidate.method['name']}, {candidate.title}"
            yield f"  removed      {' '.join(map(str, candidate.removed))} in the blocks, one after another"
            if self.recipe.second_look:
                odds = math.exp(min(self.recipe.second_look, 50.0))
                again = 100 * self.certificate.looked_twice
                yield f"  second look  {again:.1f} % of the windows run again uncompressed:"
                yield f"               the best class is less than {odds:.3g} times as likely as the next"
            yield ""
            yield from self.certificate.lines()
        if self.agree is not None and not self.is_kept:
            yield ""
            yield from self.certificate.explain_shortfall(self.agree)
        yield ""
        yield "What else could be had (expected from the choosing half, not certified):"
        yield "  decisions unchanged  times as fast  operations  look twice  schedule"
        for one in self.options:
            row = f"  {100 * one.agree:17g} %  {1 / one.time:13.2f}  {100 * one.operations:8.0f} %"
            row += f"  {100 * one.second_look_share:8.1f} %"
            doubt = "" if one.certification_probability >= 0.5 else " (not likely to be proved with so few people)"
            yield f"{row}  {one.candidate.method['name']}, {one.candidate.title}{doubt}"
        for note in self.notes:
            yield f"Note: {note}."

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "headline": self.headline,
            "agree": self.agree,
            "asked_time": self.asked_time,
            "is_kept": self.is_kept,
            "runtime": self.runtime,
            "batch": self.batch,
            "time": self.time,
            "operations": self.operations,
            "tokens": self.anatomy.tokens,
            "certificate": self.certificate.to_dict(),
            "options": [one.to_dict() for one in self.options],
            "recipe": self.recipe.to_dict(),
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path) -> list[Path]:
        """Write recipe, result and the table of what else could be had into a folder; returns the files."""
        folder = Path(folder)
        self.recipe.save(folder / RECIPE)
        content = json.dumps(json_ready(self.to_dict()), indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / RESULT, content.encode())
        rows = [one.to_dict() for one in self.options]
        names = list(rows[0])
        lines = [",".join(names), *(",".join(_cell(row[name]) for name in names) for row in rows)]
        write_whole(folder / OPTIONS, ("\n".join(lines) + "\n").encode())
        return [folder / name for name in (RECIPE, RESULT, OPTIONS)]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f'"{text}"' if "," in text else text
