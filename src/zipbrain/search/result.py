"""`SearchResult`: ranked settings, the winner as a recipe, and the files that are written of it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zipbrain.errors import DataError, MissingExtra
from zipbrain.evaluation.options import RATIOS
from zipbrain.evaluation.reliability import doubts_about
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.tables import csv_text
from zipbrain.files import json_ready, write_whole
from zipbrain.recipe import Recipe
from zipbrain.search.space import Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zipbrain.search.targets import Target


@dataclass(frozen=True, eq=False)
class Entry:
    """One setting at one ratio, and what came out."""

    point: Point
    ratio: float | str
    stage: int  # 1 or 2; 0 in the whole grid
    score: float  # the metric by which settings are ranked
    result: Result  # settings that are one and the same network share it


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """Best first; among equals the one that was listed first, undefined scores last."""
    return sorted(entries, key=lambda entry: math.inf if math.isnan(entry.score) else -entry.score)


def _named(original: Result | None, winner: Result | None) -> list[Result]:
    pairs = (("the uncompressed model", original), ("the winner", winner))
    return [replace(result, label=name, ratio=None, extra={}) for name, result in pairs if result is not None]


@dataclass(eq=False)
class SearchResult:
    """What a search found.

    Attributes
    ----------
    task : dict
        Model, data and their fingerprints.
    metric : str
        By which settings were ranked: auroc with two classes, kappa with more.
    select_on : str
        The split on which the winner was chosen.
    ranking : list of Entry
        Best first.
    expected : int
        Settings that the search has; fewer are in `ranking` if it was stopped.
    original : Result
        Of the uncompressed model.
    best : Recipe or None
        The winner; None if the search was stopped or no recipe meets the target.
    winner : Entry or None
        Its entry.
    test, test_original : Result or None
        Of the winner and of the uncompressed model on the test split, where the winner was chosen on another.
    target : Target or None
        What was asked for.
    latency : dict of str to float
        Time over the uncompressed model's, by the key of a result; finalists of a target only.
    full, mass : bool
        The whole grid instead of the two stages; tokens remember their mass.
    evaluated : int
        Networks that were run now; the others came out of the store or are the same as another.
    remarks : list of str
        What the user should know.
    """

    task: dict[str, Any]
    metric: str
    select_on: str
    ranking: list[Entry]
    expected: int
    original: Result
    best: Recipe | None = None
    winner: Entry | None = None
    test: Result | None = None
    test_original: Result | None = None
    target: Target | None = None
    latency: dict[str, float] = field(default_factory=dict)
    full: bool = False
    mass: bool = False
    evaluated: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if every setting has its result."""
        return len(self.ranking) == self.expected

    @property
    def doubts(self) -> list[str]:
        """What the ranking hides about its scores, on the split of the choice and on the test split."""
        chosen = _named(self.original, None if self.winner is None else self.winner.result)
        tested = doubts_about(_named(self.test_original, self.test))
        return [*doubts_about(chosen), *(f"Test split: {line[0].lower()}{line[1:]}" for line in tested)]

    @property
    def name(self) -> str:
        """A name for the folder of this search; it ends in the first digits of the key of weights and data."""
        ratios = "-".join(dict.fromkeys(str(entry.ratio) for entry in sorted(self.ranking, key=lambda e: str(e.ratio))))
        usual = self.target is not None and ratios == "-".join(map(str, RATIOS))
        parts = [self.task["model"], self.task["dataset"], *([str(self.target)] if self.target else [])]
        parts += [] if usual else [ratios]
        parts += ["full"] * self.full + ["mass"] * self.mass + [self.select_on, self.original.key[:8]]
        words = "-".join(str(part) for part in parts).lower().replace("<=", "-at-most-").replace(">=", "-at-least-")
        return "search-" + re.sub(r"[^a-z0-9.]+", "-", words)

    def rows(self) -> list[dict[str, Any]]:
        """The ranking as flat rows."""
        rows: list[dict[str, Any]] = []
        for rank, entry in enumerate(self.ranking, 1):
            point, result = entry.point, entry.result
            row: dict[str, Any] = {"rank": rank, "stage": entry.stage, "ratio": entry.ratio}
            row |= {"z1": point.z1, "z2": point.z2, "z3": point.z3, "rho": point.rho}
            row |= {"latency": self.latency.get(result.key), "operations": result.operations}
            row |= {self.metric: entry.score, **result.scores, "agreement": result.agreement}
            row |= {"logit_error": result.logit_error, "removed": result.removed}
            row["tokens_left"] = result.token_counts[-1]
            rows.append({**row, "winner": entry is self.winner, "select_on": self.select_on, "key": result.key})
        return rows

    def as_dict(self, top: int = 10) -> dict[str, Any]:
        """JSON form, with the first rows of the ranking."""
        test, rows = None, self.rows()
        if self.test is not None:
            original = None if self.test_original is None else self.test_original.scores
            test = {"winner": self.test.scores, "agreement": self.test.agreement, "original": original}
        names = (
            "task",
            "metric",
            "select_on",
            "complete",
            "expected",
            "evaluated",
            "full",
            "mass",
            "remarks",
            "doubts",
        )
        content = {name: getattr(self, name) for name in names} | {
            "results": len(self.ranking),
            "target": str(self.target) if self.target else None,
            "original": self.original.scores,
            "recipe": self.best.to_dict() if self.best else None,
            "winner": next((row for row in rows if row["winner"]), None),
            "test": test,
            "ranking": rows[:top],
        }
        return json_ready(content)

    def heatmap(self) -> Figure:
        """Score over pairs and rho."""
        from zipbrain.search.plots import heatmap

        return heatmap(self)

    def pareto(self) -> Figure:
        """Score over measured latency; for a target."""
        from zipbrain.search.plots import pareto

        return pareto(self)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write ranking.csv, recipe.json if there is a winner, and the figures if matplotlib is installed.

        The folder is made if it is not there; files of an older search in it are replaced. Returns paths by name.
        """
        folder = Path(folder)
        try:
            return self._save(folder)
        except OSError as error:
            raise DataError(f"{folder}: the search can't be written there ({error.strerror or error})") from None

    def _save(self, folder: Path) -> dict[str, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        files = {"ranking.csv": folder / "ranking.csv"}
        write_whole(files["ranking.csv"], csv_text(self.rows()).encode())
        if self.best is not None:
            files["recipe.json"] = self.best.save(folder / "recipe.json")
        else:
            (folder / "recipe.json").unlink(missing_ok=True)  # an older winner is not this search's
        from zipbrain.evaluation.report.document import Picture

        figures: dict[str, Figure] = {}
        try:
            figures = {"heatmap": self.heatmap()} | ({"pareto": self.pareto()} if self.latency else {})
        except MissingExtra as missing:
            self.remarks.append(f"no figures: {missing}")
        for name, ending in product(("heatmap", "pareto"), ("png", "svg")):
            path = folder / f"{name}.{ending}"
            if name in figures:
                write_whole(path, Picture.of(figures[name], name, "", "", ending).content)
                files[path.name] = path
            else:
                path.unlink(missing_ok=True)  # an older figure is not this search's
        return files
