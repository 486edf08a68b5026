"""`CachedScores`: every recipe is scored once; what an earlier run stored is read, what is new is stored at once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zipbrain.evaluation import bootstrap
from zipbrain.evaluation.reliability import doubts_about
from zipbrain.evaluation.result import Result, results_of
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.metrics import metrics_of, probabilities
from zipbrain.recipe import Recipe


@dataclass(frozen=True, eq=False)
class CachedScores:
    """The scores of one trial, for one command: results of different kinds are kept apart in the store."""

    trial: Trial
    store: Store | None
    kind: str  # compare, ablate or search
    intervals: bool = False  # 95 %, by resampling subjects; there are none if all windows are of one subject

    def key(self, recipe: Recipe | None, of: str | None = None) -> str:
        """Key of a recipe's result with intervals; that of a search is the trial's own, and has none."""
        if self.kind == "search":
            return self.trial.key(recipe)
        variant = "" if of is None else f":of:{hashlib.sha256(of.encode()).hexdigest()}"
        return f"{self.kind}:{self.trial.key(recipe)}{variant}"

    def find(self, key: str) -> Result | None:
        """What is stored under a key."""
        record = self.store.get(key) if self.store is not None else None
        found, _ = results_of([] if record is None else [record])
        return found[0] if found else None

    def keep(self, result: Result) -> Result:
        """Store a result, without its logits."""
        if self.store is not None:
            self.store.add(result.to_record())
        return replace(result, logits=None)

    def score(
        self, recipe: Recipe | None, label: str, ratio: float | str | None, *, of: str | None = None, **extra: Any
    ) -> Result:
        """The result of a recipe, or of the uncompressed model if it is None.

        `of` is the key of the recipe that this one is a variant of: variants of different recipes are kept apart. The
        result's `extra` has what is given and ``remarks``, warnings that came up.
        """
        # A variant with a seed is one of many draws, of which an interval says nothing.
        wanted = self.intervals and extra.get("seed") is None
        names = {metric.name for metric in metrics_of(len(self.trial.windows.classes))}
        key = self.key(recipe, of)
        without = key if self.kind == "search" else f"{key}:no-intervals"
        for known in (key,) if wanted else (key, without):
            found = self.find(known)
            if found is not None and names <= set(found.scores):  # a metric may be newer than the store
                return found if wanted else replace(found, intervals={})
        if of is not None:
            extra["of"] = of
        trial, intervals = self.trial, {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = trial.original if recipe is None else trial.run(recipe)
            if wanted and len(np.unique(trial.windows.subjects)) > 1:
                assert result.logits is not None
                chances = probabilities(result.logits)
                intervals = bootstrap.intervals(trial.windows.labels, chances, trial.windows.subjects)
        # That nothing is removed is seen in the counts.
        extra["remarks"] = sorted({str(one.message) for one in caught if "r = 0" not in str(one.message)})
        about: dict[str, Any] = {
            "kind": self.kind,
            "label": label,
            "ratio": ratio,
            "extra": extra,
            "intervals": intervals,
        }
        return self.keep(replace(result, key=key if wanted else without, **about))


def remarks_of(trial: Trial, results: Iterable[Result], store: Store | None = None) -> list[str]:
    """What came up while recipes were scored, each thing once, and what a store holds that could not be used.

    Scores that say little are named first.
    """
    results = list(results)
    found = {line for result in results for line in result.extra.get("remarks", ())}
    lost = {line for line in found if "resamples" in line}  # the same for every row, but for the counts
    shared = "95 %: resamples that hold one class only were left out where a metric is undefined in them."
    unread = [] if store is None else [*store.remarks, *results_of(store.records())[1]]
    return [*doubts_about(results), *trial.remarks, *([shared] if lost else []), *sorted(found - lost), *unread]
