"""`zipbrain compare`: methods and ratios on one checkpoint and one dataset, beside the paper's values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zipbrain.cli.loaders import (
    cpu_threads,
    need_torch,
    open_checkpoint,
    open_recipe,
    open_windows,
    say_if_unknown,
    say_notes,
    split_names,
)
from zipbrain.cli.options import (
    ALL_METHODS,
    Agree,
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Intervals,
    Limit,
    MassRows,
    Methods,
    OnnxTool,
    Ratios,
    Rounds,
    Setting,
    Split,
    Threads,
    TimeBudget,
    where_to_write,
    which_recipe,
)
from zipbrain.cli.output import show, write
from zipbrain.cli.program import command_line
from zipbrain.cli.progress import show_progress
from zipbrain.defaults import KEPT_AGREEMENT

_MASSES = {None: "both", True: "on", False: "off"}


def compare(
    context: typer.Context,
    checkpoint: Checkpoint,
    data: Data,
    methods: Methods = ALL_METHODS,
    ratios: Ratios = "0.2, 0.4, 0.6, 0.8, max",
    method_options: Setting = "auto",
    recipe: Annotated[Path | None, which_recipe("tune's in a row of its own, search's in ZIPBrain's row")] = None,
    mass: MassRows = None,
    split: Split = "test",
    intervals: Intervals = True,
    latency: Annotated[bool, typer.Option(help="Time every row beside the original and free slicing.")] = True,
    latency_batch: Annotated[int, typer.Option(min=1, help="Windows per timed call.")] = 8,
    rounds: Rounds = 10,
    time_budget: TimeBudget = 120.0,
    threads: Threads = None,
    agree: Agree = KEPT_AGREEMENT,
    onnx_tool: OnnxTool = False,
    out: Annotated[Path, where_to_write("results.jsonl and compare.csv, .md and .tex")] = Path("results"),
    batch_size: BatchSize = 128,
    device: Device = "auto",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Compare pooling methods on one model and its windows.

    Time, operations, scores, decisions that stay unchanged, true token counts. Tables are written as soon as all rows
    are scored, and again with times. What --out already holds of the same weights and windows is not computed again, so
    a stopped run goes on.

    Example: zipbrain compare runs/tuab --data tuab-labram --ratio 0.4,0.8,max --out results/tuab
    """
    need_torch()
    from zipbrain.evaluation.comparison import Comparison
    from zipbrain.evaluation.comparison import compare as run
    from zipbrain.evaluation.store import Store
    from zipbrain.training.checkpoints import note_unfinished

    written: list[Path] = []

    def write_tables(found: Comparison) -> None:
        written[:] = write(found, out, "compare")

    setting, tuned = open_recipe(recipe, method_options)
    with show_progress() as progress, cpu_threads(threads):
        model, name = open_checkpoint(checkpoint)
        windows = open_windows(data, model, name, split, limit, checkpoint)
        rows: dict[str, Any] = {"methods": split_names(methods), "ratios": split_names(ratios), "mass": _MASSES[mass]}
        timed: dict[str, Any] = {"latency": latency, "latency_batch": latency_batch, "latency_rounds": rounds}
        timed |= {"threads": threads, "time_budget": time_budget, "agree": agree}
        how: dict[str, Any] = {"intervals": intervals, "onnx_tool": onnx_tool, "batch_size": batch_size}
        place: dict[str, Any] = {"device": device, "checkpoint": str(checkpoint), "split": split}
        place |= {"store": Store(out), "setting": setting, "tuned": tuned}
        place |= {"progress": progress, "on_table": write_tables}
        found = run(model, windows, **rows, **timed, **how, **place)
    write_tables(found)
    show(found, as_json, written, go_on=command_line(context.obj) if found.untimed else "")
    say_if_unknown(model, data)
    say_notes(note_unfinished(checkpoint))
