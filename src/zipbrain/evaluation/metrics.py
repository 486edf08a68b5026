"""The paper's metrics, computed by scikit-learn over the whole test set; everything here takes probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import MissingExtra, OptionError
from zipbrain.paper import DATASETS, canonical_name

BINARY: Final = ("accuracy", "balanced_accuracy", "auroc", "pr_auc", "kappa", "weighted_f1")
MULTICLASS: Final = ("accuracy", "balanced_accuracy", "kappa", "weighted_f1")

_TWO_CLASSES: Final = ("TUAB", "EEGMAT")
_ROUNDING: Final = 1e-6  # of single precision, beyond 0 and 1
_SUM_TOLERANCE: Final = 1e-2  # rows of half-precision probabilities still pass, logits do not


def main_metric(corpus: str | int) -> str:
    """Name of the metric by which the paper ranks: AUROC with two classes, Cohen's kappa with more.

    Parameters
    ----------
    corpus : str or int
        One of the paper's corpora, or a number of classes.
    """
    if isinstance(corpus, str):
        return "auroc" if canonical_name("corpus", corpus, DATASETS) in _TWO_CLASSES else "kappa"
    if corpus < 2:
        raise OptionError("corpus", corpus, "a number of classes is 2 or more")
    return "auroc" if corpus == 2 else "kappa"


def probabilities(logits: ArrayLike) -> NDArray[np.float64]:
    """Turn a model's logits into what the other functions take.

    Parameters
    ----------
    logits : array (n,), (n, 1), (n, 2) or (n, K)
        One logit a window (sigmoid), or one per class (softmax).

    Returns
    -------
    probabilities : array (n,) or (n, K)
        With one logit or two, the probability of class 1; with more, of every class.
    """
    values = _numbers("logits", logits)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise OptionError("logits", values.shape, "their shape must be (n,), (n, 1) or (n, classes)")
    special = _scipy_special()
    if values.ndim == 1:
        return np.asarray(special.expit(values))
    shares: NDArray[np.float64] = special.softmax(values, axis=1)
    return shares[:, 1] if shares.shape[1] == 2 else shares


def scores(
    labels: ArrayLike, probabilities: ArrayLike, *, n_classes: int | None = None, threshold: float = 0.5
) -> dict[str, float]:
    """Compute the metrics of the paper over one test set.

    Parameters
    ----------
    labels : array (n,) of int
        0 to n_classes - 1.
    probabilities : array (n,), (n, 1) or (n, K)
        Probabilities, not logits (see `probabilities`): of class 1, or of every class. Two columns count as binary.
    n_classes : int, optional
        What the number of classes must be; taken from `probabilities` if not given.
    threshold : float
        Binary only: class 1 is predicted from here on (``>=``).

    Returns
    -------
    scores : dict
        accuracy, balanced_accuracy (mean recall over the classes present in `labels`), kappa (Cohen's, unweighted),
        weighted_f1; with two classes also auroc and pr_auc (average precision). What is undefined is nan, with a
        warning: auroc and pr_auc if `labels` holds one class only, kappa if labels and predictions are one same class.
    """
    given = check(labels, probabilities, n_classes=n_classes, threshold=threshold)
    sklearn = sklearn_metrics()
    truth, predicted = given.labels, given.predictions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an absent class; what is undefined is told below, once
        found = {
            "accuracy": sklearn.accuracy_score(truth, predicted),
            "balanced_accuracy": sklearn.balanced_accuracy_score(truth, predicted),
        }
        if given.n_classes == 2:
            both = len(np.unique(truth)) == 2
            found["auroc"] = sklearn.roc_auc_score(truth, given.probabilities) if both else np.nan
            found["pr_auc"] = sklearn.average_precision_score(truth, given.probabilities) if both else np.nan
        found["kappa"] = sklearn.cohen_kappa_score(truth, predicted)
        found["weighted_f1"] = sklearn.f1_score(truth, predicted, average="weighted", zero_division=0.0)
    undefined = [name for name, value in found.items() if np.isnan(value)]
    if undefined:
        _warn(f"labels hold class {truth[0]} only, so {', '.join(undefined)} is undefined and given as nan")
    return {name: float(value) for name, value in found.items()}


def biot_threshold(val_labels: ArrayLike, val_probabilities: ArrayLike) -> float:
    """Threshold of BIOT's own code: the k-th largest validation probability, k being the number of positives.

    So as many validation windows are called positive as there are (more where probabilities are tied). It moves
    accuracy, balanced accuracy, kappa and F1, never AUROC or PR-AUC. The paper's other models use 0.5.
    """
    given = check(val_labels, val_probabilities, n_classes=2)
    positives = int(given.labels.sum())
    if positives == 0:
        raise OptionError("val_labels", "no positive", "BIOT's rule needs at least one window of class 1")
    return float(np.sort(given.probabilities)[-positives])


def per_class(
    labels: ArrayLike, probabilities: ArrayLike, classes: Sequence[str], *, threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Report on every class.

    Parameters
    ----------
    labels, probabilities, threshold
        As for `scores`.
    classes : sequence of str
        Their names, in the order of the labels.

    Returns
    -------
    rows : list of dict
        class, support (windows that are of it), predicted (windows called it), precision, recall (sensitivity),
        specificity, f1; nan where there is nothing to divide by.
    """
    given = check(labels, probabilities, threshold=threshold)
    check_names(classes, given.n_classes)
    sklearn = sklearn_metrics()
    every = list(range(given.n_classes))
    truth, predicted = given.labels, given.predictions
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(
        truth, predicted, labels=every, zero_division=np.nan
    )
    rows = []
    for i, name in enumerate(classes):
        others = truth != i
        rows.append(
            {
                "class": str(name),
                "support": int(support[i]),
                "predicted": int((predicted == i).sum()),
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "specificity": float((predicted[others] != i).mean()) if others.any() else float("nan"),
                "f1": float(f1[i]),
            }
        )
    return rows


@dataclass(frozen=True)
class Checked:
    """Labels (n,) and probabilities ((n,) with two classes, else (n, K)) that fit each other, and the predictions."""

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    predictions: NDArray[np.int64]
    n_classes: int


def check(
    labels: ArrayLike, probabilities: ArrayLike, *, n_classes: int | None = None, threshold: float = 0.5
) -> Checked:
    """Refuse labels and probabilities that don't fit, and predict."""
    values = _numbers("probabilities", probabilities)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.size == 0:
        raise OptionError("probabilities", values.shape, "their shape must be (n,) or (n, classes), with n at least 1")
    if values.min() < -_ROUNDING or values.max() > 1 + _ROUNDING:
        found = f"values from {values.min():.4g} to {values.max():.4g}"
        raise OptionError("probabilities", found, "they lie between 0 and 1: probabilities() makes them from logits")
    if values.ndim == 2 and np.abs(values.sum(axis=1) - 1).max() > _SUM_TOLERANCE:
        raise OptionError("probabilities", "rows that don't add up to 1", "softmax over the classes gives such rows")
    found_classes = 2 if values.ndim == 1 else values.shape[1]
    if n_classes is not None and n_classes != found_classes:
        raise OptionError("n_classes", n_classes, f"the probabilities are those of {found_classes} classes")
    if values.ndim == 2 and found_classes == 2:
        values = values[:, 1]
    if not 0 <= threshold <= 1:
        raise OptionError("threshold", threshold, "it must lie between 0 and 1")
    truth = _numbers("labels", labels)
    if truth.shape != (len(values),):
        raise OptionError("labels", truth.shape, f"their shape must be ({len(values)},), one for every probability")
    if (truth != np.floor(truth)).any() or truth.min() < 0 or truth.max() >= found_classes:
        found = f"values from {truth.min():g} to {truth.max():g}"
        raise OptionError("labels", found, f"they must be whole numbers from 0 to {found_classes - 1}")
    predictions = values.argmax(axis=1) if values.ndim == 2 else (values >= threshold)
    return Checked(truth.astype(np.int64), values, predictions.astype(np.int64), found_classes)


def check_names(classes: Sequence[str], n_classes: int) -> None:
    """Refuse a list of class names of the wrong length."""
    if isinstance(classes, str) or len(classes) != n_classes:
        raise OptionError("classes", classes, f"{n_classes} names are needed")


def _numbers(name: str, given: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        allowed = "an array of numbers is needed (of a tensor, its .detach().cpu())"
        raise OptionError(name, type(given).__name__, allowed) from None
    if not np.isfinite(values).all():
        wrong = int((~np.isfinite(values)).sum())
        raise OptionError(name, f"{wrong} of {values.size} values NaN or infinite", "they must be finite")
    return values


def _warn(message: str) -> None:
    from sklearn.exceptions import UndefinedMetricWarning

    warnings.warn(message, UndefinedMetricWarning, stacklevel=3)


def sklearn_metrics() -> Any:
    """The module sklearn.metrics, or a refusal that names the extra."""
    try:
        import sklearn.metrics
    except ModuleNotFoundError as missing:
        if missing.name != "sklearn":
            raise
        raise MissingExtra("scikit-learn", "report", "zipbrain.evaluation") from None
    return sklearn.metrics


def _scipy_special() -> Any:
    try:
        import scipy.special
    except ModuleNotFoundError as missing:
        if missing.name != "scipy":
            raise
        raise MissingExtra("scipy", "report", "zipbrain.evaluation") from None
    return scipy.special
