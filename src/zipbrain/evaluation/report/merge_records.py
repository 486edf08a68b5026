"""Stored results of one task, ready to be shown: costs joined to scores, doubles left out, distinct labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zipbrain.evaluation.result import Result

_SAME_TASK = ("model", "dataset", "split", "windows", "weights_sha256", "data_sha256")


def tasks_of(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Results by task, in the order in which tasks first occur, with a title for each."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps([result.task.get(name) for name in _SAME_TASK]), []).append(result)
    found: list[tuple[str, list[Result]]] = []
    times: dict[str, int] = {}
    for own in groups.values():
        task = own[0].task
        title = f"{task.get('model', 'model')} on {task.get('dataset', 'data')}, {task.get('split', '?')} split"
        times[title] = times.get(title, 0) + 1
        found.append((f"{title} ({times[title]})" if times[title] > 1 else title, own))
    return found


def merged(results: Sequence[Result]) -> list[Result]:
    """The scored results of one task, as pictures and tables need them.

    - Results of kind ``latency`` and ``flops`` hold no scores: what they measured goes into `extra` of the scored
      results of the same recipe. Latencies of one timing (device, threads, batch, versions) are taken: the one that
      most recipes have, the newest among equals.
    - Of doubles (the uncompressed model, scored by several commands; one recipe with and without intervals), one with
      intervals stays.
    - Rows with mass are labelled so, and so is the winner of a search that was scored on another split.
    """
    measured: dict[str, dict[str, Any]] = {_recipe(result): {} for result in results}
    latencies: dict[str, dict[str, float]] = {}
    for result in results:
        if result.kind == "flops":
            measured[_recipe(result)]["macs"] = result.extra["macs"]
    for result in _timed_alike(results):
        own = {"latency_ratio": result.extra["latency"]["to_original"], "timing": result.extra.get("timing")}
        measured[_recipe(result)] |= {name: value for name, value in own.items() if value is not None}
        latencies[_recipe(result)] = result.extra["latency"]
    found: dict[tuple[str, ...], Result] = {}
    for result in results:
        if result.kind in ("latency", "flops") or not result.scores:
            continue
        shown = replace(_named(result), extra={**result.extra, **measured[_recipe(result)]})
        shown = replace(shown, latency=latencies.get(_recipe(result)))
        of = str(shown.extra.get("of"))
        place = ("original",) if result.is_original else (shown.kind, shown.label, _recipe(result), of)
        if place not in found or (shown.intervals and not found[place].intervals):
            found[place] = shown
    return list(found.values())


def _timed_alike(results: Sequence[Result]) -> list[Result]:
    """The latencies of one timing."""
    timings: dict[str, list[Result]] = {}
    for result in results:
        if result.kind == "latency":
            timing = result.extra.get("timing") or {}
            where = json.dumps({name: value for name, value in timing.items() if name != "rounds"}, sort_keys=True)
            timings[where] = [*timings.pop(where, []), result]  # the newest is last
    if not timings:
        return []
    return max(reversed(timings.values()), key=lambda own: len({_recipe(result) for result in own}))


def _recipe(result: Result) -> str:
    return json.dumps(result.recipe, sort_keys=True)


def _named(result: Result) -> Result:
    """The result with the kind and the label under which it is shown."""
    if result.recipe is None:
        return replace(result, label="Original")
    label = result.label + " + mass" * result.mass
    if result.kind == "search" and result.recipe.get("split") not in (None, result.task.get("split")):
        return replace(result, kind="compare", label=f"{label} (found by search)")
    return replace(result, label=label)
