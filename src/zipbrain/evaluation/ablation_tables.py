"""How an ablation is laid out: variants as rows, metrics as columns, spreads and differences under them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from zipbrain.evaluation.comparison_tables import metrics_in, percent
from zipbrain.evaluation.options import Setting, optimistic
from zipbrain.evaluation.tables import TASK, Group, Row, Table, interval, number
from zipbrain.evaluation.wording import NOTHING, OPERATIONS, UNCHANGED, operations_text, share_text
from zipbrain.metrics import in_order, main_metric

if TYPE_CHECKING:
    from zipbrain.evaluation.ablation import Ablation, AblationRow

_LABELS: Final = {
    "uncompressed": "Original",
    "full": "full ZIPBrain",
    "pivots as regular tokens": "regular pivots",
}


def tables(found: Ablation) -> list[Table]:
    """Accuracy, and agreement with the uncompressed model."""
    task = found.task
    asked = f"{percent(found.ratio)} asked, {share_text(found.rows[1].removed)} removed"
    about = f"{task['model']} on {task['dataset']}, {task['split']}: {task['windows']} windows, {asked}"
    return [_accuracy(found, about), _agreement(found, about)]


def _accuracy(found: Ablation, about: str) -> Table:
    metrics = metrics_in(found.rows[0].scores)
    main, full = main_metric(len(found.task["classes"])), found.rows[1].paper
    groups = []
    for row in found.rows:
        spreads = [row.scores[m.name] for m in metrics]
        means = [number(one.mean, m.form) for one, m in zip(spreads, metrics, strict=True)]
        lines = {label(row): [operations_text(row.operations), *means]}
        if row.intervals:
            lines["  95 %"] = ["", *(interval(row.intervals.get(m.name)) for m in metrics)]
        if row.runs > 1:
            lines[f"  sd of {row.runs}"] = ["", *(number(one.deviation) for one in spreads)]
            lines["  least, most"] = ["", *(interval((one.low, one.high)) for one in spreads)]
        if row.to_full and row.name != "full":
            lines["  to full"] = ["", *(number(row.to_full[m.name], "+.4f") for m in metrics)]
        if row.paper is not None:
            lines["  paper"] = ["", *(f"{row.paper:.4f}" if m.name == main else "" for m in metrics)]
            if full is not None and row.name != "full":
                change = f"{row.paper / full - 1:+.2%}"
                lines["  paper to full"] = ["", *(change if m.name == main else "" for m in metrics)]
        rows = (Row((head, *cells), quiet=head.startswith(" ")) for head, cells in lines.items())
        groups.append(Group("", tuple(rows)))
    heads = ("Variant", OPERATIONS, *(m.short for m in metrics))
    return Table(f"{about}: ablation", heads, tuple(groups))


def _agreement(found: Ablation, about: str) -> Table:
    rows = []
    for row in found.rows[1:]:
        counts = row.token_counts
        left = f"{counts[0]}→{counts[-1]}" if counts else NOTHING
        same, error = share_text(row.agreement.mean), number(row.logit_error.mean, ".3f")
        if row.runs > 1:
            same = f"{100 * row.agreement.mean:.1f} ± {share_text(row.agreement.deviation)}"
            error += f" ± {number(row.logit_error.deviation, '.3f')}"
        asked = percent(found.ratio)
        costs = operations_text(row.operations)
        rows.append((label(row), costs, same, error, left, asked, share_text(row.removed)))
    heads = ("Variant", OPERATIONS, UNCHANGED, "logit\nerror", "tokens", "removed,\nasked", "truly\nremoved")
    return Table.of(f"{about}: against the original", heads, rows)


def label(row: AblationRow) -> str:
    """The variant's name, short."""
    return _LABELS.get(row.name, row.name)


def notes(found: Ablation, chosen: Setting, seeds: int) -> list[str]:
    """What must be read beside the tables."""
    full = found.rows[1]
    lines = [f"Full ZIPBrain: {chosen.words}.", *optimistic(chosen, found.task)]
    if full.removed == 0:
        lines.append(f"r = 0 at {percent(found.ratio)}: nothing is removed, so all variants are the original.")
    lines.append(
        "Operations: of the original's, matrix products of the blocks and of pooling itself, counted by hand; "
        "variants are not timed."
    )
    if seeds > 1:
        lines.append(
            f"Random variants: mean over seeds 0 to {seeds - 1}, sd: standard deviation (n - 1), least and most."
        )
    else:
        lines.append("Random variants: one seed only, so their spread is unknown.")
    if any(row.intervals for row in found.rows):
        lines.append("95 %: bootstrap over subjects.")
    elif found.task["subjects"] < 2:
        lines.append("No intervals: all windows are of one subject.")
    lines.append(
        "to full: difference of means. Pruning drops redundant tokens instead of merging them; regular pivots may "
        "become redundant as any other token."
    )
    if any(row.paper is not None for row in found.rows):
        lines.append(
            "paper: of its own checkpoint, in its main metric, at a ratio that it does not state, with the relative "
            "change to its full method (which its table calls Original). Pruning and pivots are in a figure only."
        )
    if any(math.isnan(spread.mean) for row in found.rows for spread in row.scores.values()):
        lines.append(f"{NOTHING}: not defined on these windows.")
    return lines


def flat(found: Ablation, row: AblationRow) -> dict[str, Any]:
    """One line of a CSV file."""
    task = found.task
    line: dict[str, Any] = {name: task[name] for name in TASK}
    line |= {"variant": row.name, "ratio": found.ratio if row.recipes else None, "runs": row.runs}
    line["operations"] = row.operations
    for name in in_order(found.rows[0].scores):
        spread, (low, high) = row.scores[name], row.intervals.get(name, (None, None))
        line |= {name: spread.mean, f"{name}_deviation": spread.deviation}
        line |= {f"{name}_least": spread.low, f"{name}_most": spread.high}
        line |= {f"{name}_low": low, f"{name}_high": high, f"{name}_to_full": row.to_full.get(name)}
    line |= {"paper": row.paper, "tokens": row.token_counts, "removed": row.removed}
    line |= {"agreement": row.agreement.mean, "logit_error": row.logit_error.mean}
    return line
