"""The settings and the model that a run starts with: built for the windows, filled from a checkpoint or random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from zipbrain.channels import find_channels, measured_at
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import TFM, Build, LoadReport, TFMEncoder, create, load_official, model_name, task_of
from zipbrain.models.checkpoint import fit_state
from zipbrain.models.eegpt import CHANNELS, FRONT_CHANNELS
from zipbrain.models.foreign import check_answer
from zipbrain.models.weights_cache import checkpoint_files
from zipbrain.paper import NETWORKS, canonical_name
from zipbrain.pretrained import from_pretrained
from zipbrain.training.settings import TrainingSettings, foreign_settings, paper_settings, scratch_settings

# What a model's class calls its regularisation.
_TAKES: Final = dict.fromkeys(NETWORKS, "dropout") | {"LaBraM": "drop_path"}
_NAMES: Final = dict(zip(NETWORKS, ("labram", "eegpt", "biot", "tfm", "cbramod"), strict=True))
_RATES: Final = dict.fromkeys(NETWORKS, (200.0, 200.0)) | {"EEGPT": (200.0, 256.0)}  # Hz, lowest and highest
_OTHER_CORPUS: Final = "ISRUC"  # whose settings a corpus takes that the paper does not have


def choose_settings(
    model: str | Build, windows: Windows, settings: TrainingSettings | str | None, started: bool
) -> TrainingSettings:
    """The settings that were given, or those of "paper" or "scratch"; None is "paper" if `started` from a checkpoint.

    The name of the windows decides which of the paper's rows is meant. A foreign model has "scratch" alone.
    """
    if isinstance(model, Build):
        return _choose_foreign(model, settings)
    if isinstance(settings, TrainingSettings):
        if settings.model != canonical_name("model", model, NETWORKS):
            raise OptionError("settings", settings.model, f"the model is {model}")
        return settings
    name = settings if settings is not None else "paper" if started else "scratch"
    if name == "scratch":
        return scratch_settings(model)
    if name != "paper":
        raise OptionError("settings", settings, "it must be 'paper' or 'scratch'")
    try:
        return paper_settings(model, windows.name)
    except OptionError as error:
        if error.name != "dataset":
            raise
    return paper_settings(model, _OTHER_CORPUS)


def _choose_foreign(model: Build, settings: TrainingSettings | str | None) -> TrainingSettings:
    if not isinstance(settings, TrainingSettings):
        if settings not in (None, "scratch"):
            raise OptionError("settings", settings, f"there are none for {model}: leave it out, or say 'scratch'")
        return foreign_settings(str(model))
    if settings.model != str(model):
        raise OptionError("settings", settings.model, f"the model is {model}")
    return settings


def open_foreign(
    model: Build, settings: TrainingSettings, windows: Windows
) -> tuple[nn.Module, TrainingSettings, Windows]:
    """The model, its settings with the loss that its outputs need, and the windows in its classes' order."""
    for name in ("drop_path", "dropout", "head_scale", "options", "pretrain_steps"):
        if getattr(settings, name):
            raise OptionError(name, getattr(settings, name), f"{model} sets that itself: leave it out")
    network = model.open()
    known = task_of(network)
    if known is not None:
        known.check(windows.classes, windows.ch_names, windows.sfreq)
        windows = windows.reorder(known.names(windows.classes))
    outputs = check_answer(network, windows.n_chans, windows.n_times, len(windows.classes))
    return network, replace(settings, binary_loss="bce" if outputs == 1 else "ce"), windows


def outputs_of(settings: TrainingSettings, classes: int) -> int:
    """Number of logits: one for two classes with a sigmoid."""
    return 1 if classes == 2 and settings.binary_loss == "bce" else classes


def check_rate(model: str, sfreq: float) -> None:
    """Refuse a sampling rate in Hz that a model does not read."""
    low, high = _RATES[canonical_name("model", model, NETWORKS)]
    if not low <= sfreq <= high:
        rates = f"{low:g} Hz" if low == high else f"{low:g} to {high:g} Hz"
        raise OptionError("sfreq", sfreq, f"{model} reads {rates}: resample the windows first")


def build_model(settings: TrainingSettings, windows: Windows) -> nn.Module:
    """A model with random weights that fits the windows and their classes."""
    name, classes = settings.model, len(windows.classes)
    if classes < 2:
        raise OptionError("classes", windows.classes, "at least two are needed")
    check_rate(name, windows.sfreq)
    options: dict[str, Any] = {"n_outputs": outputs_of(settings, classes), "n_times": windows.n_times}
    if name in ("LaBraM", "EEGPT"):
        options["ch_names"] = [measured_at(channel) for channel in windows.ch_names]
    else:
        options["n_chans"] = windows.n_chans
    for setting in ("drop_path", "dropout"):
        value = settings.applied(setting)
        if setting == _TAKES[name] and value is not None:
            options[setting] = value
        elif value:
            raise OptionError(setting, value, f"{name} has no {setting.replace('_', ' ')}: leave it out")
    options |= settings.options
    if name == "EEGPT":
        options |= _eegpt_options(options, windows)
    model = create(_NAMES[name], **options)
    if settings.head_scale is not None:
        head = getattr(model, "head", None)
        if not isinstance(head, nn.Linear):
            raise OptionError("head_scale", settings.head_scale, f"the head of {name} is not a linear layer")
        nn.init.trunc_normal_(head.weight, std=0.02)
        with torch.no_grad():
            head.weight.mul_(settings.head_scale)
    return model


def _eegpt_options(options: dict[str, Any], windows: Windows) -> dict[str, Any]:
    """What the windows decide: their rate, and a projection where EEGPT does not know a channel."""
    corpus = windows.name.lower()
    try:
        find_channels(options["ch_names"], CHANNELS, "EEGPT")
        known = True
    except OptionError:
        known = False
    if options.get("head") == "probe":
        return {"sfreq": windows.sfreq} if known else {"sfreq": windows.sfreq, "places": FRONT_CHANNELS}
    if "front_end" in options or (known and corpus not in ("tuab", "tuev")):
        return {}
    return {"front_end": "tuev" if corpus == "tuev" else "tuab"}


def initialise(model: nn.Module, sources: Sequence[str | Path]) -> LoadReport:
    """Fill a model from checkpoints, one after the other, and say what became of every tensor.

    Parameters
    ----------
    model : nn.Module
        Other numbers of classes, channels and seconds than the checkpoint's are fine; such a head stays random.
    sources : sequence of path or str
        Folders of `save_pretrained`, files of the official repositories, or published weights by name, such as
        ``"labram-base"``. TFM-Tokenizer's tokenizer and encoder are two files.
    """
    reports = []
    for source in sources:
        for path in checkpoint_files(source, model_name(model)):
            reports.append(_from_folder(model, path) if path.is_dir() else load_official(model, path))
    return LoadReport.join(reports) if reports else LoadReport(initial=list(model.state_dict()))


def _from_folder(model: nn.Module, folder: Path) -> LoadReport:
    donor = from_pretrained(folder)
    inside = isinstance(model, TFM) and isinstance(donor, TFMEncoder)
    target = model.get_submodule("encoder") if inside else model
    if type(donor) is not type(target):
        raise OptionError("init", str(folder), f"it holds {type(donor).__name__} and not {type(model).__name__}")
    ready, report = fit_state(donor.state_dict(), target.state_dict())
    target.load_state_dict(ready, strict=False)
    if not inside:
        return report
    report = report.under("encoder.")
    report.initial.extend(name for name in model.state_dict() if not name.startswith("encoder."))
    return report
