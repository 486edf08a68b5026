"""Write a report into a folder, every file whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zipbrain import __version__
from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.report.document import Document, Section
from zipbrain.evaluation.report.html import html_page
from zipbrain.evaluation.report.merge_records import merged, tasks_of
from zipbrain.evaluation.report.sections import task_section, verdict_of
from zipbrain.evaluation.result import Result, main_metric_of, results_of
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import csv_text
from zipbrain.files import write_whole
from zipbrain.metrics import METRICS

FIGURES: Final = "figures"
_TASK: Final = ("model", "dataset", "split", "windows", "subjects", "checkpoint", "weights_sha256", "data_sha256")
_PLAIN: Final = ("removed", "agreement", "logit_error", "seconds", "token_counts")
_NEWER: Final = ("operations", "looked")  # columns that are there where any record has them


@dataclass(frozen=True)
class Written:
    """What a report was written into, and what it says about itself."""

    folder: Path
    files: tuple[Path, ...]
    records: int
    warnings: tuple[str, ...]


def write_report(results: str | Path, out: str | Path, more: Sequence[Section] = ()) -> Written:
    """Write report.html, report.md with its figures, report.csv and report.tex from a folder of results.

    Parameters
    ----------
    results : path
        Folder of a `Store`.
    out : path
        Made if it is not there; an older report in it is overwritten file by file.
    more : sequence of Section
        Sections to put behind those of the records.

    Returns
    -------
    written : Written
    """
    store = Store(Path(results))
    found, left_out = results_of(store.records())
    if not found:
        allowed = "it holds no results: zipbrain compare, ablate or search with --out writes them"
        allowed += f" ({'; '.join(left_out)})" * bool(left_out)
        raise OptionError("results", str(results), allowed)
    document = build(found, [*store.remarks, *left_out], more)
    folder = Path(out)
    texts = {"report.md": document.to_markdown(FIGURES), "report.csv": csv_text([_flat(result) for result in found])}
    texts |= {"report.tex": document.to_latex(), "report.html": html_page(document)}
    files = []
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        for picture in (picture for _, section in document.parts() for picture in section.pictures):
            files.append(folder / FIGURES / f"{picture.name}.{picture.kind}")
            write_whole(files[-1], picture.content)
        for name, text in texts.items():
            files.append(folder / name)
            write_whole(files[-1], text.encode())
    except OSError as error:
        raise DataError(
            f"{folder}: the report can't be written ({error.strerror or error}); choose another --out"
        ) from None
    warnings = [f"{', '.join(path)}: {line}" for path, section in document.parts() for line in section.warnings]
    return Written(folder, tuple(files), len(found), (*document.warnings, *warnings))


def build(
    records: Sequence[Result | Mapping[str, Any]], remarks: Sequence[str] = (), more: Sequence[Section] = ()
) -> Document:
    """A report of results or records of a `Store`, with the store's `remarks` and `more` sections behind its own."""
    groups = [(name, merged(own)) for name, own in tasks_of([Result.of(record) for record in records])]
    tasks = f"{len(groups)} task{'s' * (len(groups) != 1)}"
    unscored = [f"{name}: only costs are stored, no scores" for name, own in groups if not own]
    text = [f"{len(records)} stored results of {tasks}. Made by zipbrain {__version__}."]
    sections = [task_section(name, own, number) for number, (name, own) in enumerate(groups, 1) if own]
    shown = [*sections, *(part for part in more if not part.is_empty)]
    verdicts = {name: verdict_of(own) for name, own in groups}
    several = len(groups) > 1
    headline = [f"{name}. {words}" if several else words for name, words in verdicts.items() if words]
    return Document("zipbrain report", text, [*remarks, *unscored], shown, headline)


def _flat(result: Result) -> dict[str, Any]:
    """A result as one line of a CSV file, all numbers in full; what it lacks is empty."""
    recipe, extra = result.recipe or {}, result.extra
    row: dict[str, Any] = {name: result.task.get(name) for name in _TASK}
    row |= {"kind": result.kind, "label": result.label, "ratio": result.ratio, "mass": extra.get("mass")}
    row |= {"chosen_on_dataset": recipe.get("dataset"), "chosen_on_split": recipe.get("split")}
    row |= {name: getattr(result, name) for name in _PLAIN}
    row |= {name: value for name in _NEWER if not math.isnan(value := getattr(result, name))}
    for metric in METRICS:
        low, high = result.interval(metric) or (None, None)
        row |= {metric: result.value(metric), f"{metric}_low": low, f"{metric}_high": high}
    row["paper"] = result.paper_value(main_metric_of([result]))
    row |= {f"latency_{name}": value for name, value in (extra.get("latency") or {}).items()}
    row |= {"macs": extra.get("macs"), "recipe": json.dumps(recipe, sort_keys=True) if recipe else ""}
    return {**row, "key": result.key}
