"""Parts of a module and how to run them, at little cost to the host.

Launched one by one from Python, operators on a GPU wait for the host, much of whose time goes into `nn.Module`: looking
for a name it does not have, and four calls around every operator.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.pooling.module_hooks import hooked

_KINDS: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.Linear, nn.Identity, nn.Dropout)
_FORWARDS: dict[type, Any] = {kind: kind.forward for kind in _KINDS}


def part(module: nn.Module, name: str) -> Any:
    """A parameter, child or attribute of a module under this name; None if there is none."""
    state = module.__dict__
    found = state["_parameters"].get(name)
    if found is None:
        found = state["_modules"].get(name)
    if found is None:
        found = state.get(name)
    if found is None and (name in state["_buffers"] or hasattr(type(module), name) or _wraps(module)):
        found = getattr(module, name, None)
    return found


def step(module: nn.Module, name: str) -> Any:
    """A child, or a function among the attributes, that tokens pass through; None if there is none."""
    state = module.__dict__
    found = state["_modules"].get(name)
    if found is None:
        found = state.get(name)
    if found is None and _wraps(module):
        found = getattr(module, name, None)
    return found if callable(found) else None


def _wraps(module: nn.Module) -> bool:
    """Whether a module looks for what it does not have in another one, such as a compiled or a checkpointed one."""
    return type(module).__getattr__ is not nn.Module.__getattr__


def run(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; a plain LayerNorm, Linear, or nothing at all without the calls around it."""
    kind = type(module)
    known = _FORWARDS.get(kind)
    if known is not None and known is kind.forward and not torch.compiler.is_compiling() and not hooked(module):
        own = module.__dict__
        weights = own["_parameters"]
        if kind is nn.Identity or (kind is nn.Dropout and (not own["training"] or own["p"] == 0)):
            return x
        if "weight" in weights and "bias" in weights:  # not where a wrapper keeps them elsewhere
            if kind is nn.LayerNorm:
                return torch.layer_norm(x, own["normalized_shape"], weights["weight"], weights["bias"], own["eps"])
            return F.linear(x, weights["weight"], weights["bias"])
    result: Tensor = module(x)
    return result
