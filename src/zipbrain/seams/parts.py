"""Parts of a module and how to run them, at little cost to the host.

Launched one by one from Python, operators on a GPU wait for the host, much of whose time goes into `nn.Module`: looking
for a name it does not have, and four calls around every operator.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

_everybodys = _global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks

_KNOWN = {nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout}


def part(module: nn.Module, name: str) -> Any:
    """A parameter, child or attribute of a module under this name; None if there is none."""
    state = module.__dict__
    found = state["_parameters"].get(name)
    if found is None:
        found = state["_modules"].get(name)
    if found is None:
        found = state.get(name)
    if found is None and (name in state["_buffers"] or hasattr(type(module), name)):
        found = getattr(module, name)
    return found


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens when the module is called, or has put another forward into it."""
    own = module.__dict__
    if own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]:
        return True
    before, behind, back_before, back_behind = _everybodys
    if before or behind or back_before or back_behind:
        return True
    return "forward" in own or own.get("_compiled_call_impl") is not None


def run(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; a plain LayerNorm, Linear, or nothing at all without the calls around it."""
    kind = type(module)
    if kind in _KNOWN and not torch.compiler.is_compiling() and not hooked(module):
        own = module.__dict__
        weights = own["_parameters"]
        if kind is nn.LayerNorm:
            return torch.layer_norm(x, own["normalized_shape"], weights["weight"], weights["bias"], own["eps"])
        if kind is nn.Linear:
            return F.linear(x, weights["weight"], weights["bias"])
        if kind is nn.Identity or not own["training"] or own["p"] == 0:
            return x
    result: Tensor = module(x)
    return result
