"""Score a recipe once: read from the store what an earlier run found, else run it, add intervals and write it down."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from zipbrain.evaluation import bootstrap, metrics
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.recipe import Recipe


def scored(
    trial: Trial,
    recipe: Recipe | None,
    *,
    kind: str,
    label: str,
    ratio: float | str | None,
    intervals: bool = True,
    store: Store | None = None,
    of: str | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """The record of one recipe on one trial.

    Parameters
    ----------
    trial : Trial
        Model and windows.
    recipe : Recipe or None
        None is the uncompressed model.
    kind, label, ratio
        For the record. Records of different kinds are kept apart.
    intervals : bool
        With 95 % bootstrap intervals over subjects; there are none if all windows are of one subject.
    store : Store, optional
        Where finished records are looked up and added.
    of : str, optional
        Key of the recipe that this one is a variant of. Variants of different recipes are kept apart, and ``extra``
        has it.
    **extra
        Kept in the record's ``extra``, beside ``remarks``: warnings that came up.
    """
    key = f"{kind}:{trial.key(recipe)}"
    if of is not None:
        key += f":of:{hashlib.sha256(of.encode()).hexdigest()}"
        extra["of"] = of
    without = f"{key}:no-intervals"
    if store is not None:
        for known in (key,) if intervals else (key, without):
            found = store.get(known)
            if found is not None:
                return _with_nan(found if intervals else {name: found[name] for name in found if name != "intervals"})
    more: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        outcome = trial.original if recipe is None else trial.run(recipe)
        if intervals and len(np.unique(trial.windows.subjects)) > 1:
            chances = metrics.probabilities(outcome.logits)
            more["intervals"] = bootstrap.intervals(trial.windows.labels, chances, trial.windows.subjects)
    said = sorted({str(remark.message) for remark in remarks if "r = 0" not in str(remark.message)})  # seen in counts
    record = outcome.record(
        trial.task, kind=kind, label=label, ratio=ratio, extra={**extra, "remarks": said}, **more
    )  # fmt: skip
    record["key"] = key if intervals else without
    if store is not None:
        store.add(record)
    return _with_nan(record)


def remarks(trial: Trial, records: Iterable[dict[str, Any]]) -> list[str]:
    """What came up while recipes were scored, each thing once."""
    said = {line for record in records for line in record["extra"]["remarks"]}
    lost = {line for line in said if "resamples" in line}  # the same for every row, but for the counts
    told = (
        ["95 %: resamples that hold one class only were left out where a metric is undefined in them."] if lost else []
    )
    return [*trial.remarks, *told, *sorted(said - lost)]


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """None stands for NaN among numbers."""
    scores = {name: math.nan if value is None else float(value) for name, value in record["scores"].items()}
    error = record["logit_error"]
    return record | {"scores": scores, "logit_error": math.nan if error is None else float(error)}
