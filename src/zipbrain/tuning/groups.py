"""Groups of windows: stretches of a recording where subjects are unknown, and the halves that choose and certify."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import OptionError

BETWEEN: Final = -1  # in place of a group's number, for windows that keep two stretches apart
SHORTEST: Final = 60.0  # seconds of a stretch
_ROUNDING: Final = 1e-6  # seconds by which computed times may be off
_HALVINGS: Final = 16  # random halvings, of which the most even one is taken


def stretches(
    starts: ArrayLike, seconds: float, *, reach: float = 0.0, recordings: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Number of the stretch that every window belongs to; -1 for windows that keep two stretches apart.

    A stretch is at least 60 s long. Between two stretches lies at least one window and the reach of the filter, so that
    no sample has a part in both. A shorter rest at the end of a recording belongs to the last stretch. `zipbrain.tune`
    leaves the windows between stretches out.

    Parameters
    ----------
    starts : array (n,)
        Second at which every window begins.
    seconds : float
        Length of a window.
    reach : float
        Length of the filters' impulse response, in seconds.
    recordings : array (n,), optional
        Name of every window's recording; one recording if not given.
    """
    times = np.asarray(starts, dtype=np.float64)
    names = np.zeros(times.shape, dtype=np.int64) if recordings is None else np.asarray(recordings)
    if times.ndim != 1 or names.shape != times.shape or not np.isfinite(times).all():
        shapes = f"{times.shape}, {names.shape}"
        raise OptionError("starts, recordings", shapes, "they must have one second and one name for every window")
    if not (seconds > 0 and reach >= 0):
        raise OptionError("seconds, reach", (seconds, reach), "a window is longer than 0 s and a reach is no less")
    numbers = np.full(times.shape, BETWEEN, dtype=np.int64)
    count = 0
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(times[rows], kind="stable")]
        for first, end in _cut(times[rows], seconds, reach):
            numbers[rows[first:end]] = count
            count += 1
    return numbers


def has_group(groups: ArrayLike) -> NDArray[np.bool_]:
    """bool (n,): False for windows that keep two stretches apart, whether groups are numbers or their names."""
    return ~np.isin(np.asarray(groups).astype(np.str_), [str(BETWEEN), str(float(BETWEEN))])


def _cut(times: NDArray[np.float64], seconds: float, reach: float) -> Iterator[tuple[int, int]]:
    """First window of every stretch of one recording and the one behind its last, given times in order."""
    first = 0
    while True:
        end = int(np.searchsorted(times, times[first] + SHORTEST - seconds - _ROUNDING)) + 1
        after = times[min(end, len(times)) - 1] + 2 * seconds + reach
        following = int(np.searchsorted(times, after - _ROUNDING))
        if following == len(times) or times[-1] + seconds - times[following] < SHORTEST - _ROUNDING:
            yield first, len(times)
            return
        yield first, end
        first = following


def halves(groups: ArrayLike, seed: int = 0) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of the half that chooses and of the half that certifies: whole groups, about as many windows in each.

    Of some random halvings of the groups the most even one is taken; an odd group certifies.
    """
    names = np.asarray(groups)
    if names.ndim != 1:
        raise OptionError("groups", names.shape, "it must have one name for every window")
    numbers = np.unique(names, return_inverse=True)[1]
    sizes = np.bincount(numbers) if len(names) else np.zeros(0, dtype=np.int64)
    if len(sizes) < 2:
        raise OptionError("groups", len(sizes), "half of the groups choose and the others certify: give at least two")
    rng = np.random.default_rng(seed)
    halvings = [rng.permutation(len(sizes))[: len(sizes) // 2] for _ in range(_HALVINGS)]
    choosing = min(halvings, key=lambda half: abs(2 * int(sizes[half].sum()) - len(names)))
    is_choosing = np.isin(numbers, choosing)
    return np.flatnonzero(is_choosing), np.flatnonzero(~is_choosing)
