"""`zipbrain live verify`, `zipbrain live evaluate` and the example of alarm rules: what a session left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from zipbrain.cli.options import AsJson
from zipbrain.cli.terminal import Console, say
from zipbrain.errors import OptionError
from zipbrain.files import write_whole

if TYPE_CHECKING:
    from zipbrain.live.evaluate import AlarmScore

_COLUMNS = 3  # alarms beside each other in a table of 80 columns

Folder = Annotated[Path, typer.Argument(help="Folder of a session, or its journal.")]


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Check a journal's hash chain.

    Has a line been changed, removed, added or moved? Exit code 1 if so.

    Example: zipbrain live verify bed-3
    """
    from zipbrain.live.verify import verify

    report = verify(folder)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        style = "" if report.is_intact else "bold red"
        console = Console(highlight=False)
        console.print(Text(f"{report.path}: {report.verdict}", style=style), soft_wrap=True)
        if report.fault:
            console.print(Text(f"  line {report.fault_line}: {report.fault}", style=style), soft_wrap=True)
        kept = f"{_count(report.lines, 'line')} hold together, of {_count(report.sessions, 'session')}"
        console.print(f"  {kept}")
        if report.torn_bytes:
            console.print(f"  the last line is incomplete ({report.torn_bytes} bytes), as a kill leaves it")
        if report.mended:
            console.print(f"  {_count(report.mended, 'incomplete line')} put on record by a later session")
        if report.lost:
            console.print(f"  {_count(report.lost, 'line')} lost to a full disk, by the journal's own account")
        console.print(f"  last hash  {report.last_hash}", soft_wrap=True)
        console.print("  Kept elsewhere, it shows later that nothing was cut off the end.", style="dim")
    if not report.is_intact:
        raise typer.Exit(1)


def evaluate(
    folder: Folder,
    truth: Annotated[
        Path | None,
        typer.Option(
            help="Table of events: onset and duration in seconds of the stream, and label.",
            show_default="what a reviewer marked",
        ),
    ] = None,
    before: Annotated[float, typer.Option(help="Seconds before an event from which on an alarm detects it.")] = 30,
    after: Annotated[
        float, typer.Option(help="Seconds after the end of an event until which an alarm detects it.")
    ] = 60,
    session: Annotated[
        int | None, typer.Option(help="Which one of a journal with several, from 1.", show_default="the only one")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a session's alarms against the truth.

    Sensitivity per event, false alarms per 24 h, and how late alarms came. An event is detected if an alarm overlaps it
    or the tolerance around it; an alarm that overlaps none is false.

    Example: zipbrain live evaluate bed-3 --truth seizures.csv
    """
    from zipbrain.live.evaluate import evaluate

    found = evaluate(folder, truth, before_s=before, after_s=after, session=session)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    console = Console(highlight=False)
    decided = f"{_hours(found.decided_h)} with decisions, of {_hours(found.recorded_h)}"
    console.print(Text(f"{found.journal} against {found.truth}: {decided}"), soft_wrap=True)
    for start in range(0, len(found.scores), _COLUMNS):
        console.print(_table(found.scores[start : start + _COLUMNS]))
    told = f"an alarm detects an event from {found.before_s:g} s before it to {found.after_s:g} s after its end"
    console.print(told, soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)


def write_example_rules(path: Path, model: Path, as_json: bool) -> None:
    """Write a commented file of alarm rules for a model's classes, where no file is yet."""
    from zipbrain.edge.description import Description
    from zipbrain.live.alarm_rules import example_rules

    if path.exists():
        raise OptionError("--init-alarms", str(path), "that file is there already; name another one")
    classes = Description.read(model).classes
    text = example_rules(classes)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise OptionError("--init-alarms", str(path), f"it can't be written ({error.strerror or error})") from None
    if as_json:
        print(json.dumps({"file": str(path), "model": str(model), "classes": list(classes)}, indent=2))
        return
    say(f"written  {path}\nchoose thresholds, then: zipbrain live --model {model} --alarms {path} --source ...")


def _table(scores: tuple[AlarmScore, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    for score in scores:
        table.add_column(Text(score.alarm), justify="right", overflow="fold")
    rows = [
        ("events", [_events(score) for score in scores]),
        ("detected", [str(score.detected) for score in scores]),
        ("sensitivity", [_share(score.sensitivity) for score in scores]),
        ("  95 % interval", [_interval(score.sensitivity_interval, 100, "%") for score in scores]),
        ("alarms", [str(score.alarms) for score in scores]),
        ("false alarms", [_false(score) for score in scores]),
        ("false alarms per 24 h", [f"{score.false_per_day:.2f}" for score in scores]),
        ("  95 % interval", [_interval(score.false_per_day_interval, 1, "") for score in scores]),
        ("delay, median", [_seconds(score.delay_median_s) for score in scores]),
        ("delay, 95th percentile", [_seconds(score.delay_p95_s) for score in scores]),
        ("time of events in alarm", [_share(score.time_in_events) for score in scores]),
        ("other time in alarm", [_share(score.time_elsewhere, 2) for score in scores]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _hours(value: float) -> str:
    return f"{value:.1f} h" if value >= 1 else f"{value * 60:.1f} min"


def _events(score: AlarmScore) -> str:
    return f"{score.events} ({score.unseen} unseen)" if score.unseen else str(score.events)


def _false(score: AlarmScore) -> str:
    return (
        f"{score.false_alarms} ({score.confirmed_false} marked)" if score.confirmed_false else str(score.false_alarms)
    )


def _share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _interval(bounds: tuple[float, float] | None, factor: float, unit: str) -> str:
    if bounds is None:
        return "–"
    low, high = (f"{bound * factor:.{1 if unit else 2}f}" for bound in bounds)
    return f"{low} to {high} {unit}".strip()
