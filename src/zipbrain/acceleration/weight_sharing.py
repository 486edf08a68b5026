"""Twins of a model: modules of their own in evaluation mode, on the same tensors or on tensors of another precision."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def twin(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Copy the modules of a model, but not its tensors.

    Parameters
    ----------
    model : nn.Module
        Stays as it is.
    dtype : torch.dtype, optional
        Floating-point type of the twin's tensors. If not given they share the model's storage: what is written into the
        model's weights in place is seen by the twin, while moving or replacing them (``model.to``) leaves the twin on
        the old ones, which it keeps alive.

    Returns
    -------
    twin : nn.Module
        In evaluation mode, asking for no gradients. A copy of the full precision is never made on the way.
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
