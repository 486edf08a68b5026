"""`zipbrain live`: an exported model on a stream, with alarms and a journal, without torch."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from zipbrain.cli.app import App
from zipbrain.cli.live_journal import evaluate, verify, write_example_rules
from zipbrain.cli.live_page import LiveGroup, page, served, wall
from zipbrain.cli.options import (
    AsJson,
    AuditSeed,
    AuditShare,
    ChannelNames,
    Check,
    Hop,
    Runtime,
    Threads,
    Units,
    edge_runtime,
    where_to_write,
    which_model,
)
from zipbrain.cli.predict import read_renaming
from zipbrain.cli.stopping import Stopped
from zipbrain.cli.terminal import Console, say
from zipbrain.errors import OptionError
from zipbrain.text import printable

if TYPE_CHECKING:
    from zipbrain.live.session import Session
    from zipbrain.live.session_state import SessionSummary
    from zipbrain.live.source import Source

app = App(cls=LiveGroup, invoke_without_command=True)
app.command()(verify)
app.command()(evaluate)
app.command()(page)
app.command()(wall)


@app.callback()
def live(
    context: typer.Context,
    model: Annotated[Path | None, which_model("what `zipbrain export` wrote")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="Where samples come from: lsl:NAME, lsl:type=EEG, replay:FILE or replay:FILE?speed=10 (or max)."
        ),
    ] = None,
    out: Annotated[Path, where_to_write("the session; a journal there is continued")] = Path("live"),
    demo: Annotated[bool, typer.Option("--demo", help="Made-up EEG with events, and the demo's model.")] = False,
    list_streams: Annotated[bool, typer.Option("--list", help="Show the streams that can be read, and leave.")] = False,
    hop: Hop = None,
    duration: Annotated[
        float | None, typer.Option(min=0, help="Seconds of the stream to run.", show_default="until it ends")
    ] = None,
    alarms: Annotated[Path | None, typer.Option(help="Rules of the alarms, a TOML file.")] = None,
    init_alarms: Annotated[
        Path | None, typer.Option(help="Write example rules for the model's classes to this file, and leave.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Kinds of files to write: csv, jsonl, edf, lsl, with commas, or none.")
    ] = "csv",
    causal: Annotated[
        bool,
        typer.Option(
            "--causal",
            help="Filter without the future: sooner, but other answers than predict's; see the guide on live.",
        ),
    ] = False,
    audit: AuditShare = None,
    audit_seed: AuditSeed = 0,
    threads: Threads = None,
    runtime: Runtime = "onnxruntime",
    units: Units = None,
    check: Check = True,
    rename: ChannelNames = None,
    name: Annotated[str, typer.Option(help="Name of the session: no patient's.", show_default="the folder's")] = "",
    retain: Annotated[
        float | None, typer.Option(min=0, help="Days after which signal files in the folder are removed, at the start.")
    ] = None,
    page_at: Annotated[
        str | None,
        typer.Option(
            "--page",
            metavar="[HOST:PORT]",
            help="Serve the page of the session too, at 127.0.0.1:8765 if no address follows; the demo opens it.",
        ),
    ] = None,
    board: Annotated[
        bool, typer.Option("--board/--no-board", help="Keep the last hour of signals in the folder, for the page.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Decide on a stream, window after window, with alarms.

    Shows a trend in the terminal and keeps a journal. Samples that are missing make a gap, never a decision. The
    journal keeps every decision and alarm in a hash chain. Not a medical device.

    Example: zipbrain live --model seizures.onnx --source lsl:type=EEG --out bed-3
    """
    if context.invoked_subcommand is not None:
        return
    if list_streams:
        _list(as_json)
        return
    if init_alarms is not None:
        if model is None:
            raise OptionError("--init-alarms", str(init_alarms), "give --model: the rules name its classes")
        write_example_rules(init_alarms, model, as_json)
        return
    if duration is not None:  # before a model is loaded and a page is served
        from zipbrain.live.limits import check_seconds

        check_seconds("duration", duration)
    given: dict[str, Any] = {"hop_s": hop, "is_causal": causal, "audit": audit, "audit_seed": audit_seed}
    given |= {"channels": read_renaming(rename), "name": name, "has_board": board, "retain": retain, "check": check}
    if demo:
        from zipbrain.cli.live_demo import open_demo

        _refuse_beside_demo(model, source)
        session = open_demo(
            out, alarms, outputs=_outputs(formats), threads=threads, runtime=edge_runtime(runtime), **given
        )
    else:
        from zipbrain.live.sources import open_source

        if model is None or source is None:
            option = "--model" if model is None else "--source"
            raise OptionError(option, None, "give --model and --source, or --demo, or --list (zipbrain live --help)")
        running: dict[str, Any] = {"threads": threads, "runtime": edge_runtime(runtime), "spinning": False}
        chosen = _outputs(formats)
        with ThreadPoolExecutor(
            1
        ) as pool:  # a stream is looked for while the model is loaded: a restart is sooner back
            opening = pool.submit(open_source, source, units=units, check=check)
            session = _open(model, running, opening, out, alarms, outputs=chosen, **given)
    with served(page_at, out, has_board=board, is_opened=demo, as_json=as_json):
        _run(session, out, duration, as_json)


def _open(
    model: Path, running: dict[str, Any], opening: Future[Source], out: Path, alarms: Path | None, **given: Any
) -> Session:
    from zipbrain.edge.model import EdgeModel
    from zipbrain.live.alarm_rules import AlarmRules
    from zipbrain.live.session import Session

    try:
        ready = EdgeModel(model, **running)
        rules = None if alarms is None else AlarmRules.read(alarms, ready.description.classes)
        return Session(ready, opening.result(), out, rules=rules, **given)
    except BaseException:
        if opening.exception() is None:
            opening.result().close()
        raise


def _outputs(names: str) -> Any:
    from zipbrain.live.outputs import choose_outputs

    return choose_outputs([name.strip() for name in names.split(",") if name.strip() not in ("", "none")])


def _refuse_beside_demo(model: Path | None, source: str | None) -> None:
    for option, value in (("--model", model), ("--source", source)):
        if value is not None:
            raise OptionError(option, str(value), "the demo has its own: leave it out, or leave out --demo")


def _run(session: Session, out: Path, duration: float | None, as_json: bool) -> None:
    from zipbrain.cli.live_view import choose_view

    console = Console(stderr=as_json, highlight=False)
    for note in session.notes:
        console.print(Text(f"note: {printable(note)}"), soft_wrap=True)
    try:
        with choose_view(as_json=as_json) as view:
            summary = session.run(duration, view)
    except KeyboardInterrupt:
        if session.summary is not None:
            _show(session.summary, out, as_json)
        words = f"what was decided is in {out}; the same command goes on in the same journal"
        raise Stopped(printable(words)) from None
    _show(summary, out, as_json)
    if summary.source == "failed":
        raise typer.Exit(1)


def _show(summary: SessionSummary, out: Path, as_json: bool) -> None:
    from zipbrain.files import encode_nan
    from zipbrain.live.chain import JOURNAL

    if as_json:
        print(json.dumps(encode_nan({"line": "summary", "out": str(out), **summary.to_dict()})), flush=True)
        return
    found = summary
    counts = f"{found.decided} windows decided, {found.undecided} not, {found.skipped} skipped"
    why = ", ".join(f"{count} {reason}" for reason, count in found.because.items())
    say(f"\n{found.stream_s:.0f} s of the stream in {found.seconds:.0f} s: {counts}{f' ({why})' if why else ''}")
    if found.looked_twice or found.looks_skipped:
        say(f"second looks: {found.looked_twice}, no time for {found.looks_skipped}")
    if found.audited or found.audits_skipped:
        say(f"audit: {found.agreeing} of {found.audited} agree uncompressed, no time for {found.audits_skipped}")
    raised = found.events.get("raised", 0)
    say(f"alarms raised: {raised}; decisions later than a hop: {found.late_decisions}")
    say(f"written  {out / JOURNAL}; zipbrain live verify {out} checks it")


def _list(as_json: bool) -> None:
    from zipbrain.live.sources import list_streams

    found = list_streams()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        say("no stream answers on this network (Lab Streaming Layer); files: --source replay:FILE")
        return
    table = Table(box=SIMPLE_HEAD)
    for column in ("source", "type", "channels", "Hz", "source_id", "host"):
        table.add_column(column, overflow="fold")
    for stream in found:
        cells = stream["source"], stream["type"], stream["channels"], f"{stream['rate']:g}"
        table.add_row(*(Text(printable(str(cell))) for cell in (*cells, stream["source_id"], stream["host"])))
    Console(highlight=False).print(table)
