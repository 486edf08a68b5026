"""Stored records as one flat table: a row each, all numbers in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from zipbrain.evaluation.plots.reading import (
    METRICS,
    Record,
    interval,
    main_metric,
    paper_value,
    score,
)
from zipbrain.evaluation.tables import csv_text

_TASK: Final = ("model", "dataset", "split", "windows", "subjects", "checkpoint", "weights_sha256", "data_sha256")
_PLAIN: Final = ("removed", "agreement", "logit_error", "seconds", "token_counts")


def as_csv(records: Sequence[Record]) -> str:
    """The table, with a header; what a record lacks is empty."""
    return csv_text([_row(record) for record in records])


def _row(record: Record) -> dict[str, Any]:
    task, recipe, extra = (record.get(name) or {} for name in ("task", "recipe", "extra"))
    row: dict[str, Any] = {name: _safe(task.get(name)) for name in _TASK}
    row |= {name: _safe(record.get(name)) for name in ("kind", "label", "ratio")}
    row |= {"mass": extra.get("mass"), "chosen_on_dataset": _safe(recipe.get("dataset"))}
    row |= {"chosen_on_split": _safe(recipe.get("split")), **{name: record.get(name) for name in _PLAIN}}
    for metric in METRICS:
        low, high = interval(record, metric) or (None, None)
        row |= {metric: score(record, metric), f"{metric}_low": low, f"{metric}_high": high}
    row["paper"] = paper_value(record, main_metric([record])) if extra.get("mass") is not True else None
    row |= {f"latency_{name}": value for name, value in (extra.get("latency") or {}).items()}
    row["macs"] = extra.get("macs")
    row["recipe"] = json.dumps(recipe, sort_keys=True) if recipe else ""
    row["key"] = record.get("key")
    return row


def _safe(value: object) -> object:
    """A name that a spreadsheet would run as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
