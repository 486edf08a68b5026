"""`zipbrain search`: the best setting of ZIPBrain for a model on a corpus."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from zipbrain.cli.loaders import need_torch, split_names
from zipbrain.cli.options import AsJson, BatchSize, Checkpoint, Data, Device, Ratio, Scheduler
from zipbrain.cli.progress import show_progress
from zipbrain.cli.stopping import GOES_ON, Stopped, when_stopped
from zipbrain.cli.terminal import Console

if TYPE_CHECKING:
    from zipbrain.evaluation.result import Result
    from zipbrain.search import SearchResult


@when_stopped(f"results so far are in {{out}}; {GOES_ON}")
def search(
    checkpoint: Checkpoint,
    data: Data,
    ratio: Ratio = "max",
    mass: Annotated[
        bool, typer.Option("--mass/--no-mass", help="Whether tokens remember how many they stand for.")
    ] = False,
    select_on: Annotated[str, typer.Option(help="Split that decides: val, or test as in the paper.")] = "val",
    full: Annotated[bool, typer.Option("--full", help="All 3,773 settings instead of the two stages.")] = False,
    target: Annotated[
        str | None, typer.Option(help="'latency<=0.6', or a score such as 'kappa>=0.99x'; searches --ratios.")
    ] = None,
    ratios: Annotated[
        str | None, typer.Option(help="Ratios of a target, with commas.", show_default="0.2, 0.4, 0.6, 0.8, max")
    ] = None,
    backend: Annotated[str, typer.Option(help="loky (processes), threading, dask, ray or sequential.")] = "loky",
    workers: Annotated[
        int | None, typer.Option(min=1, help="At the same time.", show_default="one per free core, one on a GPU")
    ] = None,
    address: Scheduler = None,
    time_budget: Annotated[
        float, typer.Option(min=0.001, help="Seconds for timing the finalists of a target.")
    ] = 120.0,
    out: Annotated[Path, typer.Option(help="Folder of the results; known ones are not computed again.")] = Path(
        "results"
    ),
    device: Device = "auto",
    batch_size: BatchSize = 128,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many windows of a split, for a trial.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best setting of ZIPBrain: the paper's two stages, 27 pairs x 11 rho, then the 4 best x 6 z3.

    Every result is stored when it is there: a search that was stopped, however it was stopped, goes on with the same
    command. Writes ranking.csv, a heat map and recipe.json, which compress and compare take.

    [bold]Example:[/bold] zipbrain search runs/eegmat --data windows/eegmat --ratio max
    """
    need_torch()
    from zipbrain.search import SearchStopped
    from zipbrain.search import search as run

    several = None if ratios is None else split_names(ratios)
    try:
        with _quiet_dask() if backend == "dask" else nullcontext(), show_progress() as progress:
            what: dict[str, Any] = {"ratio": ratio, "mass": mass, "full": full, "target": target, "ratios": several}
            where: dict[str, Any] = {"backend": backend, "workers": workers, "address": address, "device": device}
            how: dict[str, Any] = {"select_on": select_on, "batch_size": batch_size, "limit": limit, "out": out}
            how["time_budget"] = time_budget
            result = run(checkpoint, data, **what, **where, **how, progress=progress)
    except SearchStopped as stop:
        _print(stop.partial, {}, as_json)
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise Stopped(str(stop).removeprefix("stopped: ")) from None
        raise
    _print(result, result.save(out / result.name), as_json)
    if result.winner is None:
        raise typer.Exit(1)


def _print(result: SearchResult, files: dict[str, Path], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict() | {"files": {name: str(path) for name, path in files.items()}}, indent=2))
    else:
        _show(Console(highlight=False), result, files)


def _show(console: Console, result: SearchResult, files: dict[str, Path]) -> None:
    from zipbrain.evaluation.tables import number

    task, metric = result.task, result.metric
    split = "validation" if result.select_on == "val" else result.select_on
    title = f"{task['model']} on {task['dataset']}, chosen on {split}: {task['windows']} windows"
    if not result.complete:
        title = f"PARTIAL, {len(result.ranking)} of {result.expected} results: {title}"
    timed = bool(result.latency)
    columns = ["rank", "z1", "z2", "z3", "rho", *["time"] * timed, "opera-\ntions", metric, "same answer"]
    columns += ["ratio asked", "truly removed", "tokens left"]
    table = RichTable(box=SIMPLE_HEAD, title=title)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if column not in ("z1", "z2", "z3") else "left")
    for row in result.rows():
        if row["rank"] > 10 and not row["winner"]:
            continue
        cells = [str(row["rank"]), row["z1"], row["z2"], row["z3"], f"{row['rho']:.1f}"]
        cells += ["" if row["latency"] is None else f"{row['latency']:.2f}"] * timed
        cells += [number(row["operations"], ".2f"), f"{row[metric]:.4f}", f"{row['agreement']:.1%}"]
        cells += [_ratio(row["ratio"]), f"{row['removed']:.1%}", str(row["tokens_left"])]
        table.add_row(*cells, style="bold green" if row["winner"] else None)
    console.print(table)
    for line in _lines(result):
        console.print(Text(line), soft_wrap=True)
    for remark in (*result.doubts, *result.remarks):
        console.print(Text(f"note: {remark}", style="yellow"), soft_wrap=True)
    for name, path in files.items():
        console.print(Text(f"{name:<12} {path}"), soft_wrap=True)


def _lines(result: SearchResult) -> list[str]:
    """What the table can't say."""
    metric = result.metric
    known = len(result.ranking)
    lines = [f"{known} of {result.expected} results, {result.evaluated} networks run now; the others were known."]
    lines.append(f"Uncompressed: {metric} {result.original.scores[metric]:.4f}.")
    if result.winner is not None:
        method = result.winner.point
        lines.append(f"Winner: ZIPBrain(z1={method.z1!r}, z2={method.z2!r}, z3={method.z3!r}, rho={method.rho}).")
        if result.target is not None:
            latency = result.latency[result.winner.result.key]
            lines.append(f"Target {result.target}: met, {latency:.2f} of the uncompressed time.")
    if result.select_on == "test":
        lines.append("Chosen on the test split, as in the paper: the score is that of a setting picked by its score.")
    if result.test is not None and result.test_original is not None:
        lines.append(
            f"On the test split, scored once: {metric} {_number(result.test, metric)}, "
            f"uncompressed {_number(result.test_original, metric)}, "
            f"the same decision in {result.test.agreement:.1%} of {result.test.task['windows']} windows."
        )
    return lines


def _number(result: Result, metric: str) -> str:
    return f"{result.value(metric):.4f}" if result.has(metric) else "undefined"


def _ratio(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _quiet_dask() -> AbstractContextManager[None]:
    """Silences Dask, which logs whole tracebacks of what one line says here."""
    import logging
    from contextlib import contextmanager

    @contextmanager
    def quiet() -> Any:
        loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application", "asyncio")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    return quiet()
