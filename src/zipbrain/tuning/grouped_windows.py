"""`GroupedWindows`: the windows that a model is tuned on, scaled as it reads them, with a group for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import task_of
from zipbrain.models.task import check_places
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_for
from zipbrain.tuning.groups import BETWEEN, has_group

_CHUNK: Final = 256  # windows scaled at once

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GroupedWindows:
    """Windows as a model reads them, with a group for each.

    Attributes
    ----------
    x : ndarray (n, C, T) of float32
    groups : ndarray (n,) of str
        Whose window it is: a subject, or a stretch of a recording.
    labels : ndarray (n,) of int, optional
        For the change of the score alone.
    name : str
        Of the corpus.
    classes : tuple of str
        Empty where names are not known.
    notes : tuple of str
        What a user should know of how they were read.
    """

    x: Array
    groups: NDArray[np.str_]
    labels: NDArray[np.int64] | None = None
    name: str = "windows"
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: NDArray[Any]) -> GroupedWindows:
        """Some of the windows."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, x=self.x[rows], groups=self.groups[rows], labels=labels)

    def sha256(self) -> str:
        """Hash of the windows and of their groups."""
        digest = hashlib.sha256(repr(self.x.shape).encode())
        digest.update(np.ascontiguousarray(self.x).data)
        digest.update("\n".join(self.groups.tolist()).encode())
        return digest.hexdigest()


def read_grouped_windows(
    model: nn.Module,
    windows: Windows | ArrayLike,
    groups: Sequence[Any] | NDArray[Any] | None,
    scaling: str | None,
) -> GroupedWindows:
    """What a model is tuned on, from `Windows` in microvolts or an array (n, C, T) that the model takes as it is."""
    if isinstance(windows, Windows):
        return _read_windows(model, windows, groups, scaling)
    if scaling is not None:
        raise OptionError("scaling", scaling, "an array is taken as the model gets it: scale it, or give Windows")
    try:
        x = np.asarray(windows, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError("windows", type(windows).__name__, f"it can't be read as an array: {error}") from None
    if x.ndim != 3 or not len(x):
        raise OptionError("windows", f"shape {x.shape}", "it must be Windows or an array of windows (n, C, T)")
    if groups is None:
        raise OptionError("groups", None, "an array needs one entry for each window: whose it is")
    return _without_gaps(GroupedWindows(x, _read_groups(groups, len(x))))


def _read_windows(model: nn.Module, windows: Windows, groups: Any, scaling: str | None) -> GroupedWindows:
    if not len(windows):
        raise OptionError("windows", repr(windows), "there is none: take another split or prepare the data again")
    task = task_of(model)
    if task is not None:
        task.check(windows.classes, windows.ch_names, windows.sfreq)
        windows = windows.reorder(task.names(windows.classes))
    check_places(model, windows.ch_names)
    if scaling is None:
        scaling = scaling_for(model, windows)
    x = np.empty((len(windows), windows.n_chans, windows.n_times), dtype=np.float32)
    for start in range(0, len(windows), _CHUNK):
        x[start : start + _CHUNK] = scale(windows.take(slice(start, start + _CHUNK)), scaling)
    whose = windows.subjects if groups is None else _read_groups(groups, len(windows))
    if groups is None and len(np.unique(whose)) == len(whose):
        known = "say whose each is: groups=, subjects= of Windows, or zipbrain.tuning.stretches of one recording"
        raise OptionError("groups", "each window a subject of its own", known)
    return _without_gaps(GroupedWindows(x, whose, windows.labels, windows.name, windows.classes))


def _without_gaps(given: GroupedWindows) -> GroupedWindows:
    """All but the windows between `stretches`, whose samples are also those of the stretches beside them."""
    rows = np.flatnonzero(has_group(given.groups))
    if len(rows) == len(given):
        return given
    if not len(rows):
        raise OptionError("groups", f"{BETWEEN} for all windows", "then none belongs to a person or a stretch")
    note = f"{len(given) - len(rows)} windows that keep stretches apart (group {BETWEEN}) were left out"
    return replace(given.take(rows), notes=(*given.notes, note))


def _read_groups(groups: Any, count: int) -> NDArray[np.str_]:
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise OptionError("groups", groups, "it must have one entry for each window: whose it is")
    entries = list(groups)
    if any(name is None or name != name for name in entries):
        raise OptionError("groups", "None or NaN", "every window must belong to a person: leave out those that do not")
    names = np.asarray([str(name) for name in entries], dtype=np.str_)
    if len(names) != count:
        raise OptionError("groups", f"length {len(names)}", f"there are {count} windows, each needs one")
    return names
