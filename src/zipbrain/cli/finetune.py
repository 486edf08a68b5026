"""`zipbrain finetune`: train one of the models on prepared or synthetic windows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from zipbrain.cli.any_model import ConventionFile, Weights, model_words, own_model
from zipbrain.cli.loaders import need_torch
from zipbrain.cli.options import AsJson, Data, Device, Limit, where_to_write, which_model
from zipbrain.cli.program import command_line
from zipbrain.cli.progress import ProgressDisplay, show_progress
from zipbrain.cli.stopping import AGAIN, Stopped, when_stopped
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError
from zipbrain.files import json_ready

if TYPE_CHECKING:
    from zipbrain.models import Build, LoadReport
    from zipbrain.training import Step
    from zipbrain.training.settings import TrainingSettings

_BY_SETTINGS = "the settings'"
_WHOSE = {
    "paper": "the paper's",
    "official": "the official script's (the paper trained nothing here)",
    "scratch": "ours, for random weights",
}


@when_stopped(f"no training was under way; {AGAIN}")
def finetune(
    model: Annotated[str, which_model("labram, eegpt, biot, tfm, cbramod, or file.py:build for one of your own")],
    data: Data,
    init: Annotated[
        list[Path] | None,
        typer.Option(help="Start from this: published weights such as labram-base, a folder or a file; repeatable."),
    ] = None,
    weights: Weights = None,
    convention_file: ConventionFile = None,
    settings: Annotated[
        str | None,
        typer.Option(
            help="Settings of the training: paper or scratch.", show_default="paper with --init, else scratch"
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs.", show_default=_BY_SETTINGS)] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch", "--batch-size", min=1, help="Windows per call: a step's.", show_default=_BY_SETTINGS),
    ] = None,
    lr: Annotated[float | None, typer.Option(min=0.0, help="Learning rate.", show_default=_BY_SETTINGS)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all draws.", show_default=_BY_SETTINGS)] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: weight_decay=0.01 and the like; repeatable.")
    ] = None,
    out: Annotated[Path | None, where_to_write("the run; runs/MODEL-DATA if not given")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    device: Device = "auto",
    cache: Annotated[str, typer.Option(help="Where windows wait: auto, device, memory or disk.")] = "auto",
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Windows per pass, if a batch does not fit.")] = None,
    capture: Annotated[
        bool | None,
        typer.Option("--capture/--no-capture", help="Steps as CUDA graphs.", show_default="where there is a GPU"),
    ] = None,
    limit: Limit = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Deterministic GPU algorithms.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on labelled windows.

    With the paper's settings or, from random weights, ours; every number can be overridden. Checkpoints are written
    after every epoch; a run that was stopped goes on with --resume.

    Example: zipbrain finetune --model labram --data tuab-labram --init labram-base --out runs/tuab
    """
    need_torch()
    from zipbrain import training
    from zipbrain.evaluation.reliability import doubts_of_training
    from zipbrain.training import checkpoints
    from zipbrain.training.settings import parse_settings
    from zipbrain.training.window_sources import WindowSource

    own = own_model(model, weights, convention_file)
    source = WindowSource(data, model if own is None else None, limit)
    folder = out if out is not None else Path("runs") / f"{_short(model)}-{Path(data).resolve().name}"
    with show_progress("opening windows"):
        windows, validation = source.split("train"), source.validation()
    named = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}
    chosen = _settings(folder if resume else None, own or model, windows, settings, bool(init))
    given = {name: value for name, value in named.items() if value is not None}
    chosen = chosen.override(**{**given, **parse_settings(changes or [])})

    with show_progress("starting") as shown:
        display = _Display(shown, quiet=as_json)
        try:
            result = training.finetune(
                own or model,
                windows,
                validation,
                settings=chosen,
                init=init or [],
                out=folder,
                resume=resume,
                device=device,
                cache=cache,
                micro_batch=micro_batch,
                capture="auto" if capture is None else capture,
                deterministic=deterministic,
                tensorboard=tensorboard,
                on_step=display.step,
                on_epoch=display.epoch,
                on_stage=display.stage,
                on_loaded=display.loaded,
            )
        except KeyboardInterrupt:
            if not (folder / checkpoints.RUN).exists():
                raise Stopped(f"the training had not begun, nothing was written; {AGAIN}") from None
            kept = f"the last checkpoint is in {folder}"
            raise Stopped(f"{kept}; the same command with --resume goes on") from None
    history = result.outcome.history
    notes = doubts_of_training(result.record, history[result.record["kept_epoch"] - 1])
    if as_json:
        written = folder / (checkpoints.MODEL if own is None else checkpoints.WEIGHTS)
        content = {"folder": str(folder), "model": str(written), **result.record}
        print(json.dumps(json_ready({**content, "history": history, "notes": notes}), indent=2))
    else:
        _show(result.record, history, folder, notes)
        kept_as = folder / "model" if own is None else replace(own, weights=folder / checkpoints.WEIGHTS)
        following = command_line(["evaluate", *model_words(kept_as), "--data", data, "--ratio", "0.8"])
        Console(highlight=False).print(f"Next: {following}", soft_wrap=True, markup=False)


def _short(model: str) -> str:
    """A name for the folder of a run: the model's, or that of the file or module that makes it."""
    return Path(model.rpartition(":")[0] or model).name.removesuffix(".py").rpartition(".")[2].lower()


def _settings(
    folder: Path | None, model: str | Build, windows: Any, name: str | None, started: bool
) -> TrainingSettings:
    """The settings of the run to resume, or those of the given name."""
    from zipbrain.training import TrainingSettings, checkpoints
    from zipbrain.training.model_setup import choose_settings

    if name not in (None, "paper", "scratch"):
        raise OptionError("--settings", name, "it must be 'paper' or 'scratch'")
    path = None if folder is None else folder / checkpoints.RUN
    if path is not None and path.exists() and name is None:
        try:
            return TrainingSettings.from_dict(json.loads(path.read_text())["recipe"])
        except (json.JSONDecodeError, KeyError, TypeError):
            pass  # finetune says what is wrong with the file
    return choose_settings(model, windows, name, started)


class _Display:
    """Where the training is, over all steps of a stage, and a line per epoch."""

    def __init__(self, shown: ProgressDisplay, quiet: bool) -> None:
        self.shown, self.console, self.quiet = shown, shown.console, quiet
        self.name, self.epochs = "", 0

    def stage(self, name: str, epochs: int) -> None:
        self.name, self.epochs = name, epochs
        self.shown(name, 0, 0)
        if epochs and not self.quiet:
            self.console.print(f"{name}, {epochs} epoch{'s' * (epochs > 1)}", style="bold")

    def loaded(self, report: LoadReport) -> None:
        if not self.quiet:
            self.console.print(str(report), soft_wrap=True, markup=False)

    def step(self, step: Step) -> None:
        done = (step.epoch - 1) * step.steps + step.step
        loss = "" if step.loss is None else f", loss {step.loss:.4f}"
        self.shown(f"{self.name}: epoch {step.epoch} of {self.epochs}{loss}", done, self.epochs * step.steps)

    def epoch(self, line: dict[str, Any]) -> None:
        if self.quiet:
            return
        scores = "  ".join(f"{name} {line[name]:.4f}" for name in line if name == "loss" or name.startswith("val_"))
        words = f"epoch {line['epoch']:3d}/{self.epochs}  {scores}  {line['seconds']:.1f} s"
        self.console.print(words, soft_wrap=True)


def _show(record: dict[str, Any], history: list[dict[str, Any]], folder: Path, notes: list[str]) -> None:
    settings, train = record["recipe"], record["train"]
    kept = history[record["kept_epoch"] - 1]
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_row("model", f"{settings['model']}, {record['parameters'] / 1e6:.1f} M parameters")
    origin = ", ".join(record["init"]) or "random weights"
    table.add_row("started from", origin)
    changes = f"; changed: {', '.join(settings['changed'])}" if settings["changed"] else ""
    table.add_row("settings", f"{_WHOSE[record['settings']]}{changes}")
    table.add_row("windows", f"{train['name']}: {train['windows']} of {train['subjects']} subjects, {_classes(train)}")
    early = ", stopped early" if record["stopped_early"] else ""
    table.add_row(
        "epochs", f"{record['epochs_run']} of {settings['epochs']}{early}, {record['seconds_per_epoch']:.1f} s each"
    )
    why = "the last" if record["selected_by"] is None else f"the best {record['selected_by']}"
    scores = ", ".join(f"{name} {value:.4f}" for name, value in kept.items() if name.startswith("val_"))
    table.add_row("kept", f"epoch {record['kept_epoch']}, {why}" + (f": {scores}" if scores else ""))
    captured = ", steps captured" if record["capture"] == "yes" else ""
    table.add_row("computed on", f"{record['device']}, {record['precision']}{captured}")
    table.add_row("written to", str(folder))
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)


def _classes(train: dict[str, Any]) -> str:
    return " ".join(f"{name} {count}" for name, count in zip(train["classes"], train["counts"], strict=True))
