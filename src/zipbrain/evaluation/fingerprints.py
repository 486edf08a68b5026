"""What decides an answer, as fingerprints: a split's windows, a network besides its weights, code that is not ours."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from typing import Final

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.pooling.methods.base import as_method
from zipbrain.pooling.registry import Part
from zipbrain.pooling.schedule import as_schedule
from zipbrain.recipe import Recipe
from zipbrain.seams.identity import name_of

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
        return name_of(kind)
