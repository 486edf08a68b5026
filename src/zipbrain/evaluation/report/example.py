"""Pictures of what compression does to windows: attention, merge map, survival, and purity where the truth is known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from torch import nn

from zipbrain.data.synthetic import TASKS, Synthetic
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.attention import attention_heat_maps, attention_of
from zipbrain.evaluation.plots.merging import merge_map
from zipbrain.evaluation.plots.purity import purity_bars
from zipbrain.evaluation.plots.reading import Record, is_original, labels_of, plain, ratio_order
from zipbrain.evaluation.plots.topography import survival_topography
from zipbrain.evaluation.purity import FATES, Purity, carrying, follow
from zipbrain.evaluation.report.content import Picture, Section, Table
from zipbrain.evaluation.report.merge_records import joined
from zipbrain.evaluation.report.sections import percent
from zipbrain.evaluation.report.validate import usable
from zipbrain.evaluation.token_fates import fates
from zipbrain.evaluation.trial import recipe_for
from zipbrain.models import model_name
from zipbrain.paper import MODELS, canonical_name
from zipbrain.recipe import Recipe
from zipbrain.seams import compress

_SHOWN: Final = 0.8  # the ratio that a picture shows, or the nearest there is


def example_sections(
    model: nn.Module,
    windows: Windows,
    records: Sequence[Record] = (),
    *,
    split: str = "test",
    window: int = 0,
    most: int = 200,
    device: str = "auto",
    progress: Callable[[str], None] | None = None,
) -> list[Section]:
    """Sections with pictures of one window and of many.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT or TFM
        Stays as it is.
    windows : Windows
        Of the same split as `split` says.
    records : sequence of dict
        Stored results. Those of this model count, on this corpus where there are any: the recipe that is shown is the
        one that removes nearest to 80 %, ZIPBrain's first; without any, it is default ZIPBrain at 0.8.
    split : str
        Name of the windows' split.
    window : int
        Number of the window that is drawn.
    most : int
        Windows over which survival and purity are averaged, spread evenly over the split.
    device : str
        "auto" is the GPU if there is one.
    progress : callable, optional
        Told what is done next.
    """
    say = progress if progress is not None else lambda _: None
    if not 0 <= window < len(windows):
        raise OptionError("--window", window, f"there are {len(windows)} windows, counted from 0")
    name = canonical_name("model", model_name(model), MODELS)
    own = [r for r in joined(usable(records)[0]) if not is_original(r) and (r.get("task") or {}).get("model") == name]
    own = [r for r in own if str(r["task"].get("dataset")).lower() == windows.name.lower()] or own
    label, recipe = _shown(own, model)
    about = f"{name} on {windows.name}, window {window} ({windows.classes[windows.labels[window]]})"

    say("attention")
    attention = attention_of(model, windows, window)
    caption = f"Attention of the uncompressed model: {about}."
    pictures = [Picture.of(attention_heat_maps(attention, about), "attention", caption, caption, "png")]

    say("merge map")
    pooled = compress(copy.deepcopy(model), recipe)
    one = fates(pooled, windows.select([window]), device=device)
    title = f"{about}: {label}, {percent(1 - one.token_counts[-1] / one.token_counts[0])} removed"
    figure = merge_map(one, 0, windows.take([window])[0], windows.sfreq, title)
    caption = f"Where every token of the window ended: {label}, {_words(recipe)}."
    pictures.append(Picture.of(figure, "merge-map", caption, caption, "png"))

    say("survival")
    places = np.unique(np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(np.int64))
    some = windows.select(places)
    many = fates(pooled, some, device=device)
    section = Section("Example", text=[f"{about}; {label}, {_words(recipe)}."], pictures=pictures)
    try:
        figure = survival_topography(many, f"{name} on {windows.name}: {label}")
    except OptionError as error:
        section.text.append(f"No topography: {error}.")
    else:
        caption = f"How long each electrode's tokens survive, over {len(some)} windows: {label}."
        section.pictures.append(Picture.of(figure, "survival", caption, caption, "png"))
    if windows.name.removeprefix("synthetic-") not in TASKS or many.layout.projected:
        return [section]
    truth = _corpus(windows).truth(split)
    if len(truth) != len(windows):  # windows were left out, so which truth belongs to which is not known
        return [section]
    return [section, _purity(model, some, truth[places], own or [_record(label, recipe)], device, say)]


def _purity(
    model: nn.Module, windows: Windows, truth: Any, records: Sequence[Record], device: str, say: Callable[[str], None]
) -> Section:
    """What became of event-carrying tokens, for every recipe that was compared."""
    results: list[Purity] = []
    order = labels_of(records)
    compared = [r for r in records if r.get("kind") in ("compare", None) and not str(r["label"]).endswith(" + mass")]
    for record in sorted(compared, key=lambda r: (order.index(str(r["label"])), ratio_order(r))):
        say(f"purity: {record['label']} {record.get('ratio') or ''}")
        pooled = compress(copy.deepcopy(model), Recipe.from_dict(record["recipe"]))
        found = fates(pooled, windows, device=device)
        results.append(follow(found, carrying(found.layout, truth), str(record["label"])))
    if not results:
        return Section("Does pooling keep what matters?")
    rows = tuple(
        (
            result.label,
            percent(result.removed),
            *(f"{percent(result.shares[f])} ({percent(result.random[f])})" for f in FATES),
        )
        for result in results
    )
    words = (
        "These windows are synthetic, so it is known which tokens carry the event of their window. A token counts as "
        "carrying if half of its time or more lies in a carrying second."
    )
    caption = "What became of event-carrying tokens; in brackets, what random groups of the same sizes would give."
    columns = ("method", "removed", "kept alone", "pure group", "mixed group", "dropped")
    table = Table("purity", caption, columns, tuple(rows))
    picture = Picture.of(purity_bars(results), "purity", caption, caption)
    return Section("Does pooling keep what matters?", [words], tables=[table], pictures=[picture])


def _shown(records: Sequence[Record], model: nn.Module) -> tuple[str, Recipe]:
    """Label and recipe of the pictures."""
    if not records:
        return "ZIPBrain", recipe_for(model, "zipbrain", ratio=_SHOWN)
    best = min(
        records, key=lambda r: (plain(r["label"]) != "zipbrain", abs(float(r.get("removed") or 0) - _SHOWN))
    )  # fmt: skip
    return str(best["label"]), Recipe.from_dict(best["recipe"])


def _record(label: str, recipe: Recipe) -> Record:
    return {"label": label, "ratio": recipe.schedule.get("ratio"), "recipe": recipe.to_dict()}


def _words(recipe: Recipe) -> str:
    options = (
        f"{key} = {value}" for key, value in recipe.method.items() if key != "name" and not isinstance(value, dict)
    )
    return ", ".join(options) or "no options"


def _corpus(windows: Windows) -> Synthetic:
    """The synthetic corpus from which windows come, in their montage."""
    task = windows.name.removeprefix("synthetic-")
    for montage in ("referential", "bipolar"):
        corpus = Synthetic(task, montage=montage)
        if corpus.ch_names == windows.ch_names:
            return corpus
    raise OptionError("windows", windows.name, "their channels are those of no synthetic corpus")
