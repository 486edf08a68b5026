"""`zipbrain report`: tables and pictures of stored results, as one HTML page, Markdown, CSV and LaTeX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipbrain.cli.any_model import ConventionFile, Function, Weights, chosen_model
from zipbrain.cli.loaders import need_torch, open_checkpoint, open_windows, say_notes
from zipbrain.cli.options import AsJson, DataIfAny, Device, Split, where_to_write
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError, UnsupportedModel

if TYPE_CHECKING:
    from zipbrain.evaluation.report import Section
    from zipbrain.models import Build


def report(
    results: Annotated[Path, typer.Argument(help="Folder with results.jsonl, of compare, ablate or search.")],
    checkpoint: Annotated[
        Path | None, typer.Argument(help="Folder of a run of finetune, or of a saved model: for pictures of a window.")
    ] = None,
    out: Annotated[Path, where_to_write("report.html, .md, .csv, .tex and figures")] = Path("report"),
    model: Function = None,
    weights: Weights = None,
    convention: ConventionFile = None,
    data: DataIfAny = None,
    split: Split = "test",
    example: Annotated[int, typer.Option(min=0, help="Number of the window that is drawn.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="At most so many windows: to average pictures over.")] = 200,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write stored results as a page with tables and pictures.

    With a model and --data also attention, merge map and survival of an example.

    Example: zipbrain report results --out report

    Example: zipbrain report results runs/tuab --data tuab-labram --out report
    """
    shown_model: Path | Build | None = None
    if any(given is not None for given in (checkpoint, model, weights, convention)):
        shown_model = chosen_model(checkpoint, model, weights, convention)
    if (shown_model is None) != (data is None):
        given, lacking = ("CHECKPOINT", "--data") if data is None else ("--data", "CHECKPOINT (the model)")
        raise OptionError(given, str(shown_model or data), f"pictures of a window need {lacking} too")
    if not (results / "results.jsonl").is_file():
        raise OptionError("results", str(results), "it holds no results.jsonl: compare, ablate and search write one")
    console = Console(stderr=True, highlight=False)
    with show_progress("reading results") as progress:
        from zipbrain.evaluation.report import write_report

        more: list[Section] = []
        if shown_model is not None and data is not None:
            options = {"split": split, "window": example, "most": limit, "device": device, "progress": progress}
            try:
                more = _example(results, shown_model, data, options)
            except UnsupportedModel as error:
                say_notes([f"no pictures of a window: {error}"])
        progress("drawing and writing the report", 0, 0)
        written = write_report(results, out, more)
    for line in written.warnings:
        console.print(f"note: {line}", style="yellow", soft_wrap=True, markup=False)
    if as_json:
        files = [str(path) for path in written.files]
        print(json.dumps({"records": written.records, "files": files, "warnings": written.warnings}, indent=2))
        return
    shown = Console(highlight=False)
    shown.print(f"{written.records} results: {out / 'report.html'}", soft_wrap=True, markup=False)
    shown.print("also report.md with figures/, report.csv, report.tex", style="dim")


def _example(results: Path, checkpoint: Path | Build, data: str, options: dict[str, Any]) -> list[Section]:
    need_torch()
    from zipbrain.evaluation.report.example import example_sections
    from zipbrain.evaluation.store import Store

    model, name = open_checkpoint(checkpoint)
    windows = open_windows(data, model, name, options["split"], checkpoint=checkpoint)
    return example_sections(model, windows, Store(results).records(), **options)
