"""Options that several commands take: what a help text says before its first colon is the meaning of the name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zipbrain.paper import COMPARED

ALL_METHODS = ", ".join(COMPARED)  # with blanks, at which a narrow help page can break it

SHARE_TO_REMOVE = "Share of the tokens to remove: such as 0.8, or max"
_METHOD = "How to pool"


def where_to_write(what: str) -> Any:
    """The option ``--out`` of a command that writes `what`."""
    return typer.Option("--out", "-o", help=f"Where to write: {what}.")


def which_model(what: str) -> Any:
    """The option ``--model`` of a command that takes it in the form `what`."""
    return typer.Option("--model", help=f"The model: {what}.")


def which_mirror(variable: str) -> Any:
    """The option ``--base-url`` of a command that also reads `variable` from the environment."""
    words = f"Root of a mirror: else what the environment variable {variable} says."
    return typer.Option(help=words, show_default="the publisher")


def which_recipe(what: str) -> Any:
    """The option ``--recipe`` of a command that does `what` with it."""
    return typer.Option("--recipe", help=f"A recipe of tune or search: {what}.")


def how_many_at_once(what: str, default: str | bool = True, most: int | None = None) -> Any:
    """The option ``--workers`` of a command that does `what` at the same time."""
    words = f"How many at the same time: {what}."
    return typer.Option("--workers", "--jobs", min=1, max=most, help=words, show_default=default)


def how_to_pool(what: str) -> Any:
    """The option ``--method`` of a command."""
    return typer.Option("--method", "--methods", help=f"{_METHOD}: {what}.")


def which_runtime(what: str) -> Any:
    """The option ``--runtime`` of a command."""
    return typer.Option("--runtime", "--runtimes", help=f"What runs the model: {what}.")


def edge_runtime(name: str) -> str:
    """A runtime's name in `zipbrain.edge`: ``ort`` is ``onnxruntime`` there."""
    return "onnxruntime" if name == "ort" else name


Agree = Annotated[float, typer.Option(help="Share of the decisions that must stay unchanged.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")]
AuditShare = Annotated[float | None, typer.Option(help="Share of the windows to run again uncompressed: such as 0.01.")]
AuditSeed = Annotated[int, typer.Option(min=0, help="Seed of the draw of the audited windows.")]
Backend = Annotated[
    str, typer.Option(help="How work is shared out: loky (processes), threading, dask, ray, sequential.")
]
BatchSize = Annotated[int, typer.Option("--batch", "--batch-size", min=1, help="Windows per call.")]
ChannelNames = Annotated[
    str | None, typer.Option("--rename", help="Electrodes under other names in the source: 'C3=EEG 1,C4=EEG 2'.")
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse amplitudes that are no EEG.")]
Checkpoint = Annotated[Path, typer.Argument(help="Folder of a run of finetune, or of a saved model.")]
Data = Annotated[str, typer.Option(help="Folder of `zipbrain data prepare`, synthetic-events or synthetic-sleep.")]
DataIfAny = Annotated[
    str | None, typer.Option(help="Folder of `zipbrain data prepare`, synthetic-events or synthetic-sleep.")
]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, ...")]
Hop = Annotated[float | None, typer.Option(help="Seconds from one window to the next.", show_default="the model's")]
Intervals = Annotated[bool, typer.Option(help="95 % bootstrap intervals over subjects.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many windows.", show_default="all")]
Mass = Annotated[
    bool,
    typer.Option("--mass/--no-mass", help="Merged tokens count as many as they stand for."),
]
MassRows = Annotated[
    bool | None,
    typer.Option(
        "--mass/--no-mass", help="Merged tokens count as many as they stand for.", show_default="rows of both"
    ),
]
Method = Annotated[str, how_to_pool(f"{ALL_METHODS}, or paper: the paper's setting for this corpus")]
Methods = Annotated[str, how_to_pool("names with commas between")]
OnnxTool = Annotated[
    bool, typer.Option("--onnx-tool/--no-onnx-tool", help="Count FLOPs of exported graphs too, with zipbrain[export].")
]
Ratio = Annotated[str, typer.Option("--ratio", "--ratios", help=f"{SHARE_TO_REMOVE}.")]
RatioIfAny = Annotated[str | None, typer.Option("--ratio", "--ratios", help=f"{SHARE_TO_REMOVE}.")]
Ratios = Annotated[str, typer.Option("--ratio", "--ratios", help=f"{SHARE_TO_REMOVE}; several with commas between.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed calls of every row.")]
Runtime = Annotated[str, which_runtime("onnxruntime (ort) or openvino")]
Scheduler = Annotated[str | None, typer.Option("--scheduler", help="A cluster's scheduler: tcp://10.0.0.5:8786.")]
Setting = Annotated[
    str, typer.Option(help="ZIPBrain's setting: paper, default, or auto (the paper's where it has the pair).")
]
Split = Annotated[str, typer.Option(help="Part of the data: train, val or test.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads.", show_default="as many as cores are free")
]
TimeBudget = Annotated[float, typer.Option(min=0.001, help="Seconds that timing may take.")]
Units = Annotated[
    str | None,
    typer.Option(help="Unit of the numbers: nV, uV, mV or V.", show_default="the header's"),
]
