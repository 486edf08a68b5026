"""`model_card`: the page of a model on a hub, with what it reads, how it is compressed and what is certified."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from zipbrain import __version__
from zipbrain.binomial import FEWEST_GROUPS
from zipbrain.models import Task, model_name
from zipbrain.recipe import Recipe
from zipbrain.seal import find_broken_seal
from zipbrain.text import escape_markdown


def model_card(model: nn.Module, name: str, *, recipe: Recipe | None, task: Task | None, weights: str) -> str:
    """The page of a model, as Markdown with the header that the hub reads.

    Parameters
    ----------
    model : nn.Module
        One of our models.
    name : str
        Of the repository, ``owner/name``.
    recipe : Recipe or None
        How the model is compressed.
    task : Task or None
        What it was trained for.
    weights : str
        SHA-256 of its weights, to which a certificate is bound.
    """
    parts = [_header(model), f"# {name.rpartition('/')[2]}\n", *_about(model, recipe), _use(name, recipe)]
    parts += [_reads(task)] if task is not None else []
    if recipe is not None:
        parts += [_compression(recipe), "\n".join(_certificate(recipe, weights))]
    return "\n".join(parts) + "\n"


def _header(model: nn.Module) -> str:
    tags = ["eeg", "token-pooling", model_name(model)]
    return "\n".join(["---", "library_name: zipbrain", "tags:", *(f"- {tag}" for tag in tags), "---", ""])


def _about(model: nn.Module, recipe: Recipe | None) -> Iterator[str]:
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    how = "" if recipe is None else ", compressed by token pooling"
    yield f"{type(model).__name__}, {size:.1f} M parameters{how}. Saved by zipbrain {__version__}.\n"


def _use(name: str, recipe: Recipe | None) -> str:
    lines = ["```python", "import zipbrain  # pip install 'zipbrain[hub]'", ""]
    lines.append(f'model = zipbrain.from_pretrained("{name}")')
    if recipe is not None:
        lines.append("# zipbrain.restore(model) is the uncompressed one, to the bit")
    return "\n".join([*lines, "```", ""])


def _reads(task: Task) -> str:
    rows = {
        "classes": ", ".join(task.classes),
        "trained on": task.data,
        "channels": ", ".join(task.ch_names),
        "rate": "" if task.sfreq is None else f"{task.sfreq:g} Hz",
        "scaling": task.scaling or "",
        "filters": task.filters or "",
    }
    return "\n".join(["## What it reads\n", *_table(("", ""), [row for row in rows.items() if row[1]]), ""])


def _compression(recipe: Recipe) -> str:
    schedule = dict(recipe.schedule)
    rows = [("method", json.dumps(recipe.method)), ("schedule", json.dumps(schedule))]
    rows += [("mass", ", ".join(part for part, used in recipe.mass.items() if used) or "not used")]
    rows += [("tokens", str(recipe.tokens))] if recipe.tokens else []
    rows += [("second look", f"{recipe.second_look:.4g}")] if recipe.second_look is not None else []
    chosen = ", ".join(part for part in (recipe.dataset, recipe.split) if part)
    rows += [("chosen on", chosen)] if chosen else []
    return "\n".join(["## How it is compressed\n", *_table(("", ""), rows), ""])


def _certificate(recipe: Recipe, weights: str) -> Iterator[str]:
    """What is promised, or why nothing is."""
    yield "## Certificate\n"
    promise = recipe.promise
    if promise is None:
        yield "None. `zipbrain.tune` chooses a recipe and certifies how many decisions it leaves as they were.\n"
        return
    if fault := find_broken_seal(recipe.to_dict(), weights):
        yield f"None: {escape_markdown(fault)}.\n"
        return
    groups, windows = promise.get("groups"), promise.get("windows")
    if not isinstance(groups, int) or not isinstance(windows, int):
        yield "None: its promise does not say on how many people and windows it was counted.\n"
        return
    where = f"{promise.get('runtime', 'torch')}, {promise.get('precision', 'float32')}"
    is_untouched = recipe.schedule.get("r") == 0  # the same network: nothing has to be proved
    agree, confidence = _percent(promise.get("agree")), _percent(promise.get("confidence"))
    if promise.get("is_promise", True) is True and (is_untouched or groups >= FEWEST_GROUPS):
        yield (
            f"At least **{agree}** of the decisions are those of the uncompressed model, promised at {confidence} "
            f"confidence for people like the {groups} it was certified on ({windows:,} windows).\n"
        )
    else:
        yield (
            f"Estimated, not promised: {agree} of the decisions are those of the uncompressed model. The {groups} "
            f"people it was counted on ({windows:,} windows) are too few to speak of others.\n"
        )
    rows = [
        (str(row.get("name")), f"{row.get('windows'):,}", _percent(row.get("agreement")), _percent(row.get("agree")))
        for row in promise.get("classes") or ()
        if isinstance(row, Mapping) and isinstance(row.get("windows"), int)
    ]
    if rows:
        yield from _table(("class", "windows", "decisions unchanged", "at least"), rows)
        yield ""
    score = promise.get("score")
    if isinstance(score, Mapping) and all(isinstance(score.get(when), float) for when in ("before", "after")):
        metric, before, after = escape_markdown(str(score.get("metric"))), score["before"], score["after"]
        yield f"Score ({metric}): {before:.4f} uncompressed, {after:.4f} compressed.\n"
    yield f"It holds for these weights (SHA-256 `{weights}`), this recipe and where it was counted ({where}).\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table in Markdown, whose cells are words."""
    cells = [[escape_markdown(cell) for cell in line] for line in (head, *rows)]
    return ["| " + " | ".join(line) + " |" for line in (cells[0], ["---"] * len(head), *cells[1:])]


def _percent(share: object) -> str:
    """A share in per cent, rounded down to one decimal; a dash where there is none."""
    if isinstance(share, bool) or not isinstance(share, int | float):
        return "–"
    return f"{math.floor(round(share * 1000, 6)) / 10:g} %"
