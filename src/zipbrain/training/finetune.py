"""`finetune`: windows and settings -> a trained classifier, its folder and its record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.channels import check_channels
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.files import lock_folder
from zipbrain.metrics import main_metric, score
from zipbrain.models import TFM, Build, LoadReport, Task, remember
from zipbrain.pretrained import save_pretrained, save_weights
from zipbrain.training import checkpoints
from zipbrain.training.captured_steps import Choice, check_choice
from zipbrain.training.checkpoints import TrainingFailed
from zipbrain.training.inference import predict
from zipbrain.training.loader import Feed, check_windows, pick_device, scaling_for, scaling_of
from zipbrain.training.loop import Loss, Step, TrainingResult, train
from zipbrain.training.model_setup import build_model, choose_settings, initialise, open_foreign
from zipbrain.training.run_record import can_go_on, new_record
from zipbrain.training.settings import TrainingSettings
from zipbrain.training.tfm import Callbacks, pretrain
from zipbrain.weights import fingerprint

log = logging.getLogger("zipbrain")


@dataclass
class Finetuned:
    """A trained classifier.

    Attributes
    ----------
    model : nn.Module
        With the weights of the chosen epoch, in evaluation mode.
    settings : TrainingSettings
        What was run.
    outcome : TrainingResult
        What happened, epoch by epoch.
    record : dict
        What ``run.json`` holds.
    folder : Path or None
        Where it lies; ``folder / "model"`` is for `from_pretrained`, ``folder / "weights.safetensors"`` of a foreign
        model for `zipbrain.models.Build`.
    """

    model: nn.Module
    settings: TrainingSettings
    outcome: TrainingResult
    record: dict[str, Any]
    folder: Path | None


def finetune(
    model: str | Build,
    windows: Windows,
    validation: Windows | None = None,
    *,
    settings: TrainingSettings | str | None = None,
    init: Sequence[str | Path] = (),
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    cache: str = "auto",
    micro_batch: int | None = None,
    scaling: str | None = None,
    capture: Choice = "auto",
    deterministic: bool = False,
    tensorboard: bool = False,
    on_step: Callable[[Step], object] | None = None,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    on_stage: Callable[[str, int], object] | None = None,
    on_loaded: Callable[[LoadReport], object] | None = None,
) -> Finetuned:
    """Train a classifier on labelled windows.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm", "cbramod"} or Build
        Any spelling of the paper's; or where a foreign model comes from, with the weights it starts with.
    windows, validation : Windows
        Training split, and the split by which an epoch is chosen; without it the last epoch is kept.
    settings : TrainingSettings, {"paper", "scratch"}, optional
        "paper" if `init` is given and "scratch" if not, unless said otherwise.
    init : sequence of path or str
        Checkpoints to start from, such as ``"labram-base"``: see `zipbrain.training.initialise`. A `Build` has its own.
    out : path, optional
        Folder for checkpoints, log, record and the trained model; nothing is written if not given.
    resume : bool
        Go on with the run in `out`, with the same settings and windows.
    device : str or torch.device
        "auto" is the GPU if there is one.
    cache : {"auto", "device", "memory", "disk"}
        Where scaled windows wait.
    micro_batch : int, optional
        Windows per forward and backward pass, where a batch does not fit.
    scaling : str, optional
        See `zipbrain.data.scale`; that of the prepared folder, or the model's own for this corpus, if not given.
    capture : {"auto", True, False}
        Capture training steps in CUDA graphs where that can be done, with the same result; True warns where not. The
        record says which it was and why. Pretraining of TFM-Tokenizer is never captured.
    deterministic, tensorboard, on_step, on_epoch
        See `zipbrain.training.train`.
    on_stage : callable (name, epochs), optional
        Told what begins: "reading windows" (no epochs), "token learning", "masked tokens", "fine-tuning".
    on_loaded : callable (LoadReport), optional
        Told what became of every tensor, where there is something to start from.

    Returns
    -------
    finetuned : Finetuned
    """
    check_choice(capture)
    check_windows("windows", windows)
    if validation is not None:
        check_windows("validation", validation)
    chosen = choose_settings(model, windows, settings, bool(init))
    where, folder = pick_device(device), None if out is None else Path(out)
    network: nn.Module | None = None
    if isinstance(model, Build):
        if init:
            raise OptionError("init", str(init[0]), f"{model} starts from its own weights: give them with --checkpoint")
        with _seeded(chosen.seed, where):
            network, chosen, windows = open_foreign(model, chosen, windows)
    amount = scaling
    if amount is None:
        amount = scaling_of(chosen.model, windows) if network is None else scaling_for(network, windows)
    validation = None if validation is None else validation.reorder(windows.classes)
    _check_splits(windows, validation)
    sources = [str(model.weights)] if isinstance(model, Build) and model.weights is not None else init
    record = new_record(chosen, windows, validation, sources, where, amount)
    going_on = can_go_on(folder, resume, record)
    if chosen.origin != "scratch" and not init and not going_on:
        log.warning("%s: the paper's settings are for a pretrained model, but no checkpoint was given", chosen.model)

    is_foreign = network is not None
    if network is None:
        with _seeded(chosen.seed, where):
            network = build_model(chosen, windows)
    task = Task(windows.classes, windows.name, windows.ch_names, windows.sfreq, amount, windows.filters)
    remember(network, task)
    if not going_on and is_foreign:
        record["init_report"] = []
    elif not going_on:
        report = initialise(network, init)
        record["init_report"] = [str(report).splitlines()] if init else []
        if init and on_loaded is not None:
            on_loaded(report)
    callbacks = Callbacks(on_step, on_epoch, on_stage)
    callbacks.begin("reading windows", 0)
    network.to(where)
    feed = Feed(windows, amount, where, cache)
    evaluate = None
    names: dict[str, str | None] = {}
    if validation is not None:
        evaluate = _evaluation(Feed(validation, amount, where, cache), chosen, micro_batch or chosen.batch_size)
        names = {"accuracy": "val_accuracy", "main": f"val_{main_metric(len(windows.classes))}"}
    elif chosen.selection != "last" or chosen.patience is not None:
        log.warning("no validation windows: the last epoch is kept")
    with _alone_in(folder):
        if can_go_on(folder, resume, record) != going_on:
            raise TrainingFailed(f"{folder}: another run was written there meanwhile; name a new folder")
        if folder is not None and not going_on:
            with checkpoints.writing(folder, "make room there and run again"):
                checkpoints.write_json(folder / checkpoints.RUN, record)
        if isinstance(network, TFM) and chosen.pretrain_steps and not init and not going_on:
            home = None if folder is None else folder / "pretraining"
            pretrain(network, feed, chosen.pretrain_steps, home, resume, micro_batch, callbacks)
        callbacks.begin("fine-tuning", chosen.epochs)
        choice = {"select_by": names.get(chosen.selection), "stop_by": names.get(chosen.stop_metric)}
        run: dict[str, Any] = {"evaluate": evaluate, **choice, "folder": folder, "resume": going_on}
        run |= {"micro_batch": micro_batch, "capture": capture, "deterministic": deterministic}
        run |= {"tensorboard": tensorboard, "on_step": on_step, "on_epoch": on_epoch}
        run["keep"] = None if folder is None else lambda: _keep(network, folder, is_foreign)
        outcome = train(network, feed, chosen, classification_loss(chosen, len(windows.classes)), **run)
        record |= outcome.summary() | {
            "selected_by": names.get(chosen.selection),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "batch_size": min(chosen.batch_size, len(windows)),
            "weights_sha256": fingerprint(checkpoints.weights_of(network)),
        }
        if folder is not None:
            with checkpoints.writing(folder):
                checkpoints.write_json(folder / checkpoints.RUN, record)
    return Finetuned(network, chosen, outcome, record, folder)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random weights from a seed, and leave the generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _alone_in(folder: Path | None) -> Iterator[None]:
    """Make the folder and keep other processes out of it."""
    if folder is None:
        yield
        return
    with checkpoints.writing(folder, "name a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, TrainingFailed(f"{folder}: another process is training there; wait for it to end")):
        yield


def _keep(network: nn.Module, folder: Path, is_foreign: bool) -> None:
    with checkpoints.writing(folder):
        if is_foreign:
            save_weights(network, folder / checkpoints.WEIGHTS)
        else:
            save_pretrained(network, folder / checkpoints.MODEL)


def classification_loss(settings: TrainingSettings, classes: int) -> Loss:
    """Binary cross-entropy on one logit, or cross-entropy with the smoothing of the settings for more classes."""
    if classes == 2 and settings.binary_loss == "bce":
        return lambda model, x, y: F.binary_cross_entropy_with_logits(model(x)[:, 0].float(), y.float())
    smoothing = settings.label_smoothing if classes > 2 else 0.0
    return lambda model, x, y: F.cross_entropy(model(x).float(), y, label_smoothing=smoothing)


def _evaluation(feed: Feed, settings: TrainingSettings, batch: int) -> Callable[[nn.Module], dict[str, float]]:
    """Loss (without smoothing), accuracy and main metric of a split."""
    labels, metric = feed.windows.labels, main_metric(len(feed.windows.classes))

    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = predict(model, feed, batch_size=batch, amp=settings.amp)
        wrong = np.flatnonzero(~np.isfinite(logits).all(1))
        if len(wrong):
            has_nan = not np.isfinite(feed.windows.take(wrong[:1])).all()
            advice = "leave out windows with NaN" if has_nan else "lower lr"
            found = f"{len(wrong)} of {len(logits)} validation windows (the first is {wrong[0]})"
            raise TrainingFailed(f"no epoch can be chosen by {found}, whose logits are NaN or infinite: {advice}")
        return {
            "val_loss": float(_plain_loss(torch.from_numpy(logits), torch.from_numpy(labels))),
            "val_accuracy": score(logits, labels, "accuracy"),
            f"val_{metric}": score(logits, labels, metric),
        }

    return evaluate


def _plain_loss(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
    return F.cross_entropy(logits, labels)


def _check_splits(windows: Windows, validation: Windows | None) -> None:
    """Refuse a validation split of another kind, and labels that are no class."""
    for what in ("classes", "sfreq", "n_times"):
        if validation is not None and getattr(validation, what) != getattr(windows, what):
            allowed = f"the training windows have {getattr(windows, what)}"
            raise OptionError(f"{what} of validation", getattr(validation, what), allowed)
    if validation is not None:
        check_channels("validation", validation.ch_names, windows.ch_names, "the training windows have")
    for split in (windows, validation):
        if split is None or not len(split):
            continue
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= len(split.classes):
            raise OptionError("labels", f"{low} to {high}", f"they must be 0 to {len(split.classes) - 1}")
