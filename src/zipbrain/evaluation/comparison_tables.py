"""How a comparison is laid out: methods as rows, metrics as columns, grouped by ratio, with notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.paper_results import Reported
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.tables import TASK, Group, Row, Table, best_of, interval, number
from zipbrain.evaluation.wording import (
    LOOKED_TWICE,
    NOTHING,
    OPERATIONS,
    TIMES_AS_FAST,
    TIMES_SLICING,
    UNCHANGED,
    operations_text,
    share_text,
    speed_text,
)
from zipbrain.metrics import METRICS, Metric, in_order

if TYPE_CHECKING:
    from zipbrain.evaluation.comparison import Comparison

DOUBT: Final = "†"  # marks a value of the paper that is wrong
FEWER: Final = "*"  # marks a row that removed fewer tokens than asked
_UNTIMED: Final = "untimed"
_LATENCY: Final = ("to_original", "noise", "to_slicing", "seconds", "original_seconds")


def tables(found: Comparison) -> list[Table]:
    """Accuracy, cost, and tokens per layer."""
    task = found.task
    about = f"{task['model']} on {task['dataset']}, {task['split']}: {task['windows']} windows"
    about += f" of {task['subjects']} subject{'s' * (task['subjects'] != 1)}"
    return [_accuracy(found, about), _cost(found, about), _tokens(found, about)]


def percent(ratio: float | str | None) -> str:
    """``80 %``, ``maximum``, or of a recipe that is run as it is ``as tuned``."""
    return "as tuned" if ratio is None else "maximum" if ratio == "max" else f"{100 * float(ratio):g} %"


def metrics_in(scores: Iterable[str]) -> list[Metric]:
    """The metrics of some scores, in the order of every table."""
    return [METRICS.get(name, Metric(name, name, name, float)) for name in in_order(scores)]


def _accuracy(found: Comparison, about: str) -> Table:
    metrics, timed = metrics_in(found.original.scores), bool(found.timing)
    heads = ("Method", *((TIMES_AS_FAST,) if timed else ()), OPERATIONS)
    groups = []
    for heading, results in _groups(found):
        best = [best_of((r.value(m.name) for r in results), m.larger_is_better) if heading else () for m in metrics]
        rows = []
        for place, result in enumerate(results):
            costs = (*((times_as_fast(found, result),) if timed else ()), operations(result))
            none = ("",) * len(costs)
            marked = frozenset(column for column, places in enumerate(best, len(heads)) if place in places)
            values = (number(result.value(m.name), m.form) for m in metrics)
            rows.append(Row((label(result), *costs, *values), best=marked))
            if result.intervals:
                bounds = (interval(result.intervals.get(m.name)) for m in metrics)
                rows.append(Row(("  95 %", *none, *bounds), quiet=True))
            if result.paper:
                printed = (_printed(result.paper.get(m.name)) for m in metrics)
                rows.append(Row(("  paper", *none, *printed), quiet=True))
        groups.append(Group(heading, tuple(rows)))
    return Table(f"{about}: accuracy", (*heads, *(m.short for m in metrics)), tuple(groups))


def _cost(found: Comparison, about: str) -> Table:
    """Columns are dropped where no row has anything to say in them."""
    timed = bool(found.timing)
    shown = {TIMES_SLICING: timed, "saved\nonnx-tool": any(row.graph for row in found.rows)}
    shown |= {TIMES_AS_FAST: timed, LOOKED_TWICE: any(not math.isnan(row.looked) for row in found.rows)}
    groups, heads = [], ["Method"]
    for heading, rows in _groups(found):
        lines = []
        for row in rows:
            cells = {name: cell for name, cell in _costs(found, row).items() if shown.get(name, True)}
            heads = ["Method", *cells]
            lines.append(Row((label(row), *cells.values())))
        groups.append(Group(heading.partition(",")[0], tuple(lines)))  # what was removed is in a column
    return Table(f"{about}: cost", tuple(heads), tuple(groups))


def _costs(found: Comparison, row: Result) -> dict[str, str]:
    """The cells of one row of the table of costs, by the heads of their columns."""
    counts, original = row.token_counts, row.is_original
    left = NOTHING if not counts else f"{counts[0]}" if original else f"{counts[0]}→{counts[-1]}"
    return {
        TIMES_AS_FAST: times_as_fast(found, row, noise=True),
        TIMES_SLICING: speed_text((row.latency or {}).get("to_slicing")),
        OPERATIONS: operations(row),
        "saved\nonnx-tool": _graph_saved(found, row),
        UNCHANGED: NOTHING if original else share_text(row.agreement),
        LOOKED_TWICE: share_text(row.looked),
        "logit\nerror": NOTHING if original else number(row.logit_error, ".3f"),
        "tokens": left,
        "removed,\nasked": NOTHING if row.ratio is None else percent(row.ratio),
        "truly\nremoved": NOTHING if original else share_text(row.removed),
    }


def times_as_fast(found: Comparison, row: Result, noise: bool = False) -> str:
    """How many times as fast as the original, with half of its 95 % interval if wanted and known."""
    if row.is_original:
        return "1.00"
    if row.latency is None:
        return _UNTIMED if row.ratio in found.untimed else NOTHING
    return speed_text(row.latency["to_original"], row.latency.get("noise") if noise else None)


def operations(row: Result) -> str:
    """Share of the original's operations, pooling and second looks included."""
    return operations_text(1.0 if row.is_original else row.operations)


def _tokens(found: Comparison, about: str) -> Table:
    groups = []
    for heading, rows in _groups(found):
        alike: dict[tuple[int, ...], list[str]] = {}
        for row in rows:
            if not row.mass or not any(other.label == row.label and not other.mass for other in rows):
                alike.setdefault(row.token_counts, []).append(label(row))
        if heading:
            lines = [Row((", ".join(names), " ".join(map(str, counts)))) for counts, names in alike.items()]
            groups.append(Group(heading, tuple(lines)))
    heads = ("Methods", "tokens before the first block, then after each")
    return Table(f"{about}: tokens", heads, tuple(groups), words=2)


def label(row: Result) -> str:
    """The method's name, with ``+ mass`` and with a star where fewer tokens went than asked."""
    return f"{row.label.removesuffix(' + mass')}{' + mass' * row.mass}{FEWER * row.fewer}"


def where(row: Result) -> str:
    """A compressed row's label, and its ratio where it has one: ``ToMe at 80 %``."""
    return label(row) if row.ratio is None else f"{label(row)} at {percent(row.ratio)}"


def _groups(found: Comparison) -> list[tuple[str, list[Result]]]:
    """The original, then the rows of each ratio under a heading."""
    ratios = dict.fromkeys(row.ratio for row in found.rows[1:])
    groups = [("", [found.original])]
    for ratio in ratios:
        rows = [row for row in found.rows[1:] if row.ratio == ratio]
        steps = [before - after for row in rows for before, after in pairwise(row.token_counts)]
        most = f" (r = {max(steps, default=0)})"
        groups.append((f"{heading(ratio)}, {removed_text(rows)} removed{most * (ratio is not None)}", rows))
    return groups


def heading(ratio: float | str | None) -> str:
    """``80 % asked``, or ``as tuned``."""
    return percent(ratio) if ratio is None else f"{percent(ratio)} asked"


def removed_text(rows: Sequence[Result]) -> str:
    """The true removal of a group's rows: one number, or the least and the largest."""
    least, most = (f"{100 * bound(row.removed for row in rows):.1f}" for bound in (min, max))
    return f"{most} %" if least == most else f"{least} to {most} %"


def _printed(value: Reported | None) -> str:
    return "" if value is None else f"{value.value:.4f}{DOUBT * bool(value.doubt)}"


def _graph_saved(found: Comparison, row: Result) -> str:
    original = found.original.graph
    if row.graph is None or original is None or row.is_original:
        return NOTHING
    saved = row.graph.saved(original)
    return "failed" if saved is None else share_text(saved)


def flat(found: Comparison, row: Result) -> dict[str, Any]:
    """One line of a CSV file."""
    task, original, hand = found.task, found.original, row.hand
    line: dict[str, Any] = {name: task[name] for name in TASK}
    line |= {"method": row.method, "label": row.label, "ratio": row.ratio, "mass": row.mass}
    if found.timing:
        line |= {f"latency_{name}": (row.latency or {}).get(name) for name in _LATENCY}
    line |= {"operations": row.operations, "macs_by_hand": None if hand is None else hand.macs}
    line |= {
        "saved_by_hand": None if hand is None else hand.saved,
        "macs_pooling": None if hand is None else hand.pooling,
    }
    if original.graph is not None:
        line["macs_onnx_tool"] = None if row.graph is None else row.graph.macs
        line["saved_onnx_tool"] = None if row.graph is None else row.graph.saved(original.graph)
    line |= {"agreement": row.agreement, "looked_twice": row.looked, "logit_error": row.logit_error}
    for name in in_order(found.original.scores):
        low, high = row.intervals.get(name, (None, None))
        value = row.paper.get(name)
        line |= {name: row.value(name), f"{name}_low": low, f"{name}_high": high}
        line[f"{name}_paper"] = None if value is None or value.doubt else value.value
    doubts = [f"{name} {value.value:.4f}: {value.doubt}" for name, value in row.paper.items() if value.doubt]
    line |= {"paper_note": "; ".join(doubts), "tokens": row.token_counts, "removed": row.removed}
    line |= {"fewer_than_asked": row.fewer}
    line["options"] = "" if row.recipe is None else json.dumps(row.recipe["method"], sort_keys=True)
    return line


def nested(found: Comparison, row: Result) -> dict[str, Any]:
    """One row as JSON."""
    measured = ("latency", "operations", "agreement", "looked", "logit_error", "scores", "intervals")
    names = ("label", "method", "ratio", "mass", *measured, "token_counts", "removed", "fewer")
    content = {name: getattr(row, name) for name in names}
    content["hand"] = None if row.hand is None else {**asdict(row.hand), "saved": row.hand.saved}
    content["graph"] = None if row.graph is None else asdict(row.graph)
    if row.graph is not None and found.original.graph is not None:
        content["graph"]["saved"] = row.graph.saved(found.original.graph)
    paper = {name: asdict(value) for name, value in row.paper.items()}
    return {**content, "paper": paper, "recipe": row.recipe}
