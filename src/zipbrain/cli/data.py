"""`zipbrain data`: list the corpora, turn raw recordings into labelled windows, show what a folder holds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from zipbrain.cli.app import App
from zipbrain.cli.data_download import register
from zipbrain.cli.options import AsJson, Check, Units, where_to_write, which_model
from zipbrain.cli.progress import show_progress
from zipbrain.cli.stopping import GOES_ON, when_stopped
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from zipbrain.signal.convention import Convention

app = App(help="Turn raw recordings into labelled windows for a model.")
register(app)


@app.command("list")
def list_corpora(as_json: AsJson = False) -> None:
    """List the corpora that can be prepared.

    With their windows, options and expected layout.

    Example: zipbrain data list
    """
    from zipbrain.data.corpora import CORPORA

    rows: list[dict[str, Any]] = []
    for name, kind in CORPORA.items():
        options = {field.name: field.default for field in fields(kind)}
        times = {"window_s": kind.window_s, "hop_s": kind.hop_s}
        rows.append({"name": name, "title": kind.title, **times, "options": options, "layout": kind.layout})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=SIMPLE_HEAD)
    for column in ("name", "window", "options", "layout"):
        table.add_column(column, overflow="fold")
    for row in rows:
        options_text = " ".join(f"{key}={value}" for key, value in row["options"].items())
        table.add_row(row["name"], f"{row['window_s']:g} s", options_text, row["layout"].replace("[", r"\["))
    Console(highlight=False).print(table)


@app.command()
@when_stopped(f"recordings that were prepared are in {{out}}; {GOES_ON}")
def prepare(
    corpus: Annotated[str, typer.Argument(help="Which corpus; `zipbrain data list` shows them.")],
    root: Annotated[Path, typer.Option(help="Where the raw files lie.")],
    out: Annotated[Path, where_to_write("the folder of windows")],
    model: Annotated[
        str, which_model("labram, eegpt, biot, tfm or cbramod, whose conventions the windows follow")
    ] = "labram",
    workers: Annotated[
        int,
        typer.Option("--workers", "--jobs", help="How many at the same time: recordings; -1 for one per core."),
    ] = 1,
    band: Annotated[
        str, typer.Option(help="Band-pass in Hz, such as 0.5-40, or none.", show_default="the model's")
    ] = "",
    notch: Annotated[
        str, typer.Option(help="Mains frequency to remove, in Hz, or none.", show_default="the model's")
    ] = "",
    channels: Annotated[
        str, typer.Option(help="Channels to take, such as C3,C4 or F3-A2,F4-A1.", show_default="the corpus's")
    ] = "",
    window: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds of a window.", show_default="the corpus's")
    ] = None,
    hop: Annotated[
        float | None, typer.Option(min=0.01, help="Seconds from one window to the next.", show_default="the corpus's")
    ] = None,
    units: Units = None,
    check: Check = True,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the corpus, such as multiple=20; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a raw corpus into labelled windows.

    May be stopped at any moment and continued with the same command. Prints what became of every file, and writes it to
    report.json in the folder.

    Example: zipbrain data prepare eegmat --root eegmat-1.0.0 --out windows/eegmat --workers 4
    """
    from zipbrain.data import convention
    from zipbrain.data import corpus as find_corpus
    from zipbrain.data import prepare as run

    kind = find_corpus(corpus, **_options(option or []))
    wanted = _changed(convention(model, kind.name), band, notch, channels, window, hop)
    with show_progress(f"looking for recordings in {root}") as tell:

        def progress(done: int, total: int) -> None:
            tell(f"preparing {kind.name}", done, total)

        options: dict[str, Any] = {"units": units, "check": check, "jobs": workers, "progress": progress}
        report = run(kind, root, out, convention=wanted, **options)
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        report.show(Console(highlight=False))


@app.command()
def show(folder: Annotated[Path, typer.Argument(help="What prepare wrote.")], as_json: AsJson = False) -> None:
    """Show what a prepared folder holds.

    Example: zipbrain data show windows/eegmat
    """
    from zipbrain.data import open_prepared

    prepared = open_prepared(folder)
    counts: dict[str, dict[str, int]] = {}
    subjects: dict[str, int] = {}
    for split in prepared.splits:
        windows = prepared.split(split)
        found = Counter(windows.labels.tolist())
        counts[split] = {label: found[place] for place, label in enumerate(prepared.classes)}
        subjects[split] = len(set(windows.subjects.tolist()))
    if as_json:
        print(json.dumps({**prepared.info, "windows": counts, "subjects": subjects}, indent=1))
        return
    used = prepared.info["convention"]
    console = Console(highlight=False)
    size = f"{used['window_s']:g} s at {prepared.sfreq:g} Hz"
    console.print(f"{prepared.name} for {prepared.model}, {size}", soft_wrap=True)
    console.print(f"channels {' '.join(prepared.ch_names)}", soft_wrap=True, markup=False)
    band = "-".join("" if edge is None else f"{edge:g}" for edge in used["band"]) + " Hz" if used["band"] else "none"
    notch = f"{used['notch']:g} Hz" if used["notch"] else "none"
    console.print(f"band-pass {band}, notch {notch}; microvolts on disk, scaled by {used['scaling']!r} when used")
    table = Table("split", box=SIMPLE_HEAD)
    for column in ("subjects", *prepared.classes, "all"):
        table.add_column(column, justify="right")
    for split, row in counts.items():
        table.add_row(split, *(f"{number:,}" for number in (subjects[split], *row.values(), sum(row.values()))))
    console.print(table)


def _options(given: list[str]) -> dict[str, Any]:
    options = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError("--option", text, "it must be KEY=VALUE, such as multiple=20")
        options[key.strip()] = value.strip()
    return options


def _changed(
    usual: Convention, band: str, notch: str, channels: str, window: float | None, hop: float | None
) -> Convention:
    """The table's convention with what the command line asks for instead."""
    from zipbrain.signal.montage import parse_montage

    changes: dict[str, Any] = {}
    if band:
        changes["band"] = None if band.lower() == "none" else _numbers("--band", band, 2)
    if notch:
        changes["notch"] = None if notch.lower() == "none" else _numbers("--notch", notch, 1)[0]
    if channels:
        names = [name.strip().upper() for name in channels.split(",") if name.strip()]
        changes["montage"], changes["ch_names"] = parse_montage(names), tuple(names)
    if window is not None:
        changes["window_s"], changes["hop_s"] = window, window
    if hop is not None:
        changes["hop_s"] = hop
    return replace(usual, **changes)


def _numbers(option: str, text: str, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split("-"))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        allowed = "two numbers of Hz such as 0.5-40, or none" if count == 2 else "a number of Hz such as 50, or none"
        raise OptionError(option, text, f"it must be {allowed}")
    return numbers
