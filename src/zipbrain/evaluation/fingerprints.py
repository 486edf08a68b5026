"""What decides an answer, as fingerprints: a split's windows, a network besides its weights, code that is not ours."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.pooling.methods.base import as_method
from zipbrain.pooling.registry import Part
from zipbrain.pooling.schedule import as_schedule
from zipbrain.recipe import Recipe
from zipbrain.seams.dialects.base import is_plain
from zipbrain.weights import fingerprint

_CHUNK: Final = 256  # windows hashed at once


def data_sha256(windows: Windows) -> str:
    """SHA-256 over labels, subjects, classes, channels, sampling rate and all samples of a split."""
    about = {"labels": windows.labels.tolist(), "subjects": windows.subjects.tolist()}
    about |= {name: getattr(windows, name) for name in ("classes", "ch_names", "sfreq")}
    about["shape"] = [len(windows), windows.n_chans, windows.n_times]
    digest = hashlib.sha256(json.dumps(about).encode())
    for start in range(0, len(windows), _CHUNK):
        digest.update(windows.take(slice(start, start + _CHUNK)).data)
    return digest.hexdigest()


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
        found.append([name, _named(type(module)), own, unsaved])
    return found


def _described(value: object) -> Any:
    """The same words for the same value in every process; of another object, its class and plain attributes."""
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
        return _named(value)
    own = getattr(value, "__dict__", {})
    return [_named(type(value)), {key: repr(one) for key, one in own.items() if is_plain(one)}]


def _named(thing: Any) -> str:
    """Module and name of a class or a function; the main program is called the same in workers."""
    home = getattr(thing, "__module__", None)
    return f"{'__main__' if home == '__mp_main__' else home}.{thing.__qualname__}"


def foreign_code(recipe: Recipe) -> list[str]:
    """Fingerprints of the classes that a recipe names and that are not ours."""
    try:
        parts: list[Part] = [as_method(recipe.method), as_schedule(schedule=recipe.schedule)]
    except OptionError:  # not known here, so it can't be run either
        return []
    found: list[str] = []
    while parts:
        part = parts.pop()
        found += [_code(kind) for kind in type(part).__mro__ if _is_foreign(kind)]
        parts += [value for value in vars(part).values() if isinstance(value, Part)]
    return sorted(found)


def _is_foreign(kind: type) -> bool:
    return issubclass(kind, Part) and not kind.__module__.startswith("zipbrain.")


@functools.cache
def _code(kind: type) -> str:
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):  # typed in at a prompt
        return _named(kind)
