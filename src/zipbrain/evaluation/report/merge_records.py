"""Stored records of one task, ready to be shown: costs joined to scores, doubles left out, labels that tell apart."""

from __future__ import annotations

import json
from collections.abc import Sequence

from zipbrain.evaluation.plots.reading import Record, is_original

_SAME_TASK = ("model", "dataset", "split", "windows", "weights_sha256", "data_sha256")


def tasks_of(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Records by task, in the order in which tasks first occur, with a title for each."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        task = record.get("task") or {}
        groups.setdefault(json.dumps([task.get(name) for name in _SAME_TASK]), []).append(record)
    found: list[tuple[str, list[Record]]] = []
    times: dict[str, int] = {}
    for own in groups.values():
        task = own[0].get("task") or {}
        title = f"{task.get('model', 'model')} on {task.get('dataset', 'data')}, {task.get('split', '?')} split"
        times[title] = times.get(title, 0) + 1
        found.append((f"{title} ({times[title]})" if times[title] > 1 else title, own))
    return found


def joined(records: Sequence[Record]) -> list[Record]:
    """The scored records of one task, as pictures and tables need them.

    - Records of kind ``latency`` and ``flops`` hold no scores: what they measured goes into `extra` of the scored
      records of the same recipe. Latencies of one timing (device, threads, batch, versions) are taken: the one that
      most recipes have, the newest among equals.
    - Of doubles (the uncompressed model, scored by several commands; one recipe with and without intervals), one with
      intervals stays.
    - Rows with mass are labelled so, and so is the winner of a search that was scored on another split.
    """
    measured: dict[str, Record] = {_recipe(record): {} for record in records}
    for record in records:
        if record.get("kind") == "flops":
            measured[_recipe(record)]["macs"] = record["extra"]["macs"]
    for record in _timed_alike(records):
        extra = record["extra"]
        own = {"latency_ratio": extra["latency"]["to_original"], "timing": extra.get("timing")}
        measured[_recipe(record)] |= {name: value for name, value in own.items() if value is not None}
    found: dict[tuple[str, ...], Record] = {}
    for record in records:
        if record.get("kind") in ("latency", "flops") or not record.get("scores"):
            continue
        shown = {**record, "extra": {**(record.get("extra") or {}), **measured[_recipe(record)]}, **_named(record)}
        original = is_original(record)
        of = str(shown["extra"].get("of"))
        place = ("original",) if original else (str(shown["kind"]), shown["label"], _recipe(record), of)
        if place not in found or (shown.get("intervals") and not found[place].get("intervals")):
            found[place] = shown
    return list(found.values())


def _timed_alike(records: Sequence[Record]) -> list[Record]:
    """The latencies of one timing."""
    timings: dict[str, list[Record]] = {}
    for record in records:
        if record.get("kind") == "latency":
            timing = record["extra"].get("timing") or {}
            where = json.dumps({name: value for name, value in timing.items() if name != "rounds"}, sort_keys=True)
            timings[where] = [*timings.pop(where, []), record]  # the newest is last
    if not timings:
        return []
    return max(reversed(timings.values()), key=lambda own: len({_recipe(record) for record in own}))


def _recipe(record: Record) -> str:
    return json.dumps(record.get("recipe"), sort_keys=True)


def _named(record: Record) -> Record:
    """Kind and label under which a record is shown."""
    kind, label = record.get("kind"), str(record.get("label"))
    if is_original(record):
        return {"kind": kind, "label": "Original"}
    if (record.get("extra") or {}).get("mass") is True:
        label += " + mass"
    split = (record.get("task") or {}).get("split")
    if kind == "search" and record["recipe"].get("split") not in (None, split):
        return {"kind": "compare", "label": f"{label} (found by search)"}
    return {"kind": kind, "label": label}
