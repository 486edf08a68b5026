"""How a comparison is laid out: methods as rows, metrics as columns, grouped by ratio, with notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.options import Setting, optimistic
from zipbrain.evaluation.paper_results import COPY_ERROR, SAVED_FLOPS, Reported
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.tables import NOTHING, TASK, Group, Row, Table, best_of, interval, number
from zipbrain.metrics import METRICS, Metric, in_order

if TYPE_CHECKING:
    from zipbrain.evaluation.comparison import Comparison

_DOUBT: Final = "†"
_FEWER: Final = "*"
_MANY: Final = 100  # tokens for which a method is asked how many it can take
_UNTIMED: Final = "untimed"
_LATENCY: Final = ("seconds", "original_seconds", "to_original", "to_slicing")


def tables(found: Comparison) -> list[Table]:
    """Accuracy, cost, and tokens per layer."""
    task = found.task
    about = f"{task['model']} on {task['dataset']}, {task['split']}: {task['windows']} windows"
    about += f" of {task['subjects']} subject{'s' * (task['subjects'] != 1)}"
    return [_accuracy(found, about), _cost(found, about), _tokens(found, about)]


def percent(ratio: float | str | None) -> str:
    """``80 %``, ``maximum``, or nothing."""
    return "" if ratio is None else "maximum" if ratio == "max" else f"{100 * float(ratio):g} %"


def metrics_in(scores: Iterable[str]) -> list[Metric]:
    """The metrics of some scores, in the order of every table."""
    return [METRICS.get(name, Metric(name, name, name, float)) for name in in_order(scores)]


def _accuracy(found: Comparison, about: str) -> Table:
    metrics = metrics_in(found.original.scores)
    groups = []
    for heading, results in _groups(found):
        best = [best_of((r.value(m.name) for r in results), m.larger_is_better) if heading else () for m in metrics]
        rows = []
        for place, result in enumerate(results):
            marked = frozenset(column for column, places in enumerate(best, 1) if place in places)
            rows.append(Row((label(result), *(number(result.value(m.name), m.form) for m in metrics)), best=marked))
            if result.intervals:
                rows.append(Row(("  95 %", *(interval(result.intervals.get(m.name)) for m in metrics)), quiet=True))
            if result.paper:
                rows.append(Row(("  paper", *(_printed(result.paper.get(m.name)) for m in metrics)), quiet=True))
        groups.append(Group(heading, tuple(rows)))
    return Table(f"{about}: accuracy", ("Method", *(m.short for m in metrics)), tuple(groups))


def _cost(found: Comparison, about: str) -> Table:
    timed = bool(found.timing)
    counted = any(row.graph for row in found.rows)
    heads = ["Method", "tokens", "truly\nremoved", "GFLOP\nby hand", "saved\nby hand"]
    heads += ["saved\nonnx-tool"] if counted else []
    heads += ["time to\noriginal", "time to\nslicing"] if timed else []
    heads += ["same\nanswer", "logit\nerror"]
    groups = []
    for heading, rows in _groups(found):
        lines = []
        for row in rows:
            counts, hand, original = row.token_counts, row.hand, row.ratio is None
            left = NOTHING if not counts else f"{counts[0]}" if original else f"{counts[0]}→{counts[-1]}"
            cells = [label(row), left]
            cells.append(NOTHING if original else f"{row.removed:.1%}")
            cells.append(NOTHING if hand is None else f"{2 * hand.macs / 1e9:.3f}")
            cells.append(NOTHING if hand is None or original else f"{hand.saved:.1%}")
            if counted:
                cells.append(_graph_saved(found, row))
            if timed:
                cells += [_UNTIMED if row.ratio in found.untimed and not row.latency else _ratio(row, "to_original")]
                cells += [_ratio(row, "to_slicing")]
            cells += [NOTHING, NOTHING] if original else [f"{row.agreement:.1%}", number(row.logit_error, ".3f")]
            lines.append(Row(tuple(cells)))
        groups.append(Group(heading.partition(" (")[0], tuple(lines)))  # r would wrap in so wide a table
    return Table(f"{about}: cost", tuple(heads), tuple(groups))


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
    return f"{row.label}{' + mass' * row.mass}{_FEWER * row.fewer}"


def _groups(found: Comparison) -> list[tuple[str, list[Result]]]:
    """The original, then the rows of each ratio under a heading."""
    ratios = dict.fromkeys(row.ratio for row in found.rows[1:])
    groups = [("", [found.original])]
    for ratio in ratios:
        rows = [row for row in found.rows[1:] if row.ratio == ratio]
        steps = [before - after for row in rows for before, after in pairwise(row.token_counts)]
        groups.append((f"{percent(ratio)} asked, {_removed(rows)} removed (r = {max(steps, default=0)})", rows))
    return groups


def _removed(rows: Sequence[Result]) -> str:
    """The true removal of a group's rows: one number, or the least and the largest."""
    least, most = (f"{100 * bound(row.removed for row in rows):.1f}" for bound in (min, max))
    return f"{most} %" if least == most else f"{least} to {most} %"


def _printed(value: Reported | None) -> str:
    return "" if value is None else f"{value.value:.4f}{_DOUBT * bool(value.doubt)}"


def _ratio(row: Result, name: str) -> str:
    return NOTHING if row.latency is None else f"{row.latency[name]:.2f}"


def _graph_saved(found: Comparison, row: Result) -> str:
    original = found.original.graph
    if row.graph is None or original is None or row.ratio is None:
        return NOTHING
    saved = row.graph.saved(original)
    return "failed" if saved is None else f"{saved:.1%}"


def notes(found: Comparison, chosen: Sequence[Setting], masses: Sequence[bool]) -> list[str]:
    """What must be read beside the tables."""
    rows = found.rows[1:]
    lines = [f"{setting.label}: {setting.words}." for setting in chosen if setting.words]
    lines += [line for setting in chosen for line in optimistic(setting, found.task)]
    if any(row.fewer for row in rows):
        half = [one.label for one in chosen if one.method.limit(_MANY) == _MANY // 2]
        limit = f"{' and '.join(half)} take{'s' * (len(half) == 1)} at most half of the tokens of a layer, and "
        lines.append(f"{_FEWER} fewer tokens removed than asked: {limit * bool(half)}one token always stays.")
    for ratio in dict.fromkeys(row.ratio for row in rows if row.removed == 0):
        n = found.original.token_counts[0] if found.original.token_counts else "these"
        lines.append(f"r = 0 at {percent(ratio)}: of {n} tokens less than half a token a layer, so nothing is removed.")
    if any(row.mass for row in rows):
        lines.append("+ mass: merged tokens count as many as they stand for, in attention, merge and readout.")
        for setting in chosen:
            uses = asdict(setting.method.mass)
            own, added = ([use for use, is_own in uses.items() if is_own is wanted] for wanted in (True, False))
            if own and added:
                own_uses = f"{setting.label} weighs {' and '.join(own)} by itself, in both of its rows"
                lines.append(f"{own_uses}; + mass adds the {' and '.join(added)}.")
    dropping = [setting.label for setting in chosen if not setting.method.merges]
    if dropping and True in masses:
        lines.append(
            f"{' and '.join(dropping)}: tokens are dropped and none stands for others, so mass changes nothing."
        )
    if any(math.isnan(value) for row in found.rows for value in row.scores.values()):
        lines.append(f"{NOTHING}: not defined on these windows, which are of one class or were all called one class.")
    if any(row.intervals for row in found.rows):
        lines.append(
            "95 %: bootstrap over subjects; bold: the best of a ratio, whether or not the intervals tell apart."
        )
    elif found.task["subjects"] < 2:
        lines.append("No intervals: all windows are of one subject.")
    if any(row.paper for row in found.rows):
        lines.append("paper: as printed, of the paper's own checkpoints; its split may differ from yours.")
    if any(value.doubt for row in found.rows for value in row.paper.values()):
        lines.append(f"{_DOUBT} no comparison: {COPY_ERROR}.")
    patch = ", of one patch of 64 samples" if found.task["model"] == "EEGPT" else ""
    lines.append(f"By hand: matrix products of the blocks{patch}; no embedding, head, norm, softmax or pooling in it.")
    lines += _graph_notes(found)
    for (model, dataset, ratio), saved in SAVED_FLOPS.items():
        if (model, dataset) == (found.task["model"], found.task["dataset"]) and any(row.ratio == ratio for row in rows):
            lines.append(f"The paper counts {saved:.2%} saved at {percent(ratio)} (whole network, onnx-tool).")
    if found.untimed:
        ratios = ", ".join(percent(ratio) for ratio in found.untimed)
        lines.append(f"Not timed yet: {ratios}; timing has a budget of seconds, and the same again goes on from there.")
    if any(row.latency for row in found.rows):
        timing = found.timing
        threads = f"{timing['threads']} thread{'s' * (timing['threads'] != 1)}"
        rounds = f"{timing['rounds']} round{'s' * (timing['rounds'] != 1)}"
        lines.append(
            f"Time: median ratio of calls made in turn, batch {timing['batch']}, {threads}, {timing['device']}, "
            f"{rounds}; slicing drops as many tokens without choosing."
        )
    weighed = {row.label for row in rows if row.mass}
    labels = [one.label for one in chosen if one.method.merges and one.label not in weighed]
    if labels and True in masses:
        lines.append(
            f"{' and '.join(labels)}: mass is used in attention, merge and readout anyway, so there is one row."
        )
    return lines


def _graph_notes(found: Comparison) -> list[str]:
    counts = [row.graph for row in found.rows if row.graph is not None]
    if not counts:
        return []
    lines = []
    if found.original.graph is not None and found.original.graph.macs:
        total = 2 * found.original.graph.macs / 1e9
        lines.append(f"onnx-tool: {total:.3f} GFLOP in the original's exported graph, pooling counted in the others.")
    missing = sorted({name for count in counts for name in count.uncounted})
    if missing:
        lines.append(f"onnx-tool has no rule for {', '.join(missing)} and counts them as nothing.")
    lines += sorted({f"onnx-tool failed: {count.failure}" for count in counts if count.failure})
    return lines


def flat(found: Comparison, row: Result) -> dict[str, Any]:
    """One line of a CSV file."""
    task, original = found.task, found.original
    line: dict[str, Any] = {name: task[name] for name in TASK}
    line |= {"method": row.method, "label": row.label, "ratio": row.ratio, "mass": row.mass}
    for name in in_order(found.original.scores):
        low, high = row.intervals.get(name, (None, None))
        value = row.paper.get(name)
        line |= {name: row.value(name), f"{name}_low": low, f"{name}_high": high}
        line[f"{name}_paper"] = None if value is None or value.doubt else value.value
    doubts = [f"{name} {value.value:.4f}: {value.doubt}" for name, value in row.paper.items() if value.doubt]
    line |= {"paper_note": "; ".join(doubts), "tokens": row.token_counts, "removed": row.removed}
    line |= {"fewer_than_asked": row.fewer, "agreement": row.agreement, "logit_error": row.logit_error}
    line["macs_by_hand"] = None if row.hand is None else row.hand.macs
    line["saved_by_hand"] = None if row.hand is None else row.hand.saved
    if original.graph is not None:
        line["macs_onnx_tool"] = None if row.graph is None else row.graph.macs
        line["saved_onnx_tool"] = None if row.graph is None else row.graph.saved(original.graph)
    if found.timing:
        line |= {f"latency_{name}": row.latency[name] if row.latency else None for name in _LATENCY}
    line["options"] = "" if row.recipe is None else json.dumps(row.recipe["method"], sort_keys=True)
    return line


def nested(found: Comparison, row: Result) -> dict[str, Any]:
    """One row as JSON."""
    names = ("label", "method", "ratio", "mass", "scores", "intervals", "token_counts", "removed", "fewer")
    content = {name: getattr(row, name) for name in (*names, "agreement", "logit_error")}
    content["hand"] = None if row.hand is None else {**asdict(row.hand), "saved": row.hand.saved}
    content["graph"] = None if row.graph is None else asdict(row.graph)
    if row.graph is not None and found.original.graph is not None:
        content["graph"]["saved"] = row.graph.saved(found.original.graph)
    paper = {name: asdict(value) for name, value in row.paper.items()}
    return {**content, "latency": row.latency, "paper": paper, "recipe": row.recipe}
