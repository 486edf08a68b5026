"""What commands that score a saved model share: opening the checkpoint, the recipe and the windows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zipbrain.cores import available_cores
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.models import Build
    from zipbrain.signal.convention import Convention


def need_torch() -> None:
    """Import torch and safetensors before any work is done."""
    import safetensors
    import torch

    assert safetensors
    assert torch


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Torch uses so many CPU threads inside; if not given, its own number, as far as this process has cores."""
    import torch

    from zipbrain.profiling.machine import torch_threads

    with torch_threads(count or min(torch.get_num_threads(), available_cores())):
        yield


def open_checkpoint(path: Path | Build) -> tuple[nn.Module, str]:
    """A saved model and the name under which `zipbrain.models.create` makes it, or that of the class of another one.

    `path` is the folder of a run of finetune or of a saved model, or the `Build` of a foreign model. The
    model is in evaluation mode, compressed if it was saved so, and carries what it was trained for, if its folder or
    that of its run says so.
    """
    from zipbrain.models import Build, model_name, name_of, remember, task_of
    from zipbrain.pretrained import from_pretrained
    from zipbrain.training.checkpoints import run_task

    if isinstance(path, Build):
        model = path.open()
        trained = None if path.weights is None or task_of(model) is not None else run_task(Path(path.weights).parent)
        if trained is not None:
            remember(model, trained)
        return model, name_of(model)
    try:
        model = from_pretrained(model_folder(path))
    except OptionError as error:
        raise OptionError("CHECKPOINT", str(path), error.allowed) if error.name == "source" else error from None
    task = run_task(path) if task_of(model) is None else None  # saved before models carried it
    if task is not None:
        remember(model, task)
    return model, model_name(model)


def own_convention(path: Path | Build) -> Convention | None:
    """The convention that was given with a foreign model, or None."""
    from zipbrain.models import Build

    said = path.read_convention() if isinstance(path, Build) else None
    return None if said is None else said.convention


def model_folder(path: Path) -> Path:
    """The folder of the model itself, given that or the folder of a run."""
    inside = path / "model"
    return inside if not (path / "config.json").exists() and (inside / "config.json").exists() else path


def open_windows(
    data: str,
    model: nn.Module,
    name: str,
    split: str = "test",
    limit: int | None = None,
    checkpoint: Path | Build | None = None,
) -> Windows:
    """One split of some data, refused if the model can't read it.

    At most `limit` windows, spread evenly; scaled as those of the run that trained the `checkpoint`, if that is given.
    """
    from zipbrain.evaluation.trial import check_fit
    from zipbrain.models import own_name, task_of
    from zipbrain.models.foreign import check_answer
    from zipbrain.training.checkpoints import run_scaling
    from zipbrain.training.window_sources import WindowSource

    known = own_name(model)
    windows = WindowSource(data, known and name, limit).split(split)
    scaling = None if checkpoint is None else run_scaling(Path(checkpoint))
    if scaling is not None:
        windows.scaling, windows.model = scaling, name
    windows = check_fit(model, windows)
    if known is None:
        check_answer(model, windows.n_chans, windows.n_times, len(windows.classes))
        if task_of(model) is None and windows.scaling is not None:
            say_notes([f"{name} gets windows scaled as their folder says ({windows.scaling}); --convention says it"])
    return windows


def split_names(given: str) -> list[str]:
    """The parts between commas."""
    return [name.strip() for name in given.split(",") if name.strip()]


def say_if_unknown(model: nn.Module, data: str) -> None:
    """Say on stderr if a checkpoint does not name its classes, so that those of the data could not be checked."""
    from zipbrain.models import task_of

    if task_of(model) is None:
        say_notes([f"the checkpoint does not say what its classes are: those of {data} were taken"])


def say_notes(notes: Iterable[str]) -> None:
    """Write notes on stderr."""
    from zipbrain.cli.terminal import Console

    for note in notes:
        Console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True, highlight=False, markup=False)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Warnings inside become notes on stderr, each said once."""
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        yield
    say_notes(dict.fromkeys(str(remark.message) for remark in remarks))


def open_recipe(recipe: Path | None, method_options: str) -> tuple[Path | str, Path | None]:
    """ZIPBrain's setting as `open_setting` has it, and the recipe if it is a tuned one, which is no setting."""
    from zipbrain.evaluation.options import is_tuned
    from zipbrain.recipe import Recipe

    if recipe is not None and recipe.is_file() and is_tuned(Recipe.load(recipe)):
        return method_options, recipe
    return open_setting(recipe, method_options), None


def open_setting(recipe: Path | None, method_options: str) -> Path | str:
    """ZIPBrain's setting as `--recipe` or `--method-options` give it; one of them, not both."""
    if recipe is None:
        return method_options
    if method_options != "auto":
        raise OptionError("--method-options", method_options, "with --recipe the recipe says it: give one of them")
    if not recipe.is_file():
        raise OptionError("--recipe", str(recipe), "there is no such file: zipbrain search and tune write one")
    return recipe
