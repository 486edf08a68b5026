"""Logits without gradients: `predict` for every window of a split, `run_inference` for one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import task_of
from zipbrain.models.task import check_places
from zipbrain.seams.evaluation_mode import evaluation_mode
from zipbrain.training.loader import Feed, check_windows, pick_device, scaling_for

_DTYPES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}


def autocast(device: torch.device, amp: str, cache: bool = True) -> AbstractContextManager[None]:
    """Half precision on a GPU, if asked for; float32 on a CPU. With `cache`, weights are cast once."""
    enabled = device.type == "cuda" and amp != "no"
    return torch.autocast(device.type, _DTYPES.get(amp, torch.bfloat16), enabled=enabled, cache_enabled=cache)


def run_inference(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The answer to one batch without gradients and without autocast: precision is what was chosen."""
    with torch.inference_mode():
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return network(x)
        return network(x)


def predict(
    model: nn.Module,
    windows: Windows | Feed,
    *,
    batch_size: int = 128,
    device: str | torch.device = "auto",
    scaling: str | None = None,
    amp: str = "no",
    tick: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Run a model on all windows of a split, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        The model; compressed or not. Left where `device` says, and in the mode it was in.
    windows : Windows or Feed
        The split, unscaled, or a feed that scales already. Windows with other channels or another rate than those that
        the model was trained on are refused.
    batch_size : int
        Windows per call.
    device : str or torch.device
        "auto" is the GPU if there is one.
    scaling : str, optional
        See `zipbrain.data.scale`; the model's own for this corpus if not given.
    amp : {"no", "fp16", "bf16"}
        Half precision on a GPU.
    tick : callable, optional
        Called with the number of windows done, for a progress bar.

    Returns
    -------
    logits : ndarray (n, n_outputs) of float32
        In the order of the windows; a warning counts windows whose logits are NaN or infinite.
    """
    if batch_size < 1:
        raise OptionError("batch_size", batch_size, "it must be at least 1")
    if isinstance(windows, Feed):
        feed = windows
    else:
        check_windows("windows", windows)
        if (task := task_of(model)) is not None:  # without its classes: windows to predict may have no labels
            task.check(task.classes, windows.ch_names, windows.sfreq, option="windows")
        check_places(model, windows.ch_names, option="windows")
        chosen = scaling if scaling is not None else scaling_for(model, windows)
        feed = Feed(windows, chosen, pick_device(device), "disk")
    logits = []
    with evaluation_mode(model.to(feed.device)), torch.inference_mode(), autocast(feed.device, amp):
        for x, _ in feed.batches(np.arange(len(feed)), batch_size):
            logits.append(model(x).float())
            if tick is not None:
                tick(len(x))
    found = torch.cat(logits).cpu().numpy()
    wrong = np.flatnonzero(~np.isfinite(found).all(1))
    if len(wrong) and feed is not windows:
        count = f"{len(wrong)} of {len(found)} windows (the first is {wrong[0]})"
        warnings.warn(f"the logits of {count} are NaN or infinite: look for NaN in them", stacklevel=2)
    return found
