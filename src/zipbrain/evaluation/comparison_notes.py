"""What must be read beside the tables of a comparison, one sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from zipbrain.evaluation.comparison_tables import DOUBT, FEWER, percent
from zipbrain.evaluation.options import Setting, optimistic
from zipbrain.evaluation.paper_results import COPY_ERROR, SAVED_FLOPS
from zipbrain.evaluation.wording import NOTHING
from zipbrain.seal import Promise, find_broken_seal

if TYPE_CHECKING:
    from zipbrain.evaluation.comparison import Comparison

_MANY: Final = 100  # tokens for which a method is asked how many it can take


def notes(
    found: Comparison, chosen: Sequence[Setting], masses: Sequence[bool], tuned: Setting | None = None
) -> list[str]:
    """What must be read beside the tables."""
    rows = found.rows[1:]
    everyone = [*chosen, *([] if tuned is None else [tuned])]
    lines = [f"{setting.label}: {setting.words}." for setting in everyone if setting.words]
    lines += [line for setting in everyone for line in optimistic(setting, found.task)]
    lines += _promises(found, tuned)
    if any(row.fewer for row in rows):
        half = [one.label for one in chosen if one.method.limit(_MANY) == _MANY // 2]
        limit = f"{' and '.join(half)} take{'s' * (len(half) == 1)} at most half of the tokens of a layer, and "
        lines.append(f"{FEWER} fewer tokens removed than asked: {limit * bool(half)}one token always stays.")
    for ratio in dict.fromkeys(row.ratio for row in rows if row.removed == 0 and row.ratio is not None):
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
        lines.append(f"{DOUBT} no comparison: {COPY_ERROR}.")
    lines += _operation_notes(found)
    lines += _graph_notes(found)
    for (model, dataset, ratio), saved in SAVED_FLOPS.items():
        if (model, dataset) == (found.task["model"], found.task["dataset"]) and any(row.ratio == ratio for row in rows):
            lines.append(f"The paper counts {saved:.2%} saved at {percent(ratio)} (whole network, onnx-tool).")
    lines += _time_notes(found)
    weighed = {row.label for row in rows if row.mass}
    labels = [one.label for one in chosen if one.method.merges and one.label not in weighed]
    if labels and True in masses:
        lines.append(
            f"{' and '.join(labels)}: mass is used in attention, merge and readout anyway, so there is one row."
        )
    return lines


def _promises(found: Comparison, tuned: Setting | None) -> list[str]:
    """What the tuned recipe promises beside what was measured, and whether it is this model that it was tuned for."""
    if tuned is None or tuned.origin is None:
        return []
    recipe, weights = tuned.origin.to_dict(), found.task["weights_sha256"]
    if reason := find_broken_seal(recipe, weights):
        return [f"{tuned.label}: {reason}, so it promises nothing here."]
    promise = Promise.of(recipe, weights)
    row = next(row for row in found.rows if row.label == tuned.label)
    return [] if promise is None else [f"{tuned.label}: {promise.beside(row.agreement, found.task['windows'])}."]


def _operation_notes(found: Comparison) -> list[str]:
    hand = found.original.hand
    total = "" if hand is None else f" ({2 * hand.original / 1e9:.3f} GFLOP"
    total += ", of one patch of 64 samples" * (bool(total) and found.task["model"] == "EEGPT") + ")" * bool(total)
    lines = [
        f"Operations: of the original's{total}, matrix products of the blocks and of pooling itself, counted by hand; "
        "no embedding, head, norm or softmax in it."
    ]
    if any(not math.isnan(row.looked) for row in found.rows):
        lines.append(
            "Looked twice: share of the windows that ran again uncompressed, from the first reduction on; operations "
            "include it. Both passes are timed apart and added, for doubtful windows that come in any order."
        )
    return lines


def _time_notes(found: Comparison) -> list[str]:
    lines = []
    if found.untimed:
        ratios = ", ".join(percent(ratio) for ratio in found.untimed)
        lines.append(f"Not timed yet: {ratios}; timing has a budget of seconds, and the same again goes on from there.")
    if any(row.latency for row in found.rows):
        timing = found.timing
        threads = f"{timing['threads']} thread{'s' * (timing['threads'] != 1)}"
        rounds = f"{timing['rounds']} round{'s' * (timing['rounds'] != 1)}"
        half = ", ± half of its 95 % interval" * any("noise" in (row.latency or ()) for row in found.rows)
        lines.append(
            f"Times as fast: as the original, median of calls made in turn{half}: torch, batch {timing['batch']}, "
            f"{threads}, {timing['device']}, {rounds}; slicing drops as many tokens without choosing."
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
