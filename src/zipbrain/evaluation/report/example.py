"""Pictures of what compression does to windows: attention, merge map, survival, and purity where the truth is known."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from zipbrain.data.synthetic import TASKS, Synthetic
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation.options import options_text
from zipbrain.evaluation.plots.attention import attention_heat_maps, attention_of
from zipbrain.evaluation.plots.merging import merge_map
from zipbrain.evaluation.plots.purity import purity_bars
from zipbrain.evaluation.plots.topography import survival_topography
from zipbrain.evaluation.purity import FATES, Purity, carrying, follow
from zipbrain.evaluation.report.document import Picture, Section
from zipbrain.evaluation.report.merge_records import merged
from zipbrain.evaluation.result import Result, labels_of, plain, ratio_order, results_of
from zipbrain.evaluation.tables import Table
from zipbrain.evaluation.token_fates import Fates, fates
from zipbrain.evaluation.trial import recipe_for
from zipbrain.evaluation.wording import share_text
from zipbrain.models import name_of
from zipbrain.paper import NETWORKS, known_name
from zipbrain.progress import Progress, silent
from zipbrain.recipe import Recipe
from zipbrain.seams import compress

_SHOWN: Final = 0.8  # the ratio that a picture shows, or the nearest there is


def example_sections(
    model: nn.Module,
    windows: Windows,
    records: Sequence[Mapping[str, Any]] = (),
    *,
    split: str = "test",
    window: int = 0,
    most: int = 200,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[Section]:
    """Sections with pictures of one window, number `window` of the split, and of `most` windows spread evenly over it.

    The recipe that is shown is that of the stored `records` of this model which removes nearest to 80 %, on this corpus
    where there are any, ZIPBrain's first; without any, it is default ZIPBrain at 0.8.
    """
    if not 0 <= window < len(windows):
        raise OptionError("--example", window, f"there are {len(windows)} windows, counted from 0")
    name = known_name(name_of(model), NETWORKS)
    own = [r for r in merged(results_of(records)[0]) if not r.is_original and r.task.get("model") == name]
    own = [r for r in own if str(r.task.get("dataset")).lower() == windows.name.lower()] or own
    label, recipe = _shown(own, model)
    parts = [0, 3 + len(_compared(own))]  # done, in all

    def say(what: str) -> None:
        (progress or silent)(f"drawing: {what}", *parts)
        parts[0] += 1

    about = f"{name} on {windows.name}, window {window} ({windows.classes[windows.labels[window]]})"

    say("attention")
    attention = attention_of(model, windows, window)
    pictures = []
    for block in attention.maps:
        caption = f"Attention in block {block} of the uncompressed model: {about}."
        figure = attention_heat_maps(attention, blocks=[block])
        pictures.append(Picture.of(figure, f"attention-{block}", caption, caption, "png", is_small=True))

    say("merge map")
    pooled = compress(copy.deepcopy(model), recipe)
    one = fates(pooled, windows.select([window]), device=device)
    removed = share_text(1 - one.token_counts[-1] / one.token_counts[0])
    title = f"{about}:\n{label}, {removed} removed"
    figure = merge_map(one, 0, windows.take([window])[0], windows.sfreq, title)
    caption = f"Where every token of the window ended: {label}, {_options(recipe)}."
    pictures.append(Picture.of(figure, "merge-map", caption, caption, "png"))

    say("survival")
    places = np.unique(np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(np.int64))
    some = windows.select(places)
    many = fates(pooled, some, device=device)
    section = Section("Example", text=[f"{about}; {label}, {_options(recipe)}."], pictures=pictures)
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
    alone = Result("", "compare", label, recipe.schedule.get("ratio"), {}, recipe.to_dict(), {})

    def follow_tokens(recipe: Recipe) -> tuple[Fates, NDArray[np.bool_]]:
        found = fates(compress(copy.deepcopy(model), recipe), some, device=device)
        return found, carrying(found.layout, truth[places])

    return [section, _purity(follow_tokens, own or [alone], say)]


def _purity(
    follow_tokens: Callable[[Recipe], tuple[Fates, NDArray[np.bool_]]],
    results: Sequence[Result],
    say: Callable[[str], None],
) -> Section:
    """What became of event-carrying tokens, for every recipe that was compared."""
    found: list[Purity] = []
    order = labels_of(results)
    for result in sorted(_compared(results), key=lambda r: (order.index(r.label), ratio_order(r))):
        say(f"purity: {result.label} {result.ratio or ''}".rstrip())
        found.append(follow(*follow_tokens(Recipe.from_dict(result.recipe or {})), result.label))
    if not found:
        return Section("Does pooling keep what matters?")
    rows = []
    for one in found:
        shares = (f"{share_text(one.shares[fate])} ({share_text(one.random[fate])})" for fate in FATES)
        rows.append((one.label, share_text(one.removed), *shares))
    words = (
        "These windows are synthetic, so it is known which tokens carry the event of their window. A token counts as "
        "carrying if half of its time or more lies in a carrying second."
    )
    caption = "What became of event-carrying tokens; in brackets, what random groups of the same sizes would give."
    columns = ("method", "removed", "kept alone", "pure group", "mixed group", "dropped")
    table = Table.of(caption, columns, rows, name="purity")
    picture = Picture.of(purity_bars(found), "purity", caption, caption)
    return Section("Does pooling keep what matters?", [words], tables=[table], pictures=[picture])


def _compared(results: Sequence[Result]) -> list[Result]:
    """The rows of a comparison without mass."""
    return [r for r in results if r.kind == "compare" and not r.label.endswith(" + mass")]


def _shown(results: Sequence[Result], model: nn.Module) -> tuple[str, Recipe]:
    """Label and recipe of the pictures."""
    if not results:
        return "ZIPBrain", recipe_for(model, "zipbrain", ratio=_SHOWN)

    def distance(result: Result) -> tuple[bool, float]:
        removed = 0.0 if math.isnan(result.removed) else result.removed
        return plain(result.label) != "zipbrain", abs(removed - _SHOWN)

    best = min(results, key=distance)
    return best.label, Recipe.from_dict(best.recipe or {})


def _options(recipe: Recipe) -> str:
    return options_text(recipe.method, " = ") or "no options"


def _corpus(windows: Windows) -> Synthetic:
    """The synthetic corpus from which windows come, in their montage."""
    task = windows.name.removeprefix("synthetic-")
    for montage in ("referential", "bipolar"):
        corpus = Synthetic(task, montage=montage)
        if corpus.ch_names == windows.ch_names:
            return corpus
    raise OptionError("windows", windows.name, "their channels are those of no synthetic corpus")
