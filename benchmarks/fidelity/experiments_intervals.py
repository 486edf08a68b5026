"""95 % intervals of the experiments by resampling test subjects: of every method, and of Twins and ZIPBrain against it.

Subjects are drawn once for each task (each fold of cross-validation): all methods, models and seeds see the same draws,
so differences are paired. A cell is a task and a model, the mean over its runs; an overall row is the mean over cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.evaluation.bootstrap import resample
from zipbrain.metrics import decisions, probabilities, scores

DRAWS = 1000
FAMILIES = {"labram": "softmax", "eegpt": "softmax", "biot": "linear", "tfm": "linear"}
REFERENCES = {"twins": "Twins", "zipbrain": "ZIPBrain"}
MEASURES = ("score", "change", "agreement", "logit_error")
FIXED = "eegmat-fixed"  # the paper's split: beside the cross-validation, so no part of the overall rows

Draws = NDArray[np.float64]  # (DRAWS + 1,): what was measured, then the resamples
Key = tuple[str, str, str, bool]  # kind, label, ratio, mass


def resampled(run: Any) -> dict[Key, dict[str, Draws]]:
    """Everything that has stored logits of one run: measure by measure, the measured value and its resamples.

    Logits are stored in half precision. So that their rounding does no harm, resampled scores and agreements are
    shifted and errors scaled to meet, without resampling, what was measured in single precision.
    """
    with np.load(run.logits) as stored:
        logits = {name: stored[name].astype(np.float64) for name in stored.files if "|" in name}
        before = stored["original"].astype(np.float64)
        labels, subjects = stored["labels"], stored["subjects"]
    names, place = np.unique(subjects, return_inverse=True)
    # The draws of `resample`, which takes subjects in this order and starts from the same seed.
    times = np.random.default_rng(run.draw).multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    weights = np.vstack([np.ones(len(place)), times[:, place]])  # (DRAWS + 1, windows), not resampled first

    def score(values: NDArray[np.float64], measured: dict[str, Any]) -> Draws:
        chances = probabilities(values)
        drawn = resample(labels, chances, subjects, n=DRAWS, seed=run.draw).scores[run.metric]
        whole, exact = scores(labels, chances)[run.metric], measured["scores"][run.metric]
        return np.append(exact, drawn + (exact - whole))

    done = {row_key(row): row["test"] for row in run.rows if "test" in row and "failed" not in row}
    original = ("original", "original", "", False)
    base = score(before, done[original])
    found = {original: {"score": base}}
    for name, values in logits.items():
        kind, label, ratio, mass = name.split("|")
        key = (kind, label, ratio, mass == "1")
        if key not in done:
            continue
        measured, new = done[key], score(values, done[key])
        same = (decisions(values) == decisions(before)).astype(np.float64)
        agreement = weights @ same / weights.sum(1)
        error = _logit_errors(values, before, weights)
        found[key] = {
            "score": new,
            "change": new - base,
            "agreement": agreement + (measured["agreement"] - agreement[0]),
            "logit_error": error * (measured["logit_error"] / error[0]),
        }
    return found


def row_key(row: dict[str, Any]) -> Key:
    """What a row of a run is, as the stored logits are named."""
    return row["kind"], row["label"], str(row.get("ratio", "")), bool(row.get("mass", False))


def _logit_errors(new: NDArray[np.float64], old: NDArray[np.float64], weights: NDArray[np.float64]) -> Draws:
    """As `zipbrain.evaluation.trial.logit_error`, for every row of window weights; the variance is that of all windows.

    The variance is only a scale, and in resamples of few subjects it comes out too small.
    """
    if old.shape[1] > 1:
        new, old = (values - values.mean(1, keepdims=True) for values in (new, old))
    shares = weights / weights.sum(1, keepdims=True)
    return np.asarray((shares @ (new - old) ** 2 / old.var(0)).mean(1))


def table(runs: Iterable[Any], references: Mapping[str, str] = REFERENCES) -> list[dict[str, Any]]:
    """One row for every cell and method, then the overall rows: over all models, softmax and linear attention.

    Parameters
    ----------
    runs : iterable of Run
        All that count.
    references : mapping of str to str
        Which methods stand against all others: what their columns start with, and their label.
    """
    names = [f"{name}_{measure}" for name in references for measure in ("change", "agreement", "log_error")]
    columns = [*MEASURES, *names]
    cells: dict[tuple[str, str], list[dict[Key, dict[str, Draws]]]] = defaultdict(list)
    for run in runs:
        cells[run.task, run.model].append(resampled(run))
    keys = list(dict.fromkeys(key for cell in cells.values() for found in cell for key in found))
    rows, means = [], {}
    for key in keys:
        for cell, all_found in cells.items():
            has = [found for found in all_found if key in found]
            if has:
                means[key, cell] = of_cell(has, key, references)
                rows.append(_row(*cell, key, len(has), means[key, cell], columns))
    for key in keys:
        for group in ("all", "softmax", "linear"):
            chosen = [
                cell for cell in cells
                if (key, cell) in means and cell[0] != FIXED and group in ("all", FAMILIES[cell[1]])
            ]  # fmt: skip
            if chosen and key[0] != "original" and "(paper)" not in key[1]:
                measures = set.intersection(*(set(means[key, cell]) for cell in chosen))
                overall = {name: np.mean([means[key, cell][name] for cell in chosen], axis=0) for name in measures}
                overall.pop("score", None)
                runs_in = sum(sum(key in found for found in cells[cell]) for cell in chosen)
                rows.append(_row("overall", group, key, runs_in, overall, columns))
    return rows


def of_cell(
    has: list[dict[Key, dict[str, Draws]]], key: Key, references: Mapping[str, str] = REFERENCES
) -> dict[str, Draws]:  # fmt: skip
    """Mean over the runs of a cell, and each reference less this method in the same runs; of errors, in logarithms."""

    def over_runs(which: Key) -> dict[str, Draws]:
        return {name: np.mean([found[which][name] for found in has], axis=0) for name in has[0][which]}

    mean = own = over_runs(key)
    for name, label in references.items():
        other = ("compare", label, key[2], False)
        if other in has[0] and key != other:
            reference = over_runs(other)
            mean = mean | {f"{name}_{each}": reference[each] - own[each] for each in ("change", "agreement")}
            mean[f"{name}_log_error"] = np.log(reference["logit_error"]) - np.log(own["logit_error"])
    return mean


def _row(
    task: str, model: str, key: Key, runs: int, measures: dict[str, Draws], columns: list[str]
) -> dict[str, Any]:  # fmt: skip
    row: dict[str, Any] = {"task": task, "model": model, "kind": key[0], "label": key[1], "ratio": key[2]}
    row |= {"mass": key[3], "runs": runs}
    for name in columns:
        values = measures.get(name)
        if values is None:
            row |= {name: "", f"{name}_low": "", f"{name}_high": ""}
            continue
        low, high = np.nanquantile(values[1:], (0.025, 0.975))
        row |= {name: number(values[0]), f"{name}_low": number(low), f"{name}_high": number(high)}
    return row


def number(value: float) -> str:
    """Four digits behind the point, or four that count where the value is small."""
    return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4g}"
