"""The options of `accelerate` that are refused, and the device a model lies on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from zipbrain.acceleration.weight_sharing import devices_of
from zipbrain.errors import OptionError

HALVES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16}
PRECISIONS: Final = ("auto", *HALVES, "float32")


def check_options(
    model: object, example: object, precision: object, compile: object, batches: object, tolerance: object
) -> tuple[int, ...]:
    """The batch sizes, ascending; refuses options of the wrong kind."""
    if not isinstance(model, nn.Module):
        raise OptionError("model", type(model).__name__, "it must be a torch.nn.Module")
    if not isinstance(example, Tensor) or example.dim() < 2 or example.numel() == 0:
        given = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise OptionError("example", given, "it must be a tensor of windows, such as (B, channels, samples)")
    if precision not in PRECISIONS:
        raise OptionError("precision", precision, f"it must be one of {', '.join(PRECISIONS)}")
    if compile not in (None, True, False):
        raise OptionError("compile", compile, "it must be True, False or None")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance > 0:
        raise OptionError("tolerance", tolerance, "it must be a positive number")
    if batches is None:
        powers = (2**power for power in range(len(example).bit_length()))
        return tuple(sorted({*(size for size in powers if size <= len(example)), len(example)}))
    allowed = "it must hold whole numbers of at least 1"
    if isinstance(batches, str) or not isinstance(batches, Sequence) or not batches:
        raise OptionError("batches", batches, allowed)
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in batches):
        raise OptionError("batches", batches, allowed)
    return tuple(sorted(set(batches)))


def find_device(model: nn.Module, otherwise: torch.device) -> tuple[torch.device, str | None]:
    """The device of a model, and why it can't be made faster there; None if it can."""
    devices = devices_of(model) or [otherwise]
    if len(devices) > 1:
        return devices[0], f"its tensors lie on several devices ({', '.join(map(str, devices))})"
    device = devices[0]
    if device.type == "cuda":
        return device, None
    if torch.cuda.is_available():
        return device, f"the model is on {device}: move it with model.to('cuda') first"
    if torch.version.cuda is None and torch.version.hip is None:
        return device, "there is no CUDA (this torch is built without it)"
    return device, "there is no CUDA device on this machine"
