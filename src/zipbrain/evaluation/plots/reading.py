"""What pictures and tables of stored records share: names, orders, the paper's values, costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from zipbrain.evaluation.paper_results import reported

Record = dict[str, Any]

METRICS: Final = {
    "auroc": "AUROC", "kappa": "Cohen's kappa", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy",
    "pr_auc": "PR-AUC", "weighted_f1": "weighted F1",
}  # fmt: skip
_ORDER: Final = ("original", "zipbrain", "tome", "tofu", "evit", "dart", "full")

# Costs that a record's `extra` may hold: key, whether it is a share of the original's already, name.
_COSTS: Final = (
    ("macs", False, "multiply-adds"),
    ("latency_ratio", True, "latency"),
)
TOKEN_LOAD: Final = "token load"


def plain(label: object) -> str:
    """A label without case, blanks and dashes."""
    return "".join(c for c in str(label).lower() if c.isalnum())


def is_original(record: Record) -> bool:
    """Whether a record is that of the uncompressed model."""
    return record.get("recipe") is None


def labels_of(records: Iterable[Record]) -> list[str]:
    """Labels of the compressed records, in the paper's order, then as they came."""
    found = list(dict.fromkeys(str(record["label"]) for record in records if not is_original(record)))
    return sorted(found, key=lambda label: _ORDER.index(plain(label)) if plain(label) in _ORDER else len(_ORDER))


def ratio_order(record: Record) -> tuple[float, str]:
    """Key that sorts by the ratio asked for: numbers first, then max, then none."""
    ratio = record.get("ratio")
    if isinstance(ratio, int | float):
        return float(ratio), ""
    return (2.0 if ratio == "max" else 3.0), str(ratio)


def score(record: Record, metric: str) -> float | None:
    """The record's score, or None where it has none or it is undefined."""
    value = record.get("scores", {}).get(metric)
    return None if value is None or math.isnan(value) else float(value)


def interval(record: Record, metric: str) -> tuple[float, float] | None:
    """The record's interval, or None."""
    given = (record.get("intervals") or {}).get(metric)
    if not given or any(value is None or math.isnan(value) for value in given):
        return None
    return float(given[0]), float(given[1])


def main_metric(records: Sequence[Record]) -> str:
    """The metric by which the paper ranks: AUROC with two classes, Cohen's kappa with more; else one they have."""
    classes = len((records[0].get("task") or {}).get("classes") or ())
    wanted = "auroc" if classes == 2 else "kappa"
    for name in (wanted, *METRICS):
        if any(score(record, name) is not None for record in records):
            return name
    return wanted


def paper_value(record: Record, metric: str) -> float | None:
    """What the paper reports for the record's model, corpus, method and ratio; None where nothing, or in doubt."""
    task = record.get("task") or {}
    method = "original" if is_original(record) else plain(record["label"])
    found = reported(str(task.get("model")), str(task.get("dataset")), method, record.get("ratio")).get(metric)
    return None if found is None or found.doubt else found.value


def costs(record: Record, original: Record | None) -> dict[str, float]:
    """Costs of a record as shares of the uncompressed model's, by kind.

    Multiply-adds (counted by onnx-tool) and latency where `extra` has them; always, where the tokens at every block are
    known, the token load: attention works on the tokens before it, the feed-forward part on those after, both counted
    alike.
    """
    if is_original(record):
        return dict.fromkeys((*(name for _, _, name in _COSTS), TOKEN_LOAD), 1.0)
    extra, before = record.get("extra") or {}, (original or {}).get("extra") or {}
    found = {}
    for key, relative, name in _COSTS:
        if extra.get(key) is not None and (relative or before.get(key)):
            found[name] = float(extra[key]) / (1.0 if relative else float(before[key]))
    counts = list(record.get("token_counts") or ())
    if len(counts) > 1:
        found[TOKEN_LOAD] = sum(counts[:-1] + counts[1:]) / (2 * (len(counts) - 1) * counts[0])
    return found


def known_costs(records: Sequence[Record]) -> dict[str, int]:
    """Kinds of cost that any compressed record has, measured ones first, and how many have each."""
    original = next((record for record in records if is_original(record)), None)
    each = [costs(record, original) for record in records if not is_original(record)]
    counts = {name: sum(name in found for found in each) for name in (*(name for _, _, name in _COSTS), TOKEN_LOAD)}
    return {name: count for name, count in counts.items() if count}
