"""From stored records to the sections of a report: one task is one model with its weights on one set of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.paper_results import known_pair, reported_ablation
from zipbrain.evaluation.plots.ablation import ablation_bars, settings_of, variants
from zipbrain.evaluation.plots.confusions import confusion_pair
from zipbrain.evaluation.plots.curves import ratio_curves
from zipbrain.evaluation.plots.pareto import pareto_front
from zipbrain.evaluation.plots.reading import (
    METRICS,
    Record,
    costs,
    interval,
    is_original,
    known_costs,
    labels_of,
    main_metric,
    paper_value,
    plain,
    ratio_order,
    score,
)
from zipbrain.evaluation.plots.tokens import token_counts
from zipbrain.evaluation.report.content import Picture, Section, Table
from zipbrain.paper import winning_settings
from zipbrain.recipe import Recipe

_BEST: Final = 10  # rows of a search that are shown
NOTHING: Final = "–"


def task_section(title: str, records: Sequence[Record], number: int) -> Section:
    """Everything about one task; parts without results are left out."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(str(record.get("kind")), []).append(record)
    originals = [record for record in records if is_original(record)]
    ablate = [record for record in kinds.pop("ablate", []) if not is_original(record)]
    search = [record for record in kinds.pop("search", []) if not is_original(record)]
    compare = [record for own in kinds.values() for record in own if not is_original(record)]
    section = Section(title, text=[_facts(records[0])])
    section.warnings += _selected_here(records)
    if not originals:
        section.warnings.append("Partial: the uncompressed model's result is missing.")
    parts = [
        _comparison(originals, compare, number),
        _confusions(originals, compare, number),
        *_ablations(ablate, number),
        _search(search, number),
    ]
    section.inside = [part for part in parts if part is not None and not part.empty]
    return section


def chosen_on(record: Record) -> str:
    """On which corpus and split a recipe was chosen, in words."""
    recipe = record.get("recipe")
    if recipe is None:
        return NOTHING
    dataset, split = recipe.get("dataset"), recipe.get("split")
    if dataset is not None or split is not None:
        return f"{dataset or 'corpus not recorded'}, {f'{split} split' if split else 'split not recorded'}"
    # Nothing is recorded; what its options happen to equal is told as that and no more.
    try:
        own, task = Recipe.from_dict(recipe), record.get("task") or {}
    except OptionError:
        return "not recorded"
    name = own.method["name"]
    if replace(own, method={"name": name}).key() == own.key():
        return "not recorded (default options)"
    pair = known_pair(str(task.get("model")), str(task.get("dataset")))
    if name == "zipbrain" and pair is not None:
        z1, z2, z3, rho = winning_settings(*pair)
        if replace(own, method={"name": name, "z1": z1, "z2": z2, "z3": z3, "rho": rho}).key() == own.key():
            return "not recorded (the paper's options)"
    return "not recorded"


def _selected_here(records: Sequence[Record]) -> list[str]:
    """A warning for recipes that were chosen on the very windows on which they are scored."""
    names = []
    for record in records:
        recipe, task = record.get("recipe") or {}, record.get("task") or {}
        same = recipe.get("split") is not None and recipe["split"] == task.get("split")
        if same and recipe.get("dataset") in (None, task.get("dataset")) and record.get("kind") != "search":
            names.append(f"{record['label']} {record.get('ratio') or ''}".strip())
    if not names:
        return []
    who = ", ".join(dict.fromkeys(names))
    return [f"Chosen on the very split that scores them, so better here than elsewhere: {who}."]


def _facts(record: Record) -> str:
    task = record.get("task") or {}
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


def _comparison(originals: list[Record], records: list[Record], number: int) -> Section | None:
    shown = [*originals, *sorted(records, key=lambda r: (ratio_order(r), labels_of(records).index(str(r["label"]))))]
    if not shown:
        return None
    metric = main_metric(shown)
    section = Section("Scores")
    section.warnings += _gaps(records)
    section.tables.append(comparison_table(shown, f"scores-{number}"))
    name = METRICS.get(metric, metric)
    if records:
        caption = f"{name} against the share of tokens removed."
        section.pictures.append(Picture.of(ratio_curves(shown, metric), f"curves-{number}", caption, caption))
        for kind, count in known_costs(shown).items():
            caption = f"{name} against {kind}. The stepped line joins the settings that no other one beats in both."
            caption += f" {len(records) - count} results without {kind} are left out." * (count < len(records))
            caption += _timing_text(shown) * (kind == "latency")
            figure, stem = pareto_front(shown, metric, kind), f"pareto-{kind.replace(' ', '-')}-{number}"
            section.pictures.append(Picture.of(figure, stem, caption, caption))
        if any(record.get("token_counts") for record in records):
            caption = "Unprotected tokens left after every block."
            section.pictures.append(Picture.of(token_counts(shown), f"tokens-{number}", caption, caption))
    return section


def comparison_table(records: Sequence[Record], name: str) -> Table:
    """Method, ratio, what was removed, scores, distance from the uncompressed model, the paper's value, provenance."""
    main = main_metric(records)
    held = [m for m in METRICS if any(score(record, m) is not None for record in records)]
    metrics = [main, *(m for m in held if m != main)] if main in held else held
    original = next((record for record in records if is_original(record)), None)
    intervals = any(interval(record, main) for record in records)
    published = [paper_value(record, main) for record in records]
    kinds = known_costs(records)
    columns = ["method", "recipe chosen on", "ratio asked", "removed", *kinds, METRICS.get(main, main)]
    if intervals:
        columns.append("interval")
    if any(value is not None for value in published):
        columns.append(f"paper's {METRICS.get(main, main)}")
    columns += [METRICS[m] for m in metrics[1:]] + ["same decision", "logit error"]
    rows = []
    for record, value in zip(records, published, strict=True):
        shares = costs(record, original)
        row = [
            str(record.get("label")), chosen_on(record), text(record.get("ratio")), percent(record.get("removed")),
            *(percent(shares.get(kind)) for kind in kinds), decimal(score(record, main)),
        ]  # fmt: skip
        if intervals:
            band = interval(record, main)
            row.append(NOTHING if band is None else f"{band[0]:.4f} to {band[1]:.4f}")
        if any(v is not None for v in published):
            row.append(decimal(value))
        row += [decimal(score(record, m)) for m in metrics[1:]]
        row += [NOTHING, NOTHING] if is_original(record) else [percent(record.get("agreement")), error_text(record)]
        rows.append(tuple(row))
    caption = (
        "Same decision: share of windows that the uncompressed model decides alike. Logit error: mean squared "
        "difference to its logits over their variance."
    ) + _timing_text(records)
    return Table(name, caption, tuple(columns), tuple(rows), 2)


def _timing_text(records: Sequence[Record]) -> str:
    """Where latencies were measured, as a sentence behind others; nothing where there are none."""
    extras = [record.get("extra") or {} for record in records]
    if not any("latency_ratio" in extra for extra in extras):
        return ""
    timing = next((extra["timing"] for extra in extras if extra.get("timing")), None)
    if timing is None:
        return " Latency: where it was measured is not recorded."
    where = ", ".join(str(timing[name]) for name in ("device", "cpu") if timing.get(name))
    rest = ", ".join(f"{name} {text(timing.get(name))}" for name in ("threads", "batch", "torch"))
    return f" Latency: measured on {where}, {rest}."


def _gaps(records: Sequence[Record]) -> list[str]:
    """What a method lacks that others have."""
    ratios = {str(r.get("ratio")): ratio_order(r) for r in records if r.get("ratio") is not None}
    lacking = []
    for label in labels_of(records):
        own = {str(r.get("ratio")) for r in records if str(r["label"]) == label}
        missing = sorted(ratios.keys() - own, key=lambda ratio: ratios[ratio])
        if missing and own & ratios.keys():
            lacking.append(f"{label} lacks ratio {', '.join(missing)}")
    return [f"Partial: {'; '.join(lacking)}."] if lacking else []


# -- the other parts ---------------------------------------------------------------------------------------------------


def _confusions(originals: list[Record], records: list[Record], number: int) -> Section | None:
    before = next((record for record in originals if record.get("confusion")), None)
    after = [record for record in records if record.get("confusion")]
    if before is None or not after:
        return None
    ours = [record for record in after if plain(record["label"]) == "zipbrain"] or after
    chosen = max(ours, key=lambda record: float(record.get("removed") or 0))
    classes = [str(name) for name in (before.get("task") or {}).get("classes") or range(len(before["confusion"]))]
    named = f"{chosen['label']}, {percent(chosen.get('removed'))} removed"
    try:
        figure = confusion_pair(before["confusion"], chosen["confusion"], classes, ("uncompressed", named))
    except OptionError as error:
        return Section("Confusion matrices", warnings=[f"Not drawn: {error}."])
    caption = f"Confusion matrices before and after compression ({named}): rows are the true classes."
    return Section("Confusion matrices", pictures=[Picture.of(figure, f"confusion-{number}", caption, caption)])


def _ablations(records: list[Record], number: int) -> list[Section]:
    """One section for every ratio and full method of which variants were scored."""
    sections: list[Section] = []
    titles: dict[str, int] = {}
    for place, own in enumerate(settings_of(sorted(records, key=ratio_order)).values(), 1):
        metric = main_metric(own)
        ratio = own[0].get("ratio")
        title = "Ablation" if ratio is None else f"Ablation at ratio {ratio}"
        titles[title] = titles.get(title, 0) + 1
        section = Section(title if titles[title] == 1 else f"{title} ({titles[title]})")
        section.text += [f"Full method: {_recipe_text(r['recipe'])}." for r in own if plain(r["label"]) == "full"][:1]
        section.tables.append(_ablation_table(own, metric, f"ablation-{number}-{place}"))
        rows = variants(own, metric)
        if rows and plain(rows[0].label) != "full":
            section.warnings.append(f"Partial: the full method is not scored, so differences are to {rows[0].label}.")
        drawn: dict[str, int] = {}
        for record in own:
            if (record.get("extra") or {}).get("seed") is not None:
                drawn[str(record["label"])] = drawn.get(str(record["label"]), 0) + 1
        if len({*drawn.values()}) > 1:
            counts = ", ".join(f"{label} {count}" for label, count in drawn.items())
            section.warnings.append(f"Partial: random variants have different numbers of seeds ({counts}).")
        try:
            figure = ablation_bars(own, metric)
        except OptionError:
            section.warnings.append("Partial: fewer than two variants are scored.")
        else:
            caption = f"What each variant gains or loses in {METRICS.get(metric, metric)}."
            section.pictures.append(Picture.of(figure, f"ablation-{number}-{place}", caption, caption))
        sections.append(section)
    return sections


def _ablation_table(records: Sequence[Record], metric: str, name: str) -> Table:
    task = records[0].get("task") or {}
    published = reported_ablation(str(task.get("model")), str(task.get("dataset")))
    rows, found = [], variants(records, metric)
    # A variant is the full method with one part exchanged, so it was chosen where that was.
    chosen = next((chosen_on(record) for record in records if found and record["label"] == found[0].label), NOTHING)
    for row in found:
        spread = NOTHING if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}"
        paper = (decimal(published.get(row.label)),) if published else ()
        change = NOTHING if row is found[0] else f"{row.mean - found[0].mean:+.4f}"
        rows.append((row.label, chosen, decimal(row.mean), change, spread, str(row.count), *paper))
    columns = ("variant", "recipe chosen on", METRICS.get(metric, metric), "difference", "spread", "records")
    caption = "Spread: lowest to highest over several records (seeds), or the interval of one."
    return Table(name, caption, (*columns, *(("paper",) if published else ())), tuple(rows), 2)


def _search(records: list[Record], number: int) -> Section | None:
    if not records:
        return None
    metric = main_metric(records)
    scored = [record for record in records if score(record, metric) is not None]
    best = sorted(scored, key=lambda record: -(score(record, metric) or 0.0))[:_BEST]
    rows = tuple(
        (_recipe_text(r["recipe"]), text(r.get("ratio")), percent(r.get("removed")), decimal(score(r, metric)))
        for r in best
    )
    split = (records[0].get("task") or {}).get("split", "?")
    words = (
        f"{len(records)} recipes were scored on the {split} split; the best {len(rows)} are shown. The best of many is "
        "too good: its score on another split counts."
    )
    columns = ("recipe", "ratio asked", "removed", METRICS.get(metric, metric))
    table = Table(f"search-{number}", f"Best recipes of the search, chosen on the {split} split.", columns, rows)
    return Section("Search", text=[words], tables=[table])


def _recipe_text(recipe: dict[str, Any]) -> str:
    """A method with its options on one line."""
    options = {name: value for name, value in recipe["method"].items() if name != "name"}
    shown = (f"{name}={value.get('name') if isinstance(value, dict) else value}" for name, value in options.items())
    mass = " + mass" * any((recipe.get("mass") or {}).values())
    return f"{recipe['method']['name']}({', '.join(shown)}){mass}"


def text(value: Any) -> str:
    """A value for a table; a dash for nothing."""
    return NOTHING if value is None else str(value)


def decimal(value: float | None) -> str:
    """Four decimals."""
    return NOTHING if value is None else f"{value:.4f}"


def percent(value: float | None) -> str:
    """A share in per cent."""
    return NOTHING if value is None or value != value else f"{100 * value:.1f} %"


def error_text(record: Record) -> str:
    """The logit error with three digits."""
    value = record.get("logit_error")
    return NOTHING if value is None or value != value else f"{value:.3g}"
