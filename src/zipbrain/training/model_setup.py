"""How a run starts: a model that fits the windows, filled from a checkpoint or left at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.channels import electrode, find_channels
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import TFM, LoadReport, TFMEncoder, create, load_official, read_checkpoint
from zipbrain.models.checkpoint import _fit as fit_tensor
from zipbrain.models.eegpt import CHANNELS, FRONT_CHANNELS
from zipbrain.paper import MODELS, canonical_name
from zipbrain.pretrained import from_pretrained
from zipbrain.training.settings import TrainingRecipe, paper_recipe, scratch_recipe

# What a model's class calls its regularisation.
_TAKES: Final = {"LaBraM": "drop_path", "EEGPT": "dropout", "BIOT": "dropout", "TFM-Tokenizer": "dropout"}
_NAMES: Final = dict(zip(MODELS, ("labram", "eegpt", "biot", "tfm"), strict=True))
_OTHER_CORPUS: Final = "ISRUC"  # whose settings a corpus takes that the paper does not have


def choose_recipe(model: str, windows: Windows, recipe: TrainingRecipe | str | None, started: bool) -> TrainingRecipe:
    """The recipe that was given, or one by name.

    Parameters
    ----------
    model : str
        Any spelling.
    windows : Windows
        Its name decides which of the paper's rows is meant; a corpus that the paper does not have takes ISRUC's.
    recipe : TrainingRecipe, {"paper", "scratch"} or None
        None is "paper" for a model from a checkpoint and "scratch" for a random one.
    started : bool
        Whether there is a checkpoint.
    """
    if isinstance(recipe, TrainingRecipe):
        if recipe.model != canonical_name("model", model, MODELS):
            raise OptionError("recipe", recipe.model, f"the model is {model}")
        return recipe
    name = recipe if recipe is not None else "paper" if started else "scratch"
    if name == "scratch":
        return scratch_recipe(model)
    if name != "paper":
        raise OptionError("recipe", recipe, "it must be 'paper' or 'scratch'")
    try:
        return paper_recipe(model, windows.name)
    except OptionError as error:
        if error.name != "dataset":
            raise
    return paper_recipe(model, _OTHER_CORPUS)


def outputs_of(recipe: TrainingRecipe, classes: int) -> int:
    """Number of logits: one for two classes with a sigmoid."""
    return 1 if classes == 2 and recipe.binary_loss == "bce" else classes


def build_model(recipe: TrainingRecipe, windows: Windows) -> nn.Module:
    """A model with random weights that fits the windows and their classes."""
    name, classes = recipe.model, len(windows.classes)
    if classes < 2:
        raise OptionError("classes", windows.classes, "at least two are needed")
    if name != "EEGPT" and windows.sfreq != 200:
        raise OptionError("sfreq", windows.sfreq, f"{name} reads 200 Hz: resample the windows first")
    options: dict[str, Any] = {"n_outputs": outputs_of(recipe, classes), "n_times": windows.n_times}
    if name in ("LaBraM", "EEGPT"):
        options["ch_names"] = [_place(channel) for channel in windows.ch_names]
    else:
        options["n_chans"] = windows.n_chans
    for setting in ("drop_path", "dropout"):
        value = recipe.applied(setting)
        if setting == _TAKES[name] and value is not None:
            options[setting] = value
        elif value:
            raise OptionError(setting, value, f"{name} has no {setting.replace('_', ' ')}: leave it out")
    options |= recipe.options
    if name == "EEGPT":
        options |= _eegpt_options(options, windows)
    try:
        model = create(_NAMES[name], **options)
    except TypeError as error:
        raise OptionError("options", recipe.options, f"{name} does not take them: {error}") from None
    if recipe.head_scale is not None:
        head = getattr(model, "head", None)
        if not isinstance(head, nn.Linear):
            raise OptionError("head_scale", recipe.head_scale, f"the head of {name} is not a linear layer")
        nn.init.trunc_normal_(head.weight, std=0.02)
        with torch.no_grad():
            head.weight.mul_(recipe.head_scale)
    return model


def _place(channel: str) -> str:
    """Where a channel measures: a derivation against an ear, such as F3-A2, is its electrode."""
    first, _, second = electrode(channel).partition("-")
    return first if second in ("A1", "A2", "M1", "M2") else channel


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


def initialise(model: nn.Module, sources: Sequence[str | Path]) -> list[LoadReport]:
    """Fill a model from checkpoints, one after the other.

    Parameters
    ----------
    model : nn.Module
        Other numbers of classes, channels and seconds than the checkpoint's are fine; such a head stays random.
    sources : sequence of path
        Folders of `save_pretrained`, or files of the official repositories. TFM-Tokenizer's tokenizer and encoder are
        two files.
    """
    return [_from_folder(model, Path(s)) if Path(s).is_dir() else _from_file(model, Path(s)) for s in sources]


def _from_file(model: nn.Module, path: Path) -> LoadReport:
    if not isinstance(model, TFM):
        return load_official(model, path)
    state = read_checkpoint(path)
    tokenizer = any(name.startswith("quantizer.") for name in state)
    return load_official(model.tokenizer if tokenizer else model.encoder, state)


def _from_folder(model: nn.Module, folder: Path) -> LoadReport:
    donor = from_pretrained(folder)
    target = model.encoder if isinstance(model, TFM) and isinstance(donor, TFMEncoder) else model
    if type(donor) is not type(target):
        raise OptionError("init", str(folder), f"it holds {type(donor).__name__} and not {type(model).__name__}")
    own, report, ready = target.state_dict(), LoadReport(), dict[str, Tensor]()
    for name, value in donor.state_dict().items():
        fitted, what = fit_tensor(name, value, own[name]) if name in own else (None, "the model has no such tensor")
        if fitted is None:
            report.skipped[name] = what
            continue
        ready[name] = fitted
        if what:
            report.resized[name] = what
        else:
            report.loaded.append(name)
    report.initial.extend(name for name in own if name not in ready)
    target.load_state_dict(ready, strict=False)
    return report
