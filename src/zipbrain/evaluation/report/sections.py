"""From stored results to the sections of a report: one task is one model with its weights on one set of windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.figures import confusion_pair
from zipbrain.evaluation.paper_results import known_pair, reported_ablation
from zipbrain.evaluation.plots.ablation import ablation_bars, bars, settings_of
from zipbrain.evaluation.plots.curves import AXES, curve_kind, ratio_curves
from zipbrain.evaluation.plots.pareto import pareto_front, score_title
from zipbrain.evaluation.plots.tokens import token_counts
from zipbrain.evaluation.promise import Promise
from zipbrain.evaluation.recommendation import recommend
from zipbrain.evaluation.reliability import doubts_about
from zipbrain.evaluation.report.document import Picture, Section
from zipbrain.evaluation.result import Result, known_costs, labels_of, main_metric_of, plain, ratio_order
from zipbrain.evaluation.tables import NOTHING, Table, number
from zipbrain.metrics import METRICS, metric_title
from zipbrain.paper import winning_settings
from zipbrain.recipe import Recipe

_BEST: Final = 10  # rows of a search that are shown


def task_section(title: str, results: Sequence[Result], number: int) -> Section:
    """Everything about one task; parts without results are left out."""
    originals = [result for result in results if result.is_original]
    kinds: dict[str, list[Result]] = {"ablate": [], "search": [], "compare": []}
    for result in results:
        if not result.is_original:
            kinds[result.kind if result.kind in kinds else "compare"].append(result)
    section = Section(title, text=[_facts(results[0].task)])
    section.warnings += _selected_here(results)
    if not originals:
        section.warnings.append("Partial: the uncompressed model's result is missing.")
    section.warnings += doubts_about([*originals, *kinds["compare"]])
    parts = [
        _comparison(originals, kinds["compare"], number),
        _confusions(originals, kinds["compare"], number),
        *_ablations(kinds["ablate"], number),
        _search(kinds["search"], number),
    ]
    section.inside = [part for part in parts if part is not None and not part.is_empty]
    return section


def chosen_on(result: Result) -> str:
    """On which corpus and split a recipe was chosen, in words."""
    recipe = result.recipe
    if recipe is None:
        return NOTHING
    dataset, split = recipe.get("dataset"), recipe.get("split")
    if dataset is not None or split is not None:
        return f"{dataset or 'corpus not recorded'}, {f'{split} split' if split else 'split not recorded'}"
    # Nothing is recorded: the words say no more than what its options are equal to.
    try:
        own = Recipe.from_dict(recipe)
    except OptionError:
        return "not recorded"
    name = own.method["name"]
    if replace(own, method={"name": name}).key() == own.key():
        return "not recorded (default options)"
    pair = known_pair(str(result.task.get("model")), str(result.task.get("dataset")))
    if name == "zipbrain" and pair is not None:
        options = dict(zip(("z1", "z2", "z3", "rho"), winning_settings(*pair), strict=True))
        if replace(own, method={"name": name, **options}).key() == own.key():
            return "not recorded (the paper's options)"
    return "not recorded"


def _selected_here(results: Sequence[Result]) -> list[str]:
    """A warning for recipes that were chosen on the very windows on which they are scored."""
    names = []
    for result in results:
        recipe, task = result.recipe or {}, result.task
        same = recipe.get("split") is not None and recipe["split"] == task.get("split")
        if same and recipe.get("dataset") in (None, task.get("dataset")) and result.kind != "search":
            names.append(f"{result.label} {result.ratio or ''}".strip())
    if not names:
        return []
    who = ", ".join(dict.fromkeys(names))
    return [f"Chosen on the very split that scores them, so better here than elsewhere: {who}."]


def _facts(task: dict[str, Any]) -> str:
    parts = [f"{task['windows']:,} windows" if task.get("windows") else ""]
    if task.get("subjects"):
        parts[0] += f" of {task['subjects']} subjects"
    if task.get("classes"):
        parts.append(f"classes {', '.join(map(str, task['classes']))}")
    if task.get("checkpoint"):
        parts.append(f"checkpoint {task['checkpoint']}")
    for name, key in (("weights", "weights_sha256"), ("data", "data_sha256")):
        if task.get(key):
            parts.append(f"{name} {str(task[key])[:12]}")
    return "; ".join(filter(None, parts)) + "."


# -- comparison --------------------------------------------------------------------------------------------------------


def _comparison(originals: list[Result], results: list[Result], place: int) -> Section | None:
    labels = labels_of(results)
    shown = [*originals, *sorted(results, key=lambda r: (ratio_order(r), labels.index(r.label)))]
    if not shown:
        return None
    metric = main_metric_of(shown)
    section = Section("Scores")
    section.warnings += _gaps(results)
    section.text += [line for line in (_advice(originals, results), *_promises(results)) if line]
    section.tables.append(comparison_table(shown, f"scores-{place}"))
    if results:
        kept = "agreement" if any(result.has("agreement") for result in results) else metric
        for kind, count in known_costs(shown).items():
            caption = f"{capital(score_title(kept))} against {kind}. "
            caption += "The stepped line joins those that no other one beats in both."
            caption += f" {len(results) - count} results without {kind} are left out." * (count < len(results))
            caption += _timing_text(shown) * (kind == "latency")
            figure, stem = pareto_front(shown, kept, kind), f"pareto-{kind.replace(' ', '-')}-{place}"
            section.pictures.append(Picture.of(figure, stem, caption, caption))
        kind = curve_kind(shown)
        caption = f"{capital(metric_title(metric))} against {AXES[kind]}.{_timing_text(shown) * (kind == 'latency')}"
        figure = ratio_curves(shown, metric, kind=kind)
        section.pictures.append(Picture.of(figure, f"curves-{place}", caption, caption))
        if any(result.token_counts for result in results):
            caption = "Unprotected tokens left after every block."
            section.pictures.append(Picture.of(token_counts(shown), f"tokens-{place}", caption, caption))
    return section


def _advice(originals: Sequence[Result], results: Sequence[Result]) -> str:
    """Which row to use, where the uncompressed model's result and times are stored."""
    complete = [result for result in results if result.task.get("windows") and result.has("agreement")]
    return recommend(originals[0], complete) if originals else ""


def _promises(results: Sequence[Result]) -> list[str]:
    """What tuned recipes promise for these weights, beside what was measured."""
    lines = []
    for result in results:
        promise = Promise.of(result.recipe, result.task.get("weights_sha256"))
        windows = result.task.get("windows")
        if promise is not None and windows and result.has("agreement"):
            lines.append(f"{result.label}: {promise.beside(result.agreement, int(windows))}.")
    return lines


def comparison_table(results: Sequence[Result], name: str) -> Table:
    """Method, costs, distance from the uncompressed model, scores, the paper's value, tokens, provenance."""
    main = main_metric_of(results)
    others = [m for m in METRICS if m != main and any(result.has(m) for result in results)]
    original = next((result for result in results if result.is_original), None)
    intervals = any(result.interval(main) for result in results)
    published = any(result.paper_value(main) is not None for result in results)
    kinds, looks = known_costs(results), any(not math.isnan(result.looked) for result in results)
    columns = ["method", *kinds, "same decision", *["looked twice"] * looks, "ratio asked", "removed"]
    columns += [metric_title(main)] + ["interval"] * intervals + [f"paper's {metric_title(main)}"] * published
    columns += [*map(metric_title, others), "logit error", "recipe chosen on"]
    rows = []
    for result in results:
        shares, band = result.costs(original), result.interval(main)
        row = [result.label, *(percent(shares.get(kind)) for kind in kinds)]
        row += [NOTHING if result.is_original else percent(result.agreement)]
        row += [*[percent(result.looked)] * looks, text(result.ratio), percent(result.removed)]
        row += [score_text(result, main)]
        row += [NOTHING if band is None else f"{band[0]:.4f} to {band[1]:.4f}"] * intervals
        row += [number(result.paper_value(main))] * published
        row += [*(score_text(result, m) for m in others)]
        error = NOTHING if result.is_original else number(result.logit_error, ".3g")
        rows.append([*row, error, chosen_on(result)])
    caption = (
        "Costs are relative to the uncompressed model; operations include pooling. " * ("operations" in kinds)
        + "Same decision: share of windows that the uncompressed model decides alike. "
        + "Looked twice: share that ran again uncompressed, counted in operations and time. " * looks
        + "Logit error: mean squared difference to its logits over their variance."
        + _timing_text(results)
    )
    return Table.of(caption, columns, rows, name=name)


def _timing_text(results: Sequence[Result]) -> str:
    """Where latencies were measured, as a sentence behind others; nothing where there are none."""
    extras = [result.extra for result in results if "latency_ratio" in result.extra]
    if not extras:
        return ""
    timing = next((extra["timing"] for extra in extras if extra.get("timing")), None)
    if timing is None:
        return " Latency: where it was measured is not recorded."
    where = ", ".join(str(timing[name]) for name in ("device", "cpu") if timing.get(name))
    rest = ", ".join(f"{name} {text(timing.get(name))}" for name in ("threads", "batch", "torch"))
    return f" Latency: measured on {where}, {rest}."


def _gaps(results: Sequence[Result]) -> list[str]:
    """What a method lacks that others have."""
    ratios = {str(r.ratio): ratio_order(r) for r in results if r.ratio is not None}
    lacking = []
    for label in labels_of(results):
        own = {str(r.ratio) for r in results if r.label == label}
        missing = sorted(ratios.keys() - own, key=lambda ratio: ratios[ratio])
        if missing and own & ratios.keys():
            lacking.append(f"{label} lacks ratio {', '.join(missing)}")
    return [f"Partial: {'; '.join(lacking)}."] if lacking else []


def _confusions(originals: list[Result], results: list[Result], place: int) -> Section | None:
    before = next((result for result in originals if result.confusion), None)
    after = [result for result in results if result.confusion]
    if before is None or not after:
        return None
    by_label = {label: [r for r in after if plain(r.label) == label] for label in ("tuned", "zipbrain")}
    ours = by_label["tuned"] or by_label["zipbrain"] or after
    chosen = max(ours, key=lambda result: 0.0 if math.isnan(result.removed) else result.removed)
    classes = [str(name) for name in before.task.get("classes") or range(len(before.confusion))]
    named = f"{chosen.label}, {percent(chosen.removed)} removed"
    try:
        figure = confusion_pair(before.confusion, chosen.confusion, classes, ("uncompressed", named))
    except OptionError as error:
        return Section("Confusion matrices", warnings=[f"Not drawn: {error}."])
    caption = f"Confusion matrices before and after compression ({named}): rows are the true classes."
    return Section("Confusion matrices", pictures=[Picture.of(figure, f"confusion-{place}", caption, caption)])


def _ablations(results: list[Result], number: int) -> list[Section]:
    """One section for every ratio and full method of which variants were scored."""
    sections: list[Section] = []
    titles: dict[str, int] = {}
    for place, own in enumerate(settings_of(sorted(results, key=ratio_order)).values(), 1):
        metric, ratio = main_metric_of(own), own[0].ratio
        title = "Ablation" if ratio is None else f"Ablation at ratio {ratio}"
        titles[title] = titles.get(title, 0) + 1
        section = Section(title if titles[title] == 1 else f"{title} ({titles[title]})")
        section.text += [f"Full method: {_recipe_text(r.recipe)}." for r in own if plain(r.label) == "full"][:1]
        section.tables.append(_ablation_table(own, metric, f"ablation-{number}-{place}"))
        rows = bars(own, metric)
        if rows and plain(rows[0].label) != "full":
            section.warnings.append(f"Partial: the full method is not scored, so differences are to {rows[0].label}.")
        drawn = Counter(result.label for result in own if result.extra.get("seed") is not None)
        if len({*drawn.values()}) > 1:
            counts = ", ".join(f"{label} {count}" for label, count in drawn.items())
            section.warnings.append(f"Partial: random variants have different numbers of seeds ({counts}).")
        try:
            figure = ablation_bars(own, metric)
        except OptionError:
            section.warnings.append("Partial: fewer than two variants are scored.")
        else:
            caption = f"What each variant gains or loses in {metric_title(metric)}."
            section.pictures.append(Picture.of(figure, f"ablation-{number}-{place}", caption, caption))
        sections.append(section)
    return sections


def _ablation_table(results: Sequence[Result], metric: str, name: str) -> Table:
    task = results[0].task
    published = reported_ablation(str(task.get("model")), str(task.get("dataset")))
    rows, found = [], bars(results, metric)
    # A variant is the full method with one part exchanged, so it was chosen where that was.
    chosen = next((chosen_on(result) for result in results if found and result.label == found[0].label), NOTHING)
    counted = any(not math.isnan(row.operations) for row in found)
    for row in found:
        spread = NOTHING if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}"
        paper = (number(published.get(row.label)),) if published else ()
        change = NOTHING if row is found[0] else f"{row.mean - found[0].mean:+.4f}"
        cost = (percent(row.operations),) if counted else ()
        rows.append((row.label, *cost, number(row.mean), change, spread, str(row.count), *paper, chosen))
    columns = ["variant", *["operations"] * counted, metric_title(metric), "difference", "spread", "records"]
    caption = "Spread: lowest to highest over several records (seeds), or the interval of one."
    columns += [*["paper"] * bool(published), "recipe chosen on"]
    return Table.of(caption, columns, rows, name=name)


def _search(results: list[Result], place: int) -> Section | None:
    if not results:
        return None
    metric = main_metric_of(results)
    best = sorted((r for r in results if r.has(metric)), key=lambda r: -r.value(metric))[:_BEST]
    counted = any(not math.isnan(r.operations) for r in best)
    rows = []
    for r in best:
        costs = [percent(r.operations)] * counted
        rows.append((_recipe_text(r.recipe), *costs, score_text(r, metric), text(r.ratio), percent(r.removed)))
    split = results[0].task.get("split", "?")
    words = (
        f"{len(results)} recipes were scored on the {split} split; the best {len(rows)} are shown. The best of many is "
        "too good: its score on another split counts."
    )
    columns = ("recipe", *["operations"] * counted, metric_title(metric), "ratio asked", "removed")
    title = f"Best recipes of the search, chosen on the {split} split."
    return Section("Search", text=[words], tables=[Table.of(title, columns, rows, name=f"search-{place}")])


def _recipe_text(recipe: dict[str, Any] | None) -> str:
    """A method with its options on one line."""
    assert recipe is not None
    options = {name: value for name, value in recipe["method"].items() if name != "name"}
    shown = (f"{name}={value.get('name') if isinstance(value, dict) else value}" for name, value in options.items())
    mass = " + mass" * any((recipe.get("mass") or {}).values())
    return f"{recipe['method']['name']}({', '.join(shown)}){mass}"


def text(value: Any) -> str:
    """A value for a table; a dash for nothing."""
    return NOTHING if value is None else str(value)


def capital(sentence: str) -> str:
    """A sentence with its first letter large."""
    return sentence[:1].upper() + sentence[1:]


def score_text(result: Result, metric: str) -> str:
    """A score with the digits of its metric."""
    return number(result.value(metric), METRICS[metric].form if metric in METRICS else ".4f")


def percent(value: float | None) -> str:
    """A share in per cent."""
    return NOTHING if value is None or math.isnan(value) else f"{100 * value:.1f} %"
