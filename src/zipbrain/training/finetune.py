"""`finetune`: windows and a recipe -> a trained classifier, its folder and its record."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain import __version__
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.files import json_ready, lock_folder
from zipbrain.models import TFM, Task, remember
from zipbrain.pretrained import save_pretrained
from zipbrain.training import checkpoints
from zipbrain.training.checkpoints import TrainingFailed
from zipbrain.training.cuda_graphs import Choice, check_choice
from zipbrain.training.inference import predict
from zipbrain.training.loader import Feed, pick_device, scaling_of
from zipbrain.training.loop import Loss, Outcome, Step, train
from zipbrain.training.model_setup import build_model, choose_recipe, initialise
from zipbrain.training.scoring import main_metric, score
from zipbrain.training.settings import TrainingRecipe
from zipbrain.training.tfm import pretrain

log = logging.getLogger("zipbrain")


@dataclass
class Finetuned:
    """A trained classifier.

    Attributes
    ----------
    model : nn.Module
        With the weights of the chosen epoch, in evaluation mode.
    recipe : TrainingRecipe
        What was run.
    outcome : Outcome
        What happened, epoch by epoch.
    record : dict
        What ``run.json`` holds.
    folder : Path or None
        Where it lies; ``folder / "model"`` is for `from_pretrained`.
    """

    model: nn.Module
    recipe: TrainingRecipe
    outcome: Outcome
    record: dict[str, Any]
    folder: Path | None


def finetune(
    model: str,
    windows: Windows,
    validation: Windows | None = None,
    *,
    recipe: TrainingRecipe | str | None = None,
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
) -> Finetuned:
    """Train a classifier on labelled windows.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm"}
        Any spelling of the paper's.
    windows, validation : Windows
        Training split, and the split by which an epoch is chosen; without it the last epoch is kept.
    recipe : TrainingRecipe, {"paper", "scratch"}, optional
        "paper" if `init` is given and "scratch" if not, unless said otherwise.
    init : sequence of path
        Checkpoints to start from: see `zipbrain.training.initialise`.
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

    Returns
    -------
    finetuned : Finetuned
    """
    check_choice(capture)
    chosen = choose_recipe(model, windows, recipe, bool(init))
    where, folder = pick_device(device), None if out is None else Path(out)
    amount = scaling if scaling is not None else scaling_of(chosen.model, windows)
    for what in ("classes", "ch_names", "sfreq", "n_times"):
        if validation is not None and getattr(validation, what) != getattr(windows, what):
            allowed = f"the training windows have {getattr(windows, what)}"
            raise OptionError(f"{what} of validation", getattr(validation, what), allowed)
    for split in (windows, validation):
        _check_labels(split)
    record = _record(chosen, windows, validation, init, where, amount)
    going_on = _open(folder, resume, record)
    if chosen.origin != "scratch" and not init and not going_on:
        log.warning("%s: the paper's settings are for a pretrained model, but no checkpoint was given", chosen.model)

    devices = [where] if where.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(chosen.seed)
        network = build_model(chosen, windows)
    remember(network, Task(windows.classes, windows.name, windows.ch_names, windows.sfreq, amount))
    if not going_on:
        record["init_report"] = [str(report).splitlines() for report in initialise(network, init)]
    if on_stage is not None:
        on_stage("reading windows", 0)
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
        if _open(folder, resume, record) != going_on:
            raise TrainingFailed(f"{folder}: another run was written there meanwhile; name a new folder")
        if folder is not None and not going_on:
            with checkpoints.writing(folder, "make room there and run again"):
                checkpoints.write_json(folder / checkpoints.RUN, record)
        if isinstance(network, TFM) and chosen.pretrain_steps and not init and not going_on:
            home = None if folder is None else folder / "pretraining"
            pretrain(
                network, feed, chosen.pretrain_steps, folder=home, resume=resume, micro_batch=micro_batch,
                on_step=on_step, on_epoch=on_epoch, on_stage=on_stage,
            )  # fmt: skip
        if on_stage is not None:
            on_stage("fine-tuning", chosen.epochs)
        outcome = train(
            network, feed, chosen, classification_loss(chosen, len(windows.classes)), evaluate=evaluate,
            select_by=names.get(chosen.selection), stop_by=names.get(chosen.stop_metric), folder=folder,
            resume=going_on, keep=None if folder is None else lambda: _keep(network, folder), micro_batch=micro_batch,
            capture=capture, deterministic=deterministic, tensorboard=tensorboard, on_step=on_step, on_epoch=on_epoch,
        )  # fmt: skip
        seconds = [line["seconds"] for line in outcome.history]
        record |= {
            "finished": True, "epochs_run": len(outcome.history), "stopped_early": outcome.stopped_early,
            "kept_epoch": outcome.best_epoch, "selected_by": names.get(chosen.selection),
            "validation_score": outcome.best_score, "capture": outcome.capture,
            "seconds_per_epoch": float(np.median(seconds)),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "batch_size": min(chosen.batch_size, len(windows)),
            "weights_sha256": checkpoints.fingerprint(checkpoints.weights_of(network)),
        }  # fmt: skip
        if folder is not None:
            with checkpoints.writing(folder):
                checkpoints.write_json(folder / checkpoints.RUN, record)
    return Finetuned(network, chosen, outcome, record, folder)


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


def _keep(network: nn.Module, folder: Path) -> None:
    with checkpoints.writing(folder):
        save_pretrained(network, folder / checkpoints.MODEL)


def classification_loss(recipe: TrainingRecipe, classes: int) -> Loss:
    """Binary cross-entropy on one logit, or cross-entropy with the recipe's smoothing for more than two classes."""
    if classes == 2 and recipe.binary_loss == "bce":
        return lambda model, x, y: F.binary_cross_entropy_with_logits(model(x)[:, 0].float(), y.float())
    smoothing = recipe.label_smoothing if classes > 2 else 0.0
    return lambda model, x, y: F.cross_entropy(model(x).float(), y, label_smoothing=smoothing)


def _evaluation(feed: Feed, recipe: TrainingRecipe, batch: int) -> Callable[[nn.Module], dict[str, float]]:
    """Loss (without smoothing), accuracy and main metric of a split."""
    labels, metric = feed.windows.labels, main_metric(len(feed.windows.classes))

    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = predict(model, feed, batch_size=batch, amp=recipe.amp)
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


def _check_labels(windows: Windows | None) -> None:
    if windows is None or not len(windows):
        return
    low, high = int(windows.labels.min()), int(windows.labels.max())
    if low < 0 or high >= len(windows.classes):
        raise OptionError("labels", f"{low} to {high}", f"they must be 0 to {len(windows.classes) - 1}")


def describe_windows(windows: Windows) -> dict[str, Any]:
    """What a record says of a split. The fingerprint reads all labels and subjects, and 32 windows spread over it."""
    digest = hashlib.sha256()
    digest.update(windows.labels.tobytes())
    digest.update("\n".join(windows.subjects.tolist()).encode())
    if len(windows):
        digest.update(windows.take(np.unique(np.linspace(0, len(windows) - 1, 32).astype(np.int64))).tobytes())
    counts = np.bincount(windows.labels, minlength=len(windows.classes))
    return {
        "name": windows.name, "windows": len(windows), "subjects": len(np.unique(windows.subjects)),
        "classes": list(windows.classes), "counts": counts.tolist(),
        "ch_names": list(windows.ch_names), "sfreq": windows.sfreq, "n_times": windows.n_times,
        "fingerprint": digest.hexdigest(),
    }  # fmt: skip


def _record(
    recipe: TrainingRecipe, windows: Windows, validation: Windows | None, init: Sequence[str | Path],
    device: torch.device, scaling: str,
) -> dict[str, Any]:  # fmt: skip
    gpu = device.type == "cuda"
    return json_ready({
        "finished": False, "recipe": recipe.to_dict(), "settings": recipe.origin, "seed": recipe.seed,
        "init": [str(source) for source in init], "scaling": scaling, "train": describe_windows(windows),
        "validation": None if validation is None else describe_windows(validation),
        "device": torch.cuda.get_device_name(device) if gpu else platform.processor() or platform.machine(),
        "precision": recipe.amp if gpu and recipe.amp != "no" else "fp32", "threads": torch.get_num_threads(),
        "versions": {
            "zipbrain": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
            "python": platform.python_version(),
        },
    })  # fmt: skip


def _open(folder: Path | None, resume: bool, record: dict[str, Any]) -> bool:
    """Whether there is a checkpoint to go on from; refuses to overwrite a run, or to go on with another one."""
    if folder is None:
        if resume:
            raise OptionError("resume", True, "it needs the folder of the run")
        return False
    path = folder / checkpoints.RUN
    if folder.exists() and not folder.is_dir():
        raise OptionError("out", str(folder), "it is a file: name a new folder")
    if not path.exists():
        if resume:
            raise OptionError("out", str(folder), "it holds no run to resume: start one without --resume")
        if folder.exists() and any(folder.iterdir()):
            raise OptionError("out", str(folder), "it is not empty and holds no run: name a new folder")
        return False
    if not resume:
        raise OptionError("out", str(folder), "it holds a run already: resume it, or name a new folder")
    try:
        old = json.loads(path.read_text())
        before = {key: old[key] for key in ("recipe", "train", "validation", "scaling")}
    except (OSError, ValueError, KeyError) as error:
        raise OptionError("out", str(folder), f"its {checkpoints.RUN} can't be used: {error!r}") from None
    for key, value in before.items():
        now = record[key]
        if key == "recipe":  # how the settings came about does not matter
            value, now = value | {"changed": []}, now | {"changed": []}
        if value != now:
            raise OptionError("resume", _difference(key, value, now), "a resumed run keeps what it began with")
    if checkpoints.last_checkpoint(folder) is None:  # stopped before the first checkpoint
        return False
    record |= {key: old[key] for key in ("init", "init_report") if key in old}
    return True


def _difference(key: str, before: Any, now: Any) -> str:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"another {key}"
    names = [name for name in before if before[name] != now.get(name)]
    return f"another {key}: {', '.join(f'{name} {now.get(name)!r} instead of {before[name]!r}' for name in names[:3])}"
