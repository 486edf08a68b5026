"""Decisions: the class that logits choose, how close the choice is, and what another model changes about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Logits = NDArray[np.floating[Any]]  # (n, K): one per class, or a single output whose sign decides


def decisions(logits: Logits) -> NDArray[np.int64]:
    """Class (n,) of every window: the one with the largest logit, the lower one of a tie; of one output, its sign."""
    chosen = logits[:, 0] >= 0 if logits.shape[1] == 1 else logits.argmax(1)
    return chosen.astype(np.int64)


def has_flipped(before: Logits, after: Logits) -> NDArray[np.bool_]:
    """bool (n,): windows that a compressed model decides otherwise than the original, or with logits not finite."""
    return np.asarray(~np.isfinite(after).all(1) | (decisions(after) != decisions(before)))


def agreement(logits: Logits, before: Logits) -> float:
    """Share of the windows that two sets of logits put into the same class."""
    return float((decisions(logits) == decisions(before)).mean())


def decision_margins(logits: Logits) -> NDArray[np.float64]:
    """Log-odds (n,) of the best class against the second best; of a single output, its size."""
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] == 1:
        return np.abs(values[:, 0])
    best = np.partition(values, -2, axis=1)  # NaN comes last
    return np.asarray(best[:, -1] - best[:, -2])


def is_doubtful(logits: Logits, margin: float) -> NDArray[np.bool_]:
    """bool (n,): windows that a second look at this margin runs again; NaN is doubtful at any.

    `zipbrain.seams.second_look.is_doubtful` is the same rule for tensors.
    """
    return np.asarray(~(decision_margins(logits) >= margin))


def logit_error(logits: ArrayLike, before: ArrayLike) -> float:
    """Mean over outputs of E[(l - l0)^2] / Var[l0] for logits (n, K), centred over classes if there are several."""
    new, old = (np.asarray(values, dtype=np.float64) for values in (logits, before))
    if old.shape[1] > 1:
        new, old = (values - values.mean(1, keepdims=True) for values in (new, old))
    error, spread = np.square(new - old).mean(0), old.var(0)
    return float(np.mean(error / spread)) if (spread > 0).all() else float("nan")
