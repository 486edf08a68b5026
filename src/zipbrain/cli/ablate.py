"""`zipbrain ablate`: the paper's ablation of ZIPBrain on one checkpoint and one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zipbrain.cli.loaders import need_torch, open_checkpoint, open_setting, open_windows
from zipbrain.cli.output import show, steps, write


def ablate(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a run of finetune, or of a saved model.")],
    data: Annotated[str, typer.Option(help="Folder of `zipbrain data prepare`, synthetic-events or synthetic-sleep.")],
    ratio: Annotated[str, typer.Option(help="Share of the tokens to remove, such as 0.8, or max.")] = "max",
    method_options: Annotated[
        str, typer.Option(help="ZIPBrain's setting: paper, default, or auto: the paper's where it has the pair.")
    ] = "auto",
    recipe: Annotated[Path | None, typer.Option(help="A recipe of the search, to take apart.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each random variant.")] = 10,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    intervals: Annotated[bool, typer.Option(help="95 % bootstrap intervals over subjects.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for results.jsonl and ablate.csv, .md and .tex.")] = Path("results"),
    batch_size: Annotated[int, typer.Option(min=1, help="Windows per call.")] = 128,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many windows, for a trial.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")] = False,
) -> None:
    """Take ZIPBrain apart: random grouping, random matching, simple merge, pruning, pivots as regular tokens.

    What --out already holds of the same weights and windows is not computed again, so a stopped run goes on.

    [bold]Example:[/bold] zipbrain ablate runs/tuab --data tuab-labram --ratio 0.8 --seeds 10 --out results/tuab
    """
    need_torch("ablate")
    from zipbrain.evaluation.ablation import ablate as run
    from zipbrain.evaluation.store import Store

    setting = open_setting(recipe, method_options)
    model, name = open_checkpoint(checkpoint)
    windows = open_windows(data, model, name, split, limit, checkpoint)
    with steps(as_json) as progress:
        what: dict[str, Any] = {"ratio": ratio, "setting": setting, "seeds": seeds, "intervals": intervals}
        place: dict[str, Any] = {"device": device, "batch_size": batch_size, "checkpoint": str(checkpoint)}
        found = run(model, windows, store=Store(out), split=split, progress=progress, **what, **place)
    show(found, as_json, write(found, out, "ablate"))
