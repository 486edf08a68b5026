"""`zipbrain ablate`: the paper's ablation of ZIPBrain on one checkpoint and one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zipbrain.cli.loaders import cpu_threads, need_torch, open_checkpoint, open_setting, open_windows
from zipbrain.cli.options import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Intervals,
    Limit,
    Ratio,
    Setting,
    Split,
    where_to_write,
    which_recipe,
)
from zipbrain.cli.output import show, write
from zipbrain.cli.progress import show_progress


def ablate(
    checkpoint: Checkpoint,
    data: Data,
    ratio: Ratio = "max",
    method_options: Setting = "auto",
    recipe: Annotated[Path | None, which_recipe("search's, to take apart")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each random variant.")] = 10,
    split: Split = "test",
    intervals: Intervals = True,
    out: Annotated[Path, where_to_write("results.jsonl and ablate.csv, .md and .tex")] = Path("results"),
    batch_size: BatchSize = 128,
    device: Device = "auto",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Take ZIPBrain apart: what does each of its parts bring?

    Random grouping, random matching, simple merge, pruning, pivots as regular tokens. What --out already holds of the
    same weights and windows is not computed again, so a stopped run goes on.

    Example: zipbrain ablate runs/tuab --data tuab-labram --ratio 0.8 --seeds 10 --out results/tuab
    """
    need_torch()
    from zipbrain.evaluation.ablation import ablate as run
    from zipbrain.evaluation.options import read_ratio
    from zipbrain.evaluation.store import Store

    share = read_ratio(ratio, "--ratio")
    setting = open_setting(recipe, method_options)
    with show_progress() as progress, cpu_threads(None):
        model, name = open_checkpoint(checkpoint)
        windows = open_windows(data, model, name, split, limit, checkpoint)
        what: dict[str, Any] = {"ratio": share, "setting": setting, "seeds": seeds, "intervals": intervals}
        place: dict[str, Any] = {"device": device, "batch_size": batch_size, "checkpoint": str(checkpoint)}
        found = run(model, windows, store=Store(out), split=split, progress=progress, **what, **place)
    show(found, as_json, write(found, out, "ablate"))
