"""Tables of a report's scores: what every row costs, keeps and scores, and where its options come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.comparison_tables import percent
from zipbrain.evaluation.paper_results import known_pair
from zipbrain.evaluation.result import Result, known_costs, main_metric_of
from zipbrain.evaluation.tables import Table, number
from zipbrain.evaluation.wording import (
    LOOKED_TWICE,
    NOTHING,
    OPERATIONS,
    TIMES_AS_FAST,
    UNCHANGED,
    head_text,
    share_text,
    speed_text,
)
from zipbrain.metrics import METRICS, metric_title
from zipbrain.paper import winning_settings
from zipbrain.recipe import Recipe

_TITLES: Final = {"latency": TIMES_AS_FAST, "operations": OPERATIONS}
UNKNOWN: Final = "unknown"


def comparison_tables(results: Sequence[Result], name: str) -> list[Table]:
    """What every row costs, keeps and scores; and under it the other scores and where options come from."""
    main = main_metric_of(results)
    original = next((result for result in results if result.is_original), None)
    has_interval = any(result.interval(main) for result in results)
    is_published = any(result.paper_value(main) is not None for result in results)
    kinds, looks = known_costs(results), any(not math.isnan(result.looked) for result in results)
    columns = ["method", "asked", *(head_text(_TITLES.get(kind, kind)) for kind in kinds)]
    columns += [head_text(UNCHANGED), *[head_text(LOOKED_TWICE)] * looks, metric_title(main)]
    columns += ["95 % interval"] * has_interval + [f"paper's {metric_title(main)}"] * is_published
    columns.append("removed")
    rows = []
    for result in results:
        shares, band = result.costs(original), result.interval(main)
        row = [result.label, ratio_text(result.ratio)]
        row += [cost_text(kind, shares.get(kind)) for kind in kinds]
        row += [NOTHING if result.is_original else share_text(result.agreement)]
        row += [*[share_text(result.looked)] * looks, score_text(result, main)]
        row += [NOTHING if band is None else f"{band[0]:.4f} to {band[1]:.4f}"] * has_interval
        row += [number(result.paper_value(main))] * is_published
        rows.append([*row, share_text(result.removed)])
    caption = (
        "Times as fast: as the uncompressed model. " * ("latency" in kinds)
        + "Operations: share of the uncompressed model's, pooling included. " * ("operations" in kinds)
        + "Decisions unchanged: share of windows that the uncompressed model decides alike. "
        + "Looked twice: share that ran again uncompressed, counted in operations and time. " * looks
        + "Asked, removed: share of the tokens."
        + timing_text(results)
    )
    return [Table.of(caption, columns, rows, name=name), _other_scores(results, main, f"{name}-more")]


def _other_scores(results: Sequence[Result], main: str, name: str) -> Table:
    others = [m for m in METRICS if m != main and any(result.has(m) for result in results)]
    columns = ["method", "asked", *map(metric_title, others), "logit error", "options"]
    rows = []
    for result in results:
        error = NOTHING if result.is_original else number(result.logit_error, ".3g")
        scores = (score_text(result, m) for m in others)
        rows.append((result.label, ratio_text(result.ratio), *scores, error, chosen_on(result)))
    caption = "Logit error: mean squared difference to the uncompressed model's logits over their variance. "
    return Table.of(
        f"{caption}Options: where they come from, or on which windows they were chosen.", columns, rows, name=name
    )


def timing_text(results: Sequence[Result]) -> str:
    """Where latencies were measured, as a sentence behind others; nothing where there are none."""
    extras = [result.extra for result in results if "latency_ratio" in result.extra]
    if not extras:
        return ""
    timing = next((extra["timing"] for extra in extras if extra.get("timing")), None)
    if timing is None:
        return " Where times were measured is not recorded."
    where = ", ".join(str(timing[name]) for name in ("device", "cpu") if timing.get(name))
    rest = ", ".join(f"{name} {text(timing.get(name))}" for name in ("threads", "batch", "torch"))
    return f" Times: measured on {where}, {rest}."


def chosen_on(result: Result) -> str:
    """Where a recipe's options come from, in words: on which corpus and split they were chosen, if that is recorded."""
    recipe = result.recipe
    if recipe is None:
        return NOTHING
    dataset, split = recipe.get("dataset"), recipe.get("split")
    if dataset is not None or split is not None:
        return f"chosen on {dataset or 'an unknown corpus'}{f', {split} split' if split else ''}"
    # Nothing is recorded: the words say no more than what its options are equal to.
    try:
        own = Recipe.from_dict(recipe)
    except OptionError:
        return UNKNOWN
    name = own.method["name"]
    if replace(own, method={"name": name}).key() == own.key():
        return "the defaults"
    pair = known_pair(str(result.task.get("model")), str(result.task.get("dataset")))
    if name == "zipbrain" and pair is not None:
        options = dict(zip(("z1", "z2", "z3", "rho"), winning_settings(*pair), strict=True))
        if replace(own, method={"name": name, **options}).key() == own.key():
            return "the paper's"
    return UNKNOWN


def text(value: Any) -> str:
    """A value for a table; a dash for nothing."""
    return NOTHING if value is None else str(value)


def score_text(result: Result, metric: str) -> str:
    """A score with the digits of its metric."""
    return number(result.value(metric), METRICS[metric].form if metric in METRICS else ".4f")


def ratio_text(ratio: float | str | None) -> str:
    """``40 %``, ``maximum``, or a dash for nothing."""
    return NOTHING if ratio is None else percent(ratio)


def cost_text(kind: str, share: float | None) -> str:
    """A cost over the uncompressed model's: a time as how many times as fast, others in per cent."""
    return speed_text(share) if kind == "latency" else share_text(share, 0)
