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
from zipbrain.cli.options import (
    SHARE_TO_REMOVE,
    AsJson,
    Backend,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Limit,
    Mass,
    Scheduler,
    TimeBudget,
    how_many_at_once,
    where_to_write,
)
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
    ratio: Annotated[
        str | None,
        typer.Option(
            "--ratio",
            "--ratios",
            help=f"{SHARE_TO_REMOVE}; with --target several with commas between.",
            show_default="max; with --target 0.2, 0.4, 0.6, 0.8, max",
        ),
    ] = None,
    mass: Mass = False,
    split: Annotated[str, typer.Option(help="Part of the data: val decides, or test as in the paper.")] = "val",
    full: Annotated[bool, typer.Option("--full", help="All 3,773 settings instead of the two stages.")] = False,
    target: Annotated[
        str | None, typer.Option(help="What must be reached: 'latency<=0.6', or a score such as 'kappa>=0.99x'.")
    ] = None,
    backend: Backend = "loky",
    workers: Annotated[int | None, how_many_at_once("settings", "one per free core, one on a GPU")] = None,
    scheduler: Scheduler = None,
    time_budget: TimeBudget = 120.0,
    out: Annotated[Path, where_to_write("the results; known ones are not computed again")] = Path("results"),
    device: Device = "auto",
    batch_size: BatchSize = 128,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Find the best setting of ZIPBrain by its score.

    In the paper's two stages: 27 pairs of z1 and z2 by 11 rho, then the 4 best by 6 z3. Every result is stored when it
    is there: a search that was stopped, however it was stopped, goes on with the same command. Writes ranking.csv, a
    heat map and recipe.json, which compress and compare take.

    Example: zipbrain search runs/eegmat --data windows/eegmat --ratio max
    """
    need_torch()
    from zipbrain.search import SearchStopped
    from zipbrain.search import search as run

    several = None if ratio is None or target is None else split_names(ratio)
    one = ratio if ratio is not None and target is None else "max"
    try:
        with _quiet_dask() if backend == "dask" else nullcontext(), show_progress() as progress:
            what: dict[str, Any] = {"ratio": one, "mass": mass, "full": full, "target": target, "ratios": several}
            where: dict[str, Any] = {"backend": backend, "workers": workers, "address": scheduler, "device": device}
            how: dict[str, Any] = {"select_on": split, "batch_size": batch_size, "limit": limit, "out": out}
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
    from zipbrain.evaluation.wording import (
        OPERATIONS,
        TIMES_AS_FAST,
        UNCHANGED,
        operations_text,
        share_text,
        speed_text,
    )

    task, metric = result.task, result.metric
    split = "validation" if result.select_on == "val" else result.select_on
    title = f"{task['model']} on {task['dataset']}, chosen on {split}: {task['windows']} windows"
    if not result.complete:
        title = f"PARTIAL, {len(result.ranking)} of {result.expected} results: {title}"
    timed = bool(result.latency)
    columns = ["rank", "z1", "z2", "z3", "rho", *[TIMES_AS_FAST] * timed, OPERATIONS, metric, UNCHANGED]
    columns += ["ratio\nasked", "truly\nremoved", "tokens\nleft"]
    table = RichTable(box=SIMPLE_HEAD, title=title)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if column not in ("z1", "z2", "z3") else "left")
    for row in result.rows():
        if row["rank"] > 10 and not row["winner"]:
            continue
        cells = [str(row["rank"]), row["z1"], row["z2"], row["z3"], f"{row['rho']:.1f}"]
        cells += ["" if row["latency"] is None else speed_text(row["latency"])] * timed
        cells += [operations_text(row["operations"]), f"{row[metric]:.4f}", share_text(row["agreement"])]
        cells += [_ratio(row["ratio"]), share_text(row["removed"]), str(row["tokens_left"])]
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
            lines.append(f"Target {result.target}: met, {1 / latency:.2f} times as fast as uncompressed.")
    if result.select_on == "test":
        lines.append("Chosen on the test split, as in the paper: the score is that of a setting picked by its score.")
    if result.test is not None and result.test_original is not None:
        lines.append(
            f"On the test split, scored once: {metric} {_number(result.test, metric)}, "
            f"uncompressed {_number(result.test_original, metric)}, "
            f"{100 * result.test.agreement:.1f} % of the decisions unchanged in {result.test.task['windows']} windows."
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
