"""Detects hooks on a module, or a replaced forward."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

_global_hooks = _global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks


def has_hooks(module: nn.Module) -> bool:
    """True if calling the module does more than its class's forward: hooks, a replaced or a compiled forward."""
    own = module.__dict__
    if own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]:
        return True
    before, behind, back_before, back_behind = _global_hooks
    if before or behind or back_before or back_behind:
        return True
    return "forward" in own or own.get("_compiled_call_impl") is not None
