"""Which stored records a report can show: a line of the store may hold anything that has a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zipbrain.evaluation.plots.reading import Record


def usable(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records that have the form that `compare`, `ablate` and `search` write, and a remark on every other one."""
    good, remarks = [], []
    for record in records:
        field = _odd_field(record)
        if field is None:
            good.append(record)
        else:
            remarks.append(f"record {str(record.get('key'))[:40]!r} is left out: its {field} is missing or of odd form")
    return good, remarks


def _odd_field(record: Record) -> str | None:
    """The first field that is not as it should be, or None."""
    task, recipe, extra = ({} if record.get(name) is None else record[name] for name in ("task", "recipe", "extra"))
    kind = record.get("kind")
    counts, ratio, scores = record.get("token_counts") or [], record.get("ratio"), record.get("scores")
    fine = {
        "task": isinstance(task, dict) and _is_task(task),
        "label": isinstance(record.get("label"), str),
        "ratio": ratio is None or isinstance(ratio, str) or _number(ratio),
        "recipe": record.get("recipe") is None or _is_recipe(recipe),
        "extra": isinstance(extra, dict) and _is_extra(extra, kind),
        "scores": (kind in ("latency", "flops") and "scores" not in record) or (bool(scores) and _numbers(scores)),
        "intervals": _are_intervals(record.get("intervals")),
        "confusion": _is_table(record.get("confusion")),
        "token_counts": _list_of_numbers(counts) and (not counts or counts[0] > 0),
    }
    for name in ("removed", "agreement", "logit_error", "seconds"):
        fine[name] = record.get(name) is None or _number(record[name])
    return next((name for name, good in fine.items() if not good), None)


def _is_task(task: dict[str, Any]) -> bool:
    counts = all(task.get(name) is None or _number(task[name]) for name in ("windows", "subjects"))
    return counts and isinstance(task.get("classes") or [], list)


def _is_recipe(recipe: Any) -> bool:
    if not isinstance(recipe, dict) or not isinstance(recipe.get("method"), dict):
        return False
    return isinstance(recipe["method"].get("name"), str) and isinstance(recipe.get("mass") or {}, dict)


def _is_extra(extra: dict[str, Any], kind: object) -> bool:
    latency, timing = extra.get("latency"), extra.get("timing")
    if kind == "latency" and not (isinstance(latency, dict) and _number(latency.get("to_original"))):
        return False
    if kind == "flops" and not _number(extra.get("macs")):
        return False
    plain = all(extra.get(name) is None or _number(extra[name]) for name in ("macs", "latency_ratio"))
    return plain and isinstance(latency or {}, dict) and isinstance(timing or {}, dict)


def _are_intervals(intervals: Any) -> bool:
    if not isinstance(intervals or {}, dict):
        return False
    return all(_list_of_numbers(pair) and len(pair) == 2 for pair in (intervals or {}).values() if pair is not None)


def _is_table(rows: Any) -> bool:
    """Whether it is nothing, or as many rows as columns of numbers."""
    if not isinstance(rows or [], list):
        return False
    return all(_list_of_numbers(row) and len(row) == len(rows) for row in rows or [])


def _numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(_number(value) for value in values.values())


def _list_of_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(_number(value) for value in values)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
