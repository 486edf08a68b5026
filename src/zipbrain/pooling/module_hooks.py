"""Whether a module is more than its forward."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

_everybodys = _global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens when the module is called, or has put another forward into it."""
    own = module.__dict__
    if own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]:
        return True
    before, behind, back_before, back_behind = _everybodys
    if before or behind or back_before or back_behind:
        return True
    return "forward" in own or own.get("_compiled_call_impl") is not None
