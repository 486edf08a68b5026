"""`zipbrain tune`: the fastest recipe that keeps a model's answers, with a certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipbrain.cli.any_model import model_words
from zipbrain.cli.loaders import need_torch, open_checkpoint, open_windows, say_notes, split_names
from zipbrain.cli.options import (
    Agree,
    AsJson,
    Backend,
    BatchSize,
    Checkpoint,
    Data,
    Limit,
    Methods,
    Scheduler,
    Threads,
    how_many_at_once,
    where_to_write,
    which_runtime,
)
from zipbrain.cli.program import command_line
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.defaults import PROMISED_AGREEMENT, TUNED_METHODS
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.tuning import Tuned

_METHODS = ",".join(TUNED_METHODS)
_PICTURE = "options.png"


def tune(
    checkpoint: Checkpoint,
    data: Data,
    agree: Agree = PROMISED_AGREEMENT,
    time: Annotated[
        float | None, typer.Option(help="Instead of --agree: share of the original's time that it may take.")
    ] = None,
    runtime: Annotated[str, which_runtime("torch, onnxruntime (ort) or openvino")] = "torch",
    batch: BatchSize = 1,
    split: Annotated[str, typer.Option(help="Part of the data: val, never windows of training or test.")] = "val",
    people: Annotated[
        int | None, typer.Option(min=4, help="So many new made-up people of a synthetic corpus, instead of a split.")
    ] = None,
    methods: Methods = _METHODS,
    thresholds: Annotated[
        str, typer.Option(help="Probabilities at which alarms are raised, with commas between.")
    ] = "0.5",
    backend: Backend = "loky",
    workers: Annotated[int | None, how_many_at_once("candidates", "one per free core")] = None,
    scheduler: Scheduler = None,
    out: Annotated[Path, where_to_write("the recipe; what is known there is not computed again")] = Path("tuned"),
    threads: Threads = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest recipe that keeps the decisions.

    "As fast as it can be, with 99 % of the decisions unchanged." Takes windows without labels. Half of the people
    choose method, tokens per block and second look (windows in doubt run again uncompressed); the other half is counted
    once, and what that proves is promised. Writes recipe.json, which compress, evaluate, compare and export take.

    Example: zipbrain tune runs/eegmat --data windows/eegmat --agree 0.99 --runtime ort --out tuned
    """
    need_torch()
    from zipbrain.evaluation.plots.tuning import plot_options
    from zipbrain.files import json_ready
    from zipbrain.training.checkpoints import note_unfinished
    from zipbrain.tuning import tune as run

    levels = [_number(word) for word in split_names(thresholds)]
    with show_progress() as progress:
        model, name = open_checkpoint(checkpoint)
        windows = _windows(data, model, name, split, limit, people, checkpoint)
        where: dict[str, Any] = {"backend": backend, "workers": workers, "address": scheduler, "threads": threads}
        what: dict[str, Any] = {
            "agree": agree,
            "time": time,
            "runtime": "ort" if runtime == "onnxruntime" else runtime,
            "batch": batch,
            "out": out,
        }
        what |= {"methods": split_names(methods), "thresholds": levels, "progress": progress}
        tuned = run(model, windows, **what, **where)
        files = tuned.save(out)
        picture = plot_options(tuned)
        picture.savefig(out / _PICTURE, dpi=150)
        files.append(out / _PICTURE)
    say_notes(note_unfinished(checkpoint))
    if as_json:
        print(json.dumps(json_ready({**tuned.to_dict(), "files": [str(path) for path in files]}), indent=2))
    else:
        _show(tuned, files, checkpoint, data)


def _show(tuned: Tuned, files: list[Path], checkpoint: Path, data: str) -> None:
    console = Console(highlight=False)
    first, *others = str(tuned).splitlines()
    console.print(first, style="bold green" if tuned.is_kept else "bold yellow", markup=False, soft_wrap=True)
    for line in others:
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    for path in files:
        console.print(f"{path.name:<13} {path}", markup=False, soft_wrap=True)
    if not tuned.chosen.removes:
        return
    recipe = str(files[0])
    words = ["export", *model_words(checkpoint), "--data", data, "--recipe", recipe, "-o", "model.onnx"]
    console.print(f"\nNext:\n  {command_line(words)}", markup=False, soft_wrap=True)


def _windows(
    data: str,
    model: nn.Module,
    name: str,
    split: str,
    limit: int | None,
    people: int | None,
    checkpoint: Path,
) -> Windows:
    """The windows to tune on."""
    from zipbrain.evaluation.trial import check_fit
    from zipbrain.training.window_sources import SYNTHETIC, new_people

    if split != "val":
        why = {"test": "test windows are for a test, not for a choice", "train": "a model is surer of those it learned"}
        raise OptionError("--split", split, f"{why.get(split, 'there is no such split')}: take val")
    if people is None:
        return open_windows(data, model, name, split, limit, checkpoint)
    if data not in SYNTHETIC:
        raise OptionError("--people", people, f"only {' and '.join(SYNTHETIC)} can make people")
    return check_fit(model, new_people(data, name, people, limit))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise OptionError("--thresholds", word, "it must be numbers between 0 and 1, with commas between") from None
