"""`zipbrain predict`: recordings through an exported model, without torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from zipbrain.cli.options import (
    AsJson,
    AuditSeed,
    AuditShare,
    ChannelNames,
    Check,
    Hop,
    Runtime,
    Scheduler,
    Units,
    edge_runtime,
    how_many_at_once,
    where_to_write,
    which_model,
)
from zipbrain.cli.predict_archive import archive_json, show_archive
from zipbrain.cli.progress import show_progress
from zipbrain.cli.stopping import GOES_ON, Stopped
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError
from zipbrain.text import printable

if TYPE_CHECKING:
    from zipbrain.edge.audit import Audit
    from zipbrain.edge.predict_batch import RecordingResult

_NAME_WIDTH = 20  # columns of a recording's name in the table
_MOST_LIMIT = 1e6  # seconds, and GB, which `Limits` takes
_MOST_WORKERS = 1024  # of this machine
_MOST_ROWS = 20  # of the table, and of the list of failures


def predict(
    recordings: Annotated[list[Path], typer.Argument(help="EDF or BDF files, or folders; other formats with MNE.")],
    model: Annotated[Path, which_model("what `zipbrain export` wrote")],
    out: Annotated[Path, where_to_write("the results; finished ones are not computed again")] = Path("predictions"),
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Kinds of files to write: csv, edf, bids, yasa, figure, with commas; or parquet.",
            show_default="all that suit",
        ),
    ] = None,
    hop: Hop = None,
    units: Units = None,
    check: Check = True,
    rename: ChannelNames = None,
    runtime: Runtime = "onnxruntime",
    device: Annotated[
        str, typer.Option(help="Where to compute: cpu, or cuda with onnxruntime-gpu (never run by us).")
    ] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="CPU threads: of each worker.", show_default="free cores, shared"),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            "--batch-size",
            min=1,
            help="Windows per call: with 1, the very bits of `zipbrain live`.",
            show_default="32",
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0, max=_MOST_LIMIT, help="Seconds that 32 windows may take the model; 0: no limit.")
    ] = 120,
    memory_limit: Annotated[
        float, typer.Option(min=0, max=_MOST_LIMIT, help="GB of memory that it may add; 0: no limit.")
    ] = 4,
    backend: Annotated[
        str | None,
        typer.Option(
            help="How work is shared out: loky (processes), threading, dask, ray, sequential.",
            show_default="loky for several recordings if joblib is installed",
        ),
    ] = None,
    workers: Annotated[int | None, how_many_at_once("recordings", "one per free core", _MOST_WORKERS)] = None,
    scheduler: Scheduler = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute and replace what is there.")] = False,
    audit: AuditShare = None,
    audit_seed: AuditSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Classify the windows of recordings with an exported model.

    Needs no torch, and no MNE for EDF and BDF. Windows with gaps, NaN, flat or saturated channels get no decision, and
    the reason. A recording that can't be used does not stop the others: it is listed at the end and the exit code is 1.
    The same command goes on where it was stopped.

    Example: zipbrain predict night.edf --model isruc.onnx --out results
    """
    from zipbrain.edge.archive import predict_archive
    from zipbrain.edge.audit import promised_agreement, sum_audits
    from zipbrain.edge.description import Description
    from zipbrain.edge.limits import Limits
    from zipbrain.edge.predict_batch import predict_many, write_table

    chosen = None if formats is None else [name.strip().lower() for name in formats.split(",") if name.strip()]
    is_archive = chosen is not None and "parquet" in chosen
    if is_archive and len(chosen or ()) > 1:
        raise OptionError("--format", formats, "parquet stands alone: it is one dataset of all recordings")
    try:
        with show_progress() as tell:

            def progress(name: str, done: float, total: int) -> None:
                tell(f"predicting: {name}", done, total)

            reading: dict[str, Any] = {"units": units, "check": check, "channels": read_renaming(rename)}
            reading["opener"] = _open_with_mne if find_spec("mne") else None
            session: dict[str, Any] = {"runtime": edge_runtime(runtime), "provider": device, "threads": threads}
            session["limits"] = Limits(time_limit or None, math.ceil(memory_limit * 2**30) or None)
            jobs: dict[str, Any] = {"backend": backend, "workers": workers, "address": scheduler}
            writing: dict[str, Any] = {"formats": chosen, "hop_s": hop, "overwrite": overwrite, "progress": progress}
            watching: dict[str, Any] = {"audit": audit, "audit_seed": audit_seed, "batch": batch}
            if is_archive:
                del writing["formats"]
                found = predict_archive(recordings, model, out, **reading, **session, **jobs, **writing, **watching)
            else:
                results = predict_many(recordings, model, out, **reading, **session, **jobs, **writing, **watching)
    except KeyboardInterrupt:
        raise Stopped(printable(f"recordings that were finished are in {out}; {GOES_ON}")) from None
    promised = promised_agreement(Description.read(model)) if audit is not None else None
    if is_archive:
        print(archive_json(found, promised)) if as_json else show_archive(found)
        if found.audit is not None and not as_json:
            _show_audit(Console(highlight=False), found.audit, promised)
        raise typer.Exit(1 if found.failed or found.unreadable else 0)
    table = write_table(results, out) if len(results) > 1 else None
    watched = sum_audits(result.summary["audit"] for result in results if "audit" in result.summary)
    if as_json:
        content: dict[str, Any] = {"model": str(model), "out": str(out), "recordings": [_plain(o) for o in results]}
        content |= {} if watched is None else {"audit": {**watched.to_dict(), "promised": promised}}
        print(json.dumps(content, indent=2))
    else:
        console = Console(highlight=False)
        _show(console, results, table, figure=chosen is None or "figure" in chosen)
        if watched is not None:
            _show_audit(console, watched, promised)
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def _open_with_mne(path: Path, **options: Any) -> Any:
    from zipbrain.data import open_recording

    return open_recording(path, **options)


def read_renaming(given: str | None) -> dict[str, str]:
    """Read ``"C3=EEG 1,C4=EEG 2"``."""
    names: dict[str, str] = {}
    for part in (given or "").split(","):
        new, equals, old = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not (new and equals and old) or new in names:
            raise OptionError("--rename", part.strip(), "it must be like 'C3=EEG 1,C4=EEG 2', each electrode once")
        names[new] = old
    return names


def _plain(result: RecordingResult) -> dict[str, Any]:
    files = {kind: str(path) for kind, path in result.files.items()}
    plain = {"recording": str(result.recording), "status": result.status, "files": files}
    return plain | ({"error": result.error} if result.error else {"summary": result.summary})


def _show(console: Console, results: Sequence[RecordingResult], table: Path | None, *, figure: bool) -> None:
    good = [result for result in results if result.status != "failed"]
    failed = [result for result in results if result.status == "failed"]
    if good:
        console.print(_table(good[:_MOST_ROWS]))
        for number, result in enumerate(good[:_MOST_ROWS], 1) if _is_numbered(good) else ():
            console.print(Text(f"  {number:>2}  {result.recording.name}"), soft_wrap=True)
    if len(good) > _MOST_ROWS:
        console.print(f"  and {len(good) - _MOST_ROWS} more")
    notes = Counter(note for result in good for note in dict.fromkeys(result.summary["notes"]))
    for note, count in notes.most_common(_MOST_ROWS):
        whose = f"note ({count} of {len(good)})" if len(good) > 1 else "note"
        console.print(Text(f"{whose}: {note}", style="yellow"), soft_wrap=True)
    if len(notes) > _MOST_ROWS:
        console.print(f"  and {len(notes) - _MOST_ROWS} more notes, all in {table}", markup=False)
    if figure and not find_spec("matplotlib"):
        note = "note: no figure: matplotlib is not installed (pip install 'zipbrain[report]')"
        console.print(Text(note, style="yellow"), soft_wrap=True)
    looked = [result.summary for result in good if "looked_twice" in result.summary]
    if windows := sum(summary["windows"] - summary["no_decision"] for summary in looked):
        twice = sum(summary["looked_twice"] for summary in looked)
        console.print(f"looked twice: {twice} of {windows} windows ({twice / windows:.1%})")
    skipped = sum(result.status == "skipped" for result in good)
    if skipped:
        console.print(f"{skipped} of {len(results)} were finished before: --overwrite computes them again.")
    files = list(good[0].files.values()) if len(good) == 1 else ([table] if table else [])
    for path in files:
        console.print(Text(f"written  {path}"), soft_wrap=True)
    for result in failed[:_MOST_ROWS]:
        console.print(Text(f"failed   {result.error}", style="bold red"), soft_wrap=True)
    if failed:
        more = f" (here {_MOST_ROWS}; all are in {table})" if len(failed) > _MOST_ROWS else ""
        words = f"{len(failed)} of {len(results)} recordings failed{more}."
        console.print(words, style="bold red", markup=False)


def _show_audit(console: Console, found: Audit, promised: float | None) -> None:
    """Say how many of the audited windows kept their decision, beside what the recipe promises."""
    if not found.windows:
        console.print(Text("audit: no window was drawn; take a larger --audit", style="yellow"), soft_wrap=True)
        return
    low, high = found.interval
    share = f"{found.agreeing} of {found.windows} windows agree with the uncompressed network"
    words = f"audit: {share}: {found.agreeing / found.windows:.1%}, 95 % interval {low:.1%} to {high:.1%}"
    is_broken = promised is not None and high < promised
    beside = "the recipe promises nothing" if promised is None else f"promised {promised:.1%}"
    advice = ": not kept on these recordings, tune on windows like them" if is_broken else ""
    style = "bold red" if is_broken else ""
    console.print(Text(f"{words}; {beside}{advice}", style=style), soft_wrap=True)


def _table(results: Sequence[RecordingResult]) -> Table:
    first = results[0].summary
    about = first["model"]
    title = f"{about['name']} for {about['corpus']}, {about['precision']}, windows of {first['window_s']:g} s"
    table = Table(box=SIMPLE_HEAD, title=Text(title))  # as it is: the file's words are no markup
    table.add_column("#" if _is_numbered(results) else "recording", justify="left", overflow="fold")
    for column in ("minutes", "windows", "undecided"):
        table.add_column(column, justify="right")
    table.add_column("shares of the decided")
    table.add_column("× real time", justify="right")
    for number, result in enumerate(results, 1):
        found = result.summary
        shares = ", ".join(f"{name} {_share(entry['share'])}" for name, entry in found["classes"].items())
        speed = f"{found['times_real_time']:.0f}" if result.status == "done" else "finished"
        name = Text(str(number) if _is_numbered(results) else printable(result.recording.name))  # as it is shown
        counts = f"{found['minutes']:.1f}", str(found["windows"]), str(found["no_decision"])
        table.add_row(name, *counts, Text(printable(shares)), speed)
    return table


def _is_numbered(results: Sequence[RecordingResult]) -> bool:
    """True if a name is too long for a table of 80 columns: then it stands under the table, whole."""
    return any(len(printable(result.recording.name)) > _NAME_WIDTH for result in results[:_MOST_ROWS])


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
