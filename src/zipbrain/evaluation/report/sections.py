"""From stored results to the sections of a report: one task is one model with its weights on one set of windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.comparison_tables import where
from zipbrain.evaluation.paper_results import reported_ablation
from zipbrain.evaluation.plots.ablation import ablation_bars, bars, settings_of
from zipbrain.evaluation.plots.confusion import confusion_counts
from zipbrain.evaluation.plots.curves import AXES, curve_kind, ratio_curves
from zipbrain.evaluation.plots.pareto import pareto_front, score_title
from zipbrain.evaluation.plots.tokens import token_counts
from zipbrain.evaluation.recommendation import recommend, verdict
from zipbrain.evaluation.reliability import doubts_about
from zipbrain.evaluation.report.document import Picture, Section
from zipbrain.evaluation.report.score_tables import chosen_on, comparison_tables, ratio_text, score_text, timing_text
from zipbrain.evaluation.result import Result, known_costs, labels_of, main_metric_of, plain, ratio_order
from zipbrain.evaluation.tables import Table, number
from zipbrain.evaluation.wording import NOTHING, operations_text, share_text
from zipbrain.metrics import metric_title
from zipbrain.seal import Promise

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


def _selected_here(results: Sequence[Result]) -> list[str]:
    """A warning for recipes that were chosen on the very windows on which they are scored."""
    names = []
    for result in results:
        recipe, task = result.recipe or {}, result.task
        same = recipe.get("split") is not None and recipe["split"] == task.get("split")
        if same and recipe.get("dataset") in (None, task.get("dataset")) and result.kind != "search":
            names.append(where(result))
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
    section.tables += comparison_tables(shown, f"scores-{place}")
    if results:
        kept = "agreement" if any(result.has("agreement") for result in results) else metric
        for kind, count in known_costs(shown).items():
            caption = f"{capital(score_title(kept))} against {AXES.get(kind, kind)}. "
            caption += "The stepped line joins those that no other one beats in both."
            without = "times" if kind == "latency" else kind
            caption += f" {len(results) - count} results without {without} are left out." * (count < len(results))
            caption += timing_text(shown) * (kind == "latency")
            figure, stem = pareto_front(shown, kept, kind), f"pareto-{kind.replace(' ', '-')}-{place}"
            section.pictures.append(Picture.of(figure, stem, caption, caption))
        kind = curve_kind(shown)
        caption = f"{capital(metric_title(metric))} against {AXES[kind]}.{timing_text(shown) * (kind == 'latency')}"
        figure = ratio_curves(shown, metric, kind=kind)
        section.pictures.append(Picture.of(figure, f"curves-{place}", caption, caption))
        if any(result.token_counts for result in results):
            caption = "Unprotected tokens left after every block."
            section.pictures.append(Picture.of(token_counts(shown), f"tokens-{place}", caption, caption))
    return section


def verdict_of(results: Sequence[Result]) -> str:
    """What the compared methods gained and kept, in one sentence; by operations where nothing was timed."""
    original = next((result for result in results if result.is_original), None)
    rows = (result for result in results if not result.is_original and result.kind not in ("ablate", "search"))
    return verdict(original, _complete(rows))


def _complete(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.task.get("windows") and result.has("agreement")]


def _advice(originals: Sequence[Result], results: Sequence[Result]) -> str:
    """Which row to use, where the uncompressed model's result and times are stored."""
    return recommend(originals[0], _complete(results)) if originals else ""


def _promises(results: Sequence[Result]) -> list[str]:
    """What tuned recipes promise for these weights, beside what was measured."""
    lines = []
    for result in results:
        promise = Promise.of(result.recipe, result.task.get("weights_sha256"))
        windows = result.task.get("windows")
        if promise is not None and windows and result.has("agreement"):
            lines.append(f"{result.label}: {promise.beside(result.agreement, int(windows))}.")
    return lines


def _gaps(results: Sequence[Result]) -> list[str]:
    """What a method lacks that others have."""
    ratios = {str(r.ratio): ratio_order(r) for r in results if r.ratio is not None}
    shown = {str(r.ratio): r.ratio for r in results}
    lacking = []
    for label in labels_of(results):
        own = {str(r.ratio) for r in results if r.label == label}
        missing = sorted(ratios.keys() - own, key=lambda ratio: ratios[ratio])
        if missing and own & ratios.keys():
            lacking.append(f"{label} lacks {', '.join(ratio_text(shown[ratio]) for ratio in missing)}")
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
    named = f"{chosen.label}, {share_text(chosen.removed)} removed"
    section = Section("Confusion matrices")
    for stem, result, name in (("before", before, "uncompressed"), ("after", chosen, named)):
        try:
            figure = confusion_counts(result.confusion, classes, name)
        except OptionError as error:
            section.warnings.append(f"Not drawn: {error}.")
            continue
        caption = f"Confusion matrix, {name}: rows are the true classes."
        section.pictures.append(Picture.of(figure, f"confusion-{stem}-{place}", caption, caption))
    return section


def _ablations(results: list[Result], number: int) -> list[Section]:
    """One section for every ratio and full method of which variants were scored."""
    sections: list[Section] = []
    titles: dict[str, int] = {}
    for place, own in enumerate(settings_of(sorted(results, key=ratio_order)).values(), 1):
        metric, ratio = main_metric_of(own), own[0].ratio
        title = "Ablation" if ratio is None else f"Ablation at {ratio_text(ratio)}"
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
        cost = (operations_text(row.operations),) if counted else ()
        rows.append((row.label, *cost, number(row.mean), change, spread, str(row.count), *paper, chosen))
    columns = ["variant", *["operations"] * counted, metric_title(metric), "difference", "spread", "records"]
    caption = "Spread: lowest to highest over several records (seeds), or the interval of one."
    columns += [*["paper"] * bool(published), "options"]
    return Table.of(caption, columns, rows, name=name)


def _search(results: list[Result], place: int) -> Section | None:
    if not results:
        return None
    metric = main_metric_of(results)
    best = sorted((r for r in results if r.has(metric)), key=lambda r: -r.value(metric))[:_BEST]
    counted = any(not math.isnan(r.operations) for r in best)
    rows = []
    for r in best:
        costs = [operations_text(r.operations)] * counted
        asked, removed = ratio_text(r.ratio), share_text(r.removed)
        rows.append((_recipe_text(r.recipe), *costs, score_text(r, metric), asked, removed))
    split = results[0].task.get("split", "?")
    words = (
        f"{len(results)} recipes were scored on the {split} split; the best {len(rows)} are shown. The best of many is "
        "too good: its score on another split counts."
    )
    columns = ("recipe", *["operations"] * counted, metric_title(metric), "asked", "removed")
    title = f"Best recipes of the search, chosen on the {split} split."
    return Section("Search", text=[words], tables=[Table.of(title, columns, rows, name=f"search-{place}")])


def _recipe_text(recipe: dict[str, Any] | None) -> str:
    """A method with its options on one line."""
    assert recipe is not None
    options = {name: value for name, value in recipe["method"].items() if name != "name"}
    shown = (f"{name}={value.get('name') if isinstance(value, dict) else value}" for name, value in options.items())
    mass = " + mass" * any((recipe.get("mass") or {}).values())
    return f"{recipe['method']['name']}({', '.join(shown)}){mass}"


def capital(sentence: str) -> str:
    """A sentence with its first letter large."""
    return sentence[:1].upper() + sentence[1:]
