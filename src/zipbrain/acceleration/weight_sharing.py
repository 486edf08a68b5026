"""Copies of a model in evaluation mode, on the same tensors or on tensors of another precision."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def copy_modules(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of a model's modules, but not of its tensors, in evaluation mode and without gradients.

    Without a `dtype` both share their storage: what is written into the model's weights in place is seen by the copy,
    while moving or replacing them (``model.to``) leaves the copy on the old ones. With a `dtype` the copy has tensors
    of its own; no copy in full precision is made on the way.
    """
    counterparts: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        counterparts[id(tensor)] = _counterpart(tensor, dtype)
    return copy.deepcopy(model, counterparts).eval()


def _counterpart(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    values = tensor.detach()
    if dtype is not None and values.is_floating_point():
        values = values.to(dtype)
    return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


def precision_of(model: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Floating-point type of the first parameter or buffer that has one."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return otherwise


def devices_of(model: nn.Module) -> list[torch.device]:
    """Where a model's parameters and buffers lie, each device once."""
    return list(dict.fromkeys(tensor.device for tensor in (*model.parameters(), *model.buffers())))
