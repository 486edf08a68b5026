"""Your own arrays: refusals of shapes, channel names, rates and labels that can't be, before they become windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import OptionError, ShapeError
from zipbrain.signal.montage import check_distinct


def check_axes(data: NDArray[Any], ch_names: Sequence[str], sfreq: object) -> None:
    """Refuse an array that is not (n, C, T), names that don't tell its channels apart, and a rate that is none."""
    if data.ndim != 3 or data.dtype.kind not in "fiu":
        raise ShapeError("x", f"{data.dtype} {data.shape}", "it must be numbers (n, C, T) in microvolts")
    if not data.shape[1] or not data.shape[2]:
        raise ShapeError("x", data.shape, "it must be (n, C, T) with at least one channel and one sample")
    if len(ch_names) != data.shape[1]:
        raise OptionError("ch_names", list(ch_names), f"x has {data.shape[1]} channels and needs a name for each")
    if isinstance(ch_names, str) or not all(isinstance(name, str) for name in ch_names):
        raise OptionError("ch_names", ch_names, "they must be a sequence of names, such as ['C3', 'C4']")
    check_distinct("ch_names", ch_names)
    if not isinstance(sfreq, Real) or not 0 < float(sfreq) < math.inf:
        raise OptionError("sfreq", sfreq, "a sampling rate is a positive number of Hz")


def read_classes(given: ArrayLike, classes: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as positions in the classes, and the names of the classes."""
    y = np.asarray(given)
    if y.ndim != 1:
        raise ShapeError("y", y.shape, "labels must be a flat sequence, one per window")
    if classes is not None and len(set(map(str, classes))) < len(classes):
        raise OptionError("classes", list(classes), "each class must be named once")
    if y.dtype.kind in "iub":
        labels = y.astype(np.int64)
        found = np.unique(labels)
        if classes is None and y.dtype.kind != "b" and not np.array_equal(found, np.arange(len(found))):
            low, high = int(found[0]), int(found[-1])
            todo = f"subtract {low}" if high - low == len(found) - 1 else "number them anew"
            wish = f"they must run from 0 without gaps: {todo}, or give classes"
            raise OptionError("y", f"labels {low} to {high}", wish)
        names = tuple(map(str, range(int(labels.max(initial=-1)) + 1) if classes is None else classes))
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
            raise OptionError("y", int(labels.max()), f"labels run from 0 to {len(names) - 1}")
        return labels, names
    as_given = given if isinstance(given, list | tuple) else y  # numpy makes text of a NaN among names
    blank = sum(label is None or (isinstance(label, float) and math.isnan(label)) for label in as_given)
    if blank:
        raise OptionError("y", f"NaN or None for {blank} of {len(y)} windows", "every window needs a label")
    words = [str(label) for label in y]
    names = tuple(sorted(set(words)) if classes is None else map(str, classes))
    place = {word: i for i, word in enumerate(names)}
    unknown = sorted(set(words) - place.keys())
    if unknown:
        raise OptionError("y", unknown[0], f"the classes are {', '.join(names)}")
    return np.array([place[word] for word in words], dtype=np.int64), names
