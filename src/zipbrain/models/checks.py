"""Refusals that all models share: options that make no model, and windows that do not fit one."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from zipbrain.errors import OptionError, ShapeError
from zipbrain.numerals import LARGEST_COUNT, whole_number

MOST_BLOCKS: Final = 1000  # of a model: ten times the deepest one published


def check_option(name: str, value: int, least: int = 1, most: int = LARGEST_COUNT) -> None:
    """Refuse an option that is no whole number from `least` to `most`."""
    whole_number(name, value, least, most)


def check_rate(name: str, value: float) -> None:
    """Refuse a probability of dropping that is no number from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise OptionError(name, value, "it must be a number from 0 to below 1")


def check_window(
    x: Tensor, like: Tensor, shortest: int, *, channels: int | None = None, most: int | None = None
) -> None:
    """Refuse anything but windows (B, C, n_times) in the model's own floating-point type, that of the parameter `like`.

    Under autocast any floating-point type is fine. `channels` is the exact number of channels, `most` the largest.
    """
    if not isinstance(x, Tensor):
        raise ShapeError("x", type(x).__name__, "it must be a torch tensor, such as torch.from_numpy(x)")
    few = x.dim() != 3 or x.shape[1] < 1 or x.shape[2] < shortest
    if few or (channels is not None and x.shape[1] != channels) or (most is not None and x.shape[1] > most):
        limit = "" if most is None else f"C <= {most} and "
        wanted = f"(B, {'C' if channels is None else channels}, n_times) with {limit}n_times >= {shortest}"
        raise ShapeError("x", tuple(x.shape), f"it must be {wanted}")
    if not x.is_floating_point():
        raise ShapeError("x", str(x.dtype), f"it must be floating point: use x.to({like.dtype})")
    if x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ShapeError("x", str(x.dtype), f"the model computes in {like.dtype}: use x.to({like.dtype})")
