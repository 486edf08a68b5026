"""Refusals before an export: options, windows, class names and a place on the disk that do not suit the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.edge.description import KEY, PRECISIONS
from zipbrain.edge.onnx_file import read_onnx
from zipbrain.errors import ModelFileError, OptionError, ZipbrainError
from zipbrain.files import new_partial
from zipbrain.models import task_of
from zipbrain.models.task import check_places
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import parse_montage

CALIBRATION: Final = 64  # windows that fix the ranges of static int8


class ExportFailed(ZipbrainError, RuntimeError):
    """An export whose answers are not those of the model, or that can't be written; there is no new file."""


def check_options(precision: str, batch: int | None, quantiser: str) -> None:
    """Refuse options that no model can be exported with."""
    if quantiser not in ("onnxruntime", "nncf") or (quantiser == "nncf" and precision != "int8-static"):
        raise OptionError("quantiser", quantiser, "it must be onnxruntime, or nncf with the precision int8-static")
    if precision not in PRECISIONS:
        raise OptionError("precision", precision, f"it must be one of {', '.join(PRECISIONS)}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise OptionError("batch", batch, "it must be a positive integer, or None for any number of windows")


def check_path(path: Path, option: str = "path") -> None:
    """Refuse, before any work, a path where no file can be written, or where something else than an export stands."""
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(option, str(path), "it must be the name of a file in a folder that is there")
    if path.suffix.lower() != ".onnx":
        raise OptionError(option, str(path), "its name must end in .onnx")
    if path.exists() and not _may_be_replaced(path):
        raise OptionError(
            option, str(path), "a file that zipbrain did not export is there: move it or give another name"
        )
    try:
        with new_partial(path):
            pass
    except OSError as error:
        raise ExportFailed(f"{path}: can't be written ({error.strerror or error}); give another folder") from None


def _may_be_replaced(path: Path) -> bool:
    """True for an empty file and for an earlier export, whatever its version."""
    try:
        return not path.stat().st_size or KEY in read_onnx(path)[1]
    except (OSError, ModelFileError):
        return False


def check_model(model: nn.Module, windows: Windows, names: tuple[str, ...]) -> None:
    """Refuse windows and classes that are not the model's, as far as its config and its training tell."""
    task = task_of(model)
    if task is not None:
        task.check(windows.classes, windows.ch_names, windows.sfreq, option="windows")
        task.check(names, option="classes")
    config = getattr(model, "config", {})
    outputs, own, samples = (config.get(name) for name in ("n_outputs", "ch_names", "n_times"))
    if outputs is not None and len(names) != max(2, outputs):
        raise OptionError("classes", list(names), f"the model has {outputs} output{'s' * (outputs > 1)}")
    if samples is not None and samples != windows.n_times:
        raise OptionError("windows", repr(windows), f"the model was made for {samples} samples")
    check_places(model, windows.ch_names, option="windows")
    if own is not None and len(own) != windows.n_chans:
        raise OptionError("windows", f"{windows.n_chans} channels", f"the model was made for {', '.join(own)}")


def split_calibration(calibration: Windows | None, windows: Windows) -> tuple[Windows, Windows]:
    """Windows that fix ranges and windows to compare on, none of them in both."""
    if calibration is not None:
        if not len(calibration) or (calibration.n_chans, calibration.n_times) != (windows.n_chans, windows.n_times):
            raise OptionError("calibration", repr(calibration), f"it must be like the windows, {windows!r}")
        return calibration, windows
    if len(windows) < 2:
        raise OptionError("calibration", None, "with a single window to compare on, give windows for it")
    order = np.random.default_rng(0).permutation(len(windows))  # evenly spread ones might all be of one class
    count = min(CALIBRATION, len(windows) // 2)
    return windows.select(np.sort(order[:count])), windows.select(np.sort(order[count:]))


def spread(count: int, most: int) -> NDArray[np.int64]:
    """At most so many of `count` places, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def fit_convention(convention: Convention, windows: Windows) -> Convention:
    """The convention, with the channels of the windows where it leaves them to the recording."""
    if not len(windows):
        raise OptionError("windows", repr(windows), "there is none")
    if not convention.montage:
        convention = replace(convention, montage=parse_montage(list(windows.ch_names)), ch_names=windows.ch_names)
    said = tuple(convention.ch_names), float(convention.sfreq), convention.n_times
    if said != (tuple(windows.ch_names), windows.sfreq, windows.n_times):
        found = f"{len(said[0])} channels, {said[2]} samples at {said[1]:g} Hz"
        raise OptionError("convention", found, f"the windows are {windows!r}")
    return convention
