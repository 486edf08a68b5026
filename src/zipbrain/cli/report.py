"""`zipbrain report`: tables and pictures of stored results, as one HTML page, Markdown, CSV and LaTeX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipbrain.cli.any_model import ConventionFile, chosen_model
from zipbrain.cli.loaders import need_torch, open_checkpoint, open_windows, say_notes
from zipbrain.cli.options import AsJson, Device, Split
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError, UnsupportedModel

if TYPE_CHECKING:
    from zipbrain.evaluation.report import Section
    from zipbrain.models import Build


def report(
    results: Annotated[Path, typer.Argument(help="Folder with results.jsonl, of compare, ablate or search.")],
    out: Annotated[Path, typer.Option(help="Folder for report.html, .md, .csv, .tex and figures.")] = Path("report"),
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a run of finetune or of a saved model, for pictures of a window.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead: file.py:build or package.module:build; --checkpoint has its weights.")
    ] = None,
    convention: ConventionFile = None,
    data: Annotated[
        str | None, typer.Option(help="Its windows: a prepared folder, synthetic-events or synthetic-sleep.")
    ] = None,
    split: Split = "test",
    window: Annotated[int, typer.Option(min=0, help="Number of the window that is drawn.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Windows over which survival and purity are averaged.")] = 200,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a report of everything that a folder of results holds.

    With --checkpoint and --data also attention, merge map and survival of an example.

    [bold]Example:[/bold] zipbrain report results --out report --checkpoint runs/tuab --data tuab-labram
    """
    shown_model: Path | Build | None = checkpoint
    if model is not None or convention is not None:
        shown_model = chosen_model(None, model, checkpoint, convention)
    if (shown_model is None) != (data is None):
        given, lacking = ("--checkpoint", "--data") if data is None else ("--data", "--checkpoint")
        raise OptionError(given, str(shown_model or data), f"pictures of a window need {lacking} too")
    if not (results / "results.jsonl").is_file():
        raise OptionError("results", str(results), "it holds no results.jsonl: compare, ablate and search write one")
    console = Console(stderr=True, highlight=False)
    with show_progress("reading results") as progress:
        from zipbrain.evaluation.report import write_report

        more: list[Section] = []
        if shown_model is not None and data is not None:
            options = {"split": split, "window": window, "most": limit, "device": device, "progress": progress}
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
