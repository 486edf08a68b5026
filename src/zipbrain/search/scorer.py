"""`Scorer`: settings of ZIPBrain scored by workers, each network once, and never one that the store holds."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from zipbrain.evaluation.cached_scores import CachedScores
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.trial import recipe_for
from zipbrain.jobs import run_jobs
from zipbrain.metrics import main_metric
from zipbrain.paper import SPACES
from zipbrain.progress import Progress, silent
from zipbrain.recipe import Recipe
from zipbrain.search.result import Entry, ranked
from zipbrain.search.space import LEADERS, Point, full_grid, stage_1, stage_2
from zipbrain.search.worker import Case, Work, keep, score

_PARCEL: Final = 8  # recipes in one call where the model has to travel with them


class Scorer:
    """Scores settings at ratios.

    Workers open `case`; `scores` has the same case as an open trial, and the store; `jobs` are the options of
    `zipbrain.jobs.run_jobs`.
    """

    def __init__(
        self, case: Case, scores: CachedScores, mass: bool, jobs: dict[str, Any], progress: Progress | None
    ) -> None:
        self.case, self.scores, self.mass, self.jobs, self.tell = case, scores, mass, jobs, progress or silent
        self.trial = scores.trial
        self.metric = main_metric(len(self.trial.windows.classes))
        self.token = self.trial.key(None)
        self.original = scores.score(None, "original", None)
        self.entries: list[Entry] = []  # in the order of the settings
        self.networks: dict[str, Result] = {}  # distinct ones, by key
        self.evaluated = self.total = 0  # networks that were run now, entries that are expected in all
        self._pickled: bytes | None = None

    @staticmethod
    def settings(full: bool) -> int:
        """How many settings a search has at one ratio."""
        return len(full_grid()) if full else len(stage_1()) + LEADERS * (len(SPACES) - 1)

    def two_stages(self, ratio: float | str) -> list[str]:
        """The paper's search at one ratio; returns what the user should know about it."""
        leaders = ranked(self.score(stage_1(), ratio, 1))[:LEADERS]
        self.score(stage_2([entry.point for entry in leaders]), ratio, 2)
        distinct = len({entry.result.key for entry in leaders})
        if distinct == len(leaders):
            return []
        networks = f"{distinct} distinct network{'s' * (distinct > 1)}"
        return [f"ratio {ratio}: the {len(leaders)} leaders are {networks} (at rho = 1, z2 can't matter)"]

    def grid(self, ratio: float | str) -> list[str]:
        """All settings at one ratio."""
        self.score(full_grid(), ratio, 0)
        return []

    def recipe(self, point: Point, ratio: float | str) -> Recipe:
        """The recipe of a setting, with what it is chosen on."""
        about = {"dataset": self.trial.task["dataset"], "split": self.case.split, "metric": self.metric}
        return recipe_for(self.trial.model, point.method, ratio=ratio, mass=self.mass, **about)

    def labels(self, ratio: float | str) -> dict[str, Any]:
        """Fields of a result that are not measured."""
        return {"kind": "search", "label": "ZIPBrain", "ratio": ratio, "extra": {"mass": self.mass}}

    def score(self, points: list[Point], ratio: float | str, stage: int) -> list[Entry]:
        """Score settings; an entry is added as soon as its result is there."""
        waiting: dict[str, list[int]] = {}
        recipes: dict[str, Recipe] = {}
        for number, point in enumerate(points):
            recipe = self.recipe(point, ratio)
            key = self.scores.key(recipe)
            waiting.setdefault(key, []).append(number)
            recipes.setdefault(key, recipe)
        found: dict[int, Entry] = {}
        before = len(self.entries)
        what = f"scoring: ratio {ratio}, " + (f"stage {stage}" if stage else "whole grid")

        def take(result: Result) -> None:
            self.networks[result.key] = result
            for number in waiting.pop(result.key):
                found[number] = Entry(points[number], ratio, stage, result.value(self.metric), result)
            self.tell(what, before + len(found), self.total)

        try:
            for key in list(waiting):
                known = self.networks.get(key) or self.scores.find(key)
                if known is not None:
                    take(known)
            for result in self._evaluate([recipes[key] for key in waiting], ratio):
                take(self.scores.keep(result))
                self.evaluated += 1
        finally:  # in list order, so that ties don't depend on who came first
            self.entries += [found[number] for number in sorted(found)]
        return self.entries[before:]

    def score_on(self, case: Case, recipe: Recipe, ratio: float | str) -> tuple[Result, Result]:
        """A recipe's result and the uncompressed model's on another split, under a key of its own.

        A trial's key leaves out what a recipe was chosen on, so a result under it may be that of a search that was
        selected on this split: its numbers are the same, its provenance is not.
        """
        scores = replace(self.scores, trial=case.open())
        own = scores.key(recipe)
        key = f"winner:{self.case.split}:{self.token[:8]}:{own}"
        found = scores.find(key)
        if found is None:
            measured = scores.find(own) or scores.trial.run(recipe)
            about = {"key": key, "task": scores.trial.task, "recipe": recipe.to_dict(), **self.labels(ratio)}
            found = scores.keep(replace(measured, **about))
        return found, scores.score(None, "original", None)

    def _evaluate(self, recipes: list[Recipe], ratio: float | str) -> Iterator[Result]:
        if not recipes:
            return
        backend, workers = self.jobs["backend"], self.jobs["workers"]
        here = backend == "sequential" or (backend in ("loky", "threading") and workers == 1)
        parcel = 1 if here or self.case.by_name else min(_PARCEL, -(-len(recipes) // 4))
        content: Case | bytes = self.case
        if here:
            keep(self.token, self.trial)
        elif not self.case.by_name:
            self._pickled = content = self._pickled or pickle.dumps(self.case)
        parcels = [tuple(recipes[start : start + parcel]) for start in range(0, len(recipes), parcel)]
        work = [Work(content, self.token, part, self.labels(ratio)) for part in parcels]
        try:
            for _, results in run_jobs(score, work, **self.jobs):
                yield from results
        finally:
            if here:
                keep("", None)
