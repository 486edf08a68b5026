"""From microvolts to what a model was trained on: x / 100, division by a quantile, z-scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import OptionError, ShapeError

Array = NDArray[np.floating[Any]]


def scale(x: Array, convention: str) -> Array:
    """Scale windows the way a model expects them.

    Parameters
    ----------
    x : ndarray (m, C, T)
        Microvolts; one window (C, T) works too.
    convention : {"none", "hundred", "q95", "zscore", "zscore-average"}
        ``"hundred"``: x / 100 (LaBraM; EEGPT on TUAB and TUEV). ``"q95"``: every channel of a window divided by the
        95 % quantile of its absolute values plus 1e-8 (BIOT, TFM). ``"zscore"``: every channel of a window to mean 0
        and standard deviation 1; a flat channel becomes 0. ``"zscore-average"``: z-scores, then the mean over channels
        is subtracted at every time step (EEGPT elsewhere). ``"none"``: unchanged.

    Returns
    -------
    scaled : ndarray, same shape and dtype
    """
    if convention not in SCALINGS:
        raise OptionError("convention", convention, f"known scalings are {', '.join(SCALINGS)}")
    x = np.asarray(x)
    if x.ndim < 2 or not np.issubdtype(x.dtype, np.floating):
        raise ShapeError("x", f"{x.dtype} {x.shape}", "it must be floating point (m, C, T)")
    return SCALINGS[convention](x).astype(x.dtype, copy=False)


def _q95(x: Array) -> Array:
    # float64: a float32 sum with 1e-8 would lose the 1e-8 for all but flat channels
    return x / (np.quantile(np.abs(x).astype(np.float64), 0.95, axis=-1, keepdims=True) + 1e-8)


def _zscore(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True, dtype=np.float64)
    deviation = centred.std(-1, keepdims=True)
    # A constant such as 0.1 has a mean that is off by rounding; what is left of it is not a signal.
    flat = deviation <= 1e-6 * np.abs(x).max(-1, keepdims=True)
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, deviation))


def _without_mean(x: Array) -> Array:
    return np.asarray(x - x.mean(-2, keepdims=True))


SCALINGS: Final[dict[str, Callable[[Array], Array]]] = {
    "none": lambda x: x,
    "hundred": lambda x: x / 100,
    "q95": _q95,
    "zscore": _zscore,
    "zscore-average": lambda x: _without_mean(_zscore(x)),
}
