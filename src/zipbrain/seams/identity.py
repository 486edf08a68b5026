"""Identity of a network apart from its weights, as JSON that is equal in every process."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain.seams.dialects.recognition import is_plain
from zipbrain.seams.forward import Plan
from zipbrain.weights import fingerprint


def network_of(model: nn.Module) -> list[Any]:
    """What a model computes, besides its weights: class and `config`; without one, what its modules are made of."""
    config = getattr(model, "config", None)
    if isinstance(config, dict):
        return [type(model).__qualname__, config]
    usual = nn.Module().__dict__.keys()  # weights, modules, hooks, mode
    found: list[Any] = []
    for name, module in model.named_modules():
        own = {key: _described(value) for key, value in module.__dict__.items() if key not in usual}
        unsaved = {key: _described(module._buffers[key]) for key in module._non_persistent_buffers_set}
        found.append([name, name_of(type(module)), own, unsaved])
    return found


def options_of(plan: Plan) -> dict[str, Any]:
    """The options that make a plan, for JSON; its protected tokens at the ends, not those of a mask."""
    look = {} if plan.second_look is None else {"second_look": plan.second_look}
    return {
        "method": plan.method.to_dict(),
        "schedule": plan.schedule.to_dict(),
        "layers": [number for number, reduces in enumerate(plan.reducing, 1) if reduces],
        "protected": [plan.leading, plan.trailing],
        "tokens": plan.tokens,
        "within": plan.where,
        "mass": asdict(plan.mass),
        **({"axis": plan.dialect.axis} if plan.dialect.axis else {}),
        **look,
    }


def _described(value: object) -> Any:
    """JSON form of any value, equal in every process; of an unknown object, its class and plain attributes."""
    if is_plain(value) or isinstance(value, Enum | torch.dtype):
        return repr(value)
    if isinstance(value, Tensor):
        return fingerprint({"": value})
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, functools.partial):
        return [_described(part) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return [[_described(key), _described(one)] for key, one in value.items()]
    if isinstance(value, tuple | list):
        return [_described(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_described(one)) for one in value)
    if hasattr(value, "__qualname__"):  # a function or a class
        return name_of(value)
    own = getattr(value, "__dict__", {})
    return [name_of(type(value)), {key: repr(one) for key, one in own.items() if is_plain(one)}]


def name_of(thing: Any) -> str:
    """Module and name of a class or a function; the main program is called the same in workers."""
    home = getattr(thing, "__module__", None)
    return f"{'__main__' if home == '__mp_main__' else home}.{thing.__qualname__}"
