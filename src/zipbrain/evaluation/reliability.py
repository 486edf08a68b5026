"""Scores that a table would hide: one class for all windows, no better than chance, too few windows to tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from zipbrain.metrics import CHANCE, commonest_class, is_chance, is_one_sided, main_metric, metric_title

if TYPE_CHECKING:
    from zipbrain.evaluation.result import Result

FEW: Final = 50  # windows: with fewer, each is worth more than 2 % of the accuracy
FEW_OF_CLASS: Final = 5  # windows of a class
_NAMED: Final = 6  # rows that a sentence names


@dataclass(frozen=True)
class Scored:
    """One row of a table.

    Attributes
    ----------
    name : str
    value : float
        Of the metric by which so many classes are ranked.
    confusion : array (K, K)
        Rows are true classes, columns predicted ones.
    interval : (float, float), optional
        95 % interval of the value; by how many windows there are of each class if not given.
    """

    name: str
    value: float
    confusion: ArrayLike
    interval: tuple[float, float] | None = None

    @property
    def only_class(self) -> int | None:
        """The class that all windows are called, or None."""
        called = np.flatnonzero(np.asarray(self.confusion).sum(axis=0))
        return int(called[0]) if len(called) == 1 else None

    @property
    def main_class(self) -> tuple[int, float]:
        """The class that most windows are called, and their share."""
        return commonest_class(np.asarray(self.confusion).sum(axis=0))

    @property
    def is_trivial(self) -> bool:
        """True if nearly all windows are called one class, so that any model which does the same agrees."""
        return is_one_sided(np.asarray(self.confusion).sum(axis=0))

    @property
    def is_chance(self) -> bool:
        """True if the value is no better than that of guessing; False where it is undefined."""
        return is_chance(self.value, self.confusion, self.interval)


def find_doubts(rows: Sequence[Scored], classes: Sequence[str]) -> list[str]:
    """Sentences for under a table whose rows were scored on the same windows."""
    if not rows:
        return []
    lines = []
    for place, name in enumerate(classes):
        same = [row.name for row in rows if row.only_class == place]
        if same:
            lines.append(f"All windows are called {name} by {_some(same, rows)}: such a model says nothing.")
    poor = [row.name for row in rows if row.is_chance]
    lines += [f"{_chance(len(classes))}: {_some(poor, rows)}."] if poor else []
    return [*lines, *find_few(np.asarray(rows[0].confusion).sum(axis=1), classes)]


def doubts_of_training(record: Mapping[str, Any], kept: Mapping[str, float]) -> list[str]:
    """Sentences on the kept epoch of a run (`zipbrain.training.Finetuned`), by its validation windows."""
    split = record.get("validation")
    if split is None:
        return ["No validation windows: whether the model has learnt anything is not known."]
    counts, classes = split["counts"], split["classes"]
    value = kept.get(f"val_{main_metric(len(classes))}")
    scored = Scored("", math.nan if value is None else value, np.diag(counts))
    poor = [f"{_chance(len(classes))} on the validation windows."] if scored.is_chance else []
    return [*poor, *find_few(counts, classes)]


def find_few(counts: ArrayLike, classes: Sequence[str]) -> list[str]:
    """A sentence if there are few windows (K,) in all or of a class that occurs."""
    each = np.asarray(counts)
    rare = [f"{int(count)} of {name}" for count, name in zip(each, classes, strict=True) if 0 < count < FEW_OF_CLASS]
    if each.sum() >= FEW and not rare:
        return []
    inside = f" ({', '.join(rare)})" if rare else ""
    return [f"Few windows: {int(each.sum())}{inside}. Differences and choices between settings may be luck."]


def doubts_about(results: Iterable[Result]) -> list[str]:
    """`find_doubts` for results on the same windows; those stored without a confusion matrix are passed over."""
    found: dict[str, Scored] = {}
    classes: Sequence[str] = ()
    for result in results:
        scored = scored_of(result)
        if scored is not None:
            classes = result.task["classes"]
            found.setdefault(scored.name, scored)
    return find_doubts(list(found.values()), classes)


def scored_of(result: Result) -> Scored | None:
    """A result as a row of a table; None if it was stored without a confusion matrix."""
    classes = result.task.get("classes") or ()
    if len(classes) < 2 or len(result.confusion) != len(classes):
        return None
    metric, ratio = main_metric(len(classes)), result.ratio
    share = "" if ratio is None else f" {ratio}" if isinstance(ratio, str) else f" {100 * ratio:g} %"
    name = f"{result.label.removesuffix(' + mass')}{' + mass' * result.mass}{share}"
    return Scored(name, result.value(metric), result.confusion, result.interval(metric))


def _chance(classes: int) -> str:
    metric = main_metric(classes)
    return f"No better than chance ({metric_title(metric)} {CHANCE[metric]:g})"


def _some(names: Sequence[str], rows: Sequence[Scored]) -> str:
    if len(names) == len(rows) > 1:
        return "every row"
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
