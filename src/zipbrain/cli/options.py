"""Options that several commands take, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zipbrain.paper import COMPARED

ALL_METHODS = ", ".join(COMPARED)  # with blanks, at which a narrow help page can break it

Agree = Annotated[
    float, typer.Option(help="Share of the answers that must stay, for the recommendation.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Windows per call.")]
Checkpoint = Annotated[Path, typer.Argument(help="Folder of a run of finetune, or of a saved model.")]
Data = Annotated[str, typer.Option(help="Folder of `zipbrain data prepare`, synthetic-events or synthetic-sleep.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Intervals = Annotated[bool, typer.Option(help="95 % bootstrap intervals over subjects.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many windows, for a trial.")]
Methods = Annotated[str, typer.Option(help="Names with commas between.")]
Ratio = Annotated[str, typer.Option(help="Share of the tokens to remove, such as 0.8, or max.")]
Ratios = Annotated[
    str, typer.Option("--ratios", "--ratio", help="Shares of the tokens to remove, with commas between, or max.")
]
Scheduler = Annotated[str | None, typer.Option(help="A cluster's scheduler, such as tcp://10.0.0.5:8786.")]
Setting = Annotated[
    str, typer.Option(help="ZIPBrain's setting: paper, default, or auto: the paper's where it has the pair.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads.", show_default="as many as cores are free")
]
TimeBudget = Annotated[
    float, typer.Option(min=0.001, help="Seconds that timing may take; the same command again goes on from there.")
]
Split = Annotated[str, typer.Option(help="train, val or test.")]
