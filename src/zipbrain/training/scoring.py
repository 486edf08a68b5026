"""Scores of a validation split, for choosing an epoch; `zipbrain.evaluation` has the full set of metrics."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import MissingExtra, OptionError

Array = NDArray[np.floating[Any]]


def main_metric(classes: int) -> str:
    """The paper's main metric: AUROC of two classes, Cohen's kappa of more."""
    return "auroc" if classes == 2 else "kappa"


def probabilities(logits: Array) -> NDArray[np.float64]:
    """Logits (n, 1) of a sigmoid or (n, K) of a softmax -> probabilities (n, max(K, 2)) in float64."""
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] == 1:
        positive = 0.5 * (1 + np.tanh(0.5 * values))  # the sigmoid, without overflow
        return np.concatenate((1 - positive, positive), axis=1)
    powers = np.exp(values - values.max(1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares


def answers(logits: Array) -> NDArray[np.int64]:
    """Class of every window: sigmoid of at least one half, or the largest logit."""
    chosen = logits[:, 0] >= 0 if logits.shape[1] == 1 else logits.argmax(1)
    return chosen.astype(np.int64)


def score(logits: Array, labels: NDArray[np.int64], metric: str) -> float:
    """Score logits (n, 1 or K) by ``"accuracy"``, ``"auroc"`` or ``"kappa"``; NaN where it is not defined."""
    try:
        from sklearn.metrics import accuracy_score, cohen_kappa_score, roc_auc_score
    except ModuleNotFoundError:
        raise MissingExtra("scikit-learn", "train", "Choosing an epoch by validation scores") from None
    if not np.isfinite(logits).all():
        return float("nan")
    if metric == "accuracy":
        return float(accuracy_score(labels, answers(logits)))
    if metric == "kappa":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one class only, and all right: 0 / 0
            return float(cohen_kappa_score(labels, answers(logits)))
    if metric == "auroc":
        if len(np.unique(labels)) != 2:
            return float("nan")
        return float(roc_auc_score(labels, probabilities(logits)[:, 1]))
    raise OptionError("metric", metric, "it must be accuracy, auroc or kappa")
