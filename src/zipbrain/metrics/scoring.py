"""Every metric once: its function, name, title, direction, kind and number format.

A new metric is a function and its `register` line: `scores`, intervals, `compare`, `report` and every CSV file have it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain._lazy import import_extra
from zipbrain.errors import OptionError
from zipbrain.paper import DATASETS, TWO_CLASSES, canonical_name

Array = NDArray[np.float64]

_ROUNDING: Final = 1e-6  # error of single-precision probabilities beyond 0 and 1
_SUM_TOLERANCE: Final = 1e-2  # rows of half-precision probabilities still pass, logits do not


@dataclass(frozen=True)
class Checked:
    """Labels (n,) and probabilities ((n,) with two classes, else (n, K)) that fit each other, and the predictions."""

    labels: NDArray[np.int64]
    probabilities: Array
    predictions: NDArray[np.int64]
    n_classes: int

    @property
    def table(self) -> Array:
        """Confusion matrix (K, K): rows are true classes, columns predicted ones."""
        counts = np.zeros((self.n_classes, self.n_classes))
        np.add.at(counts, (self.labels, self.predictions), 1)
        return counts


@dataclass(frozen=True)
class Metric:
    """A score and the facts about it.

    Attributes
    ----------
    name : str
        In results and CSV files.
    title, short : str
        In sentences and figures, and over a narrow column.
    function : callable
        Of kind ``"windows"``: one `Checked` -> float. ``"table"``: confusion matrices (m, K, K) -> (m,).
        ``"ranking"``: counts of positives and negatives down to each probability, (m, steps) each -> (m,).
    kind : {"windows", "table", "ranking"}
    sklearn : str
        The function of scikit-learn that computes a ranking's score; `function` has its resamples.
    two_classes, larger_is_better : bool
        Defined for two classes only; the largest is the best.
    form : str
        Format of the number in tables.
    """

    name: str
    title: str
    short: str
    function: Callable[..., Any]
    kind: str = "windows"
    sklearn: str = ""
    two_classes: bool = False
    larger_is_better: bool = True
    form: str = ".4f"

    def __call__(self, given: Checked) -> float:
        """The score of one test set; NaN where it is undefined."""
        if self.kind == "windows":
            return float(self.function(given))
        if self.kind == "table":
            return float(self.function(given.table[None])[0])
        if len(np.unique(given.labels)) == 1:
            return math.nan
        sklearn = import_extra("sklearn.metrics", "scikit-learn", "report", "zipbrain.metrics")
        return float(getattr(sklearn, self.sklearn)(given.labels, given.probabilities))


METRICS: Final[dict[str, Metric]] = {}  # in the order of every table


def register(
    name: str, title: str, short: str = "", **facts: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that makes a function known as a metric; see `Metric` for its arguments."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        METRICS[name] = Metric(name, title, short or title, function, **facts)
        return function

    return add


def metric_title(name: str) -> str:
    """Title of a metric; of one that is not registered here, its name in words."""
    return METRICS[name].title if name in METRICS else name.replace("_", " ")


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics in the order of every table; those that are not registered here follow."""
    held = list(names)
    return [name for name in METRICS if name in held] + [name for name in held if name not in METRICS]


@register("auroc", "AUROC", kind="ranking", sklearn="roc_auc_score", two_classes=True)
def _auroc(hits: Array, misses: Array) -> Array:
    # A positive beats every negative below it and half of those tied with it.
    below = misses[:, -1:] - misses + np.diff(misses, prepend=0) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Array = (np.diff(hits, prepend=0) * below).sum(axis=1) / (hits[:, -1] * misses[:, -1])
    return area


@register("pr_auc", "PR-AUC", kind="ranking", sklearn="average_precision_score", two_classes=True)
def _average_precision(hits: Array, misses: Array) -> Array:
    called = np.maximum(hits + misses, 1)  # none called: no hit either
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (np.diff(hits, prepend=0) * hits / called).sum(axis=1) / hits[:, -1]
    return np.where(misses[:, -1] > 0, area, np.nan)


@register("kappa", "Cohen's kappa", "Kappa", kind="table")
def _kappa(tables: Array) -> Array:
    true, called, wrong = tables.sum(axis=2), tables.sum(axis=1), 1 - np.eye(tables.shape[1])
    expected = called[:, :, None] * true[:, None, :] / tables.sum(axis=(1, 2), keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        found, by_chance = ((wrong * counts).reshape(len(tables), -1).sum(axis=1) for counts in (tables, expected))
        kappa: Array = 1 - found / by_chance
    return kappa


@register("weighted_f1", "weighted F1", "W-F1", kind="table")
def _weighted_f1(tables: Array) -> Array:
    true, called, right = tables.sum(axis=2), tables.sum(axis=1), np.diagonal(tables, axis1=1, axis2=2)
    f1 = 2 * right / np.maximum(true + called, 1)
    mean: Array = (f1 * true).sum(axis=1) / true.sum(axis=1)
    return mean


@register("accuracy", "accuracy", "Acc", kind="table")
def _accuracy(tables: Array) -> Array:
    share: Array = np.diagonal(tables, axis1=1, axis2=2).sum(axis=1) / tables.sum(axis=(1, 2))
    return share


@register("balanced_accuracy", "balanced accuracy", "BAcc", kind="table")
def _balanced_accuracy(tables: Array) -> Array:
    true, right = tables.sum(axis=2), np.diagonal(tables, axis1=1, axis2=2)
    recall = right / np.maximum(true, 1)
    mean: Array = recall.sum(axis=1) / (true > 0).sum(axis=1)
    return mean


def main_metric(corpus: str | int) -> str:
    """The metric by which the paper ranks a corpus of its own, or so many classes: auroc of two, kappa of more."""
    if isinstance(corpus, str):
        return "auroc" if canonical_name("corpus", corpus, DATASETS) in TWO_CLASSES else "kappa"
    if corpus < 2:
        raise OptionError("corpus", corpus, "a number of classes is 2 or more")
    return "auroc" if corpus == 2 else "kappa"


def probabilities(logits: ArrayLike) -> Array:
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
    values = _columns("logits", logits)
    if values.ndim == 1:
        small = np.exp(-np.abs(values))  # never overflows
        return np.asarray(np.where(values >= 0, 1, small) / (1 + small))
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares[:, 1] if shares.shape[1] == 2 else shares


def scores(
    labels: ArrayLike, probabilities: ArrayLike, *, n_classes: int | None = None, threshold: float = 0.5
) -> dict[str, float]:
    """Compute every metric over one test set.

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
        By the names in `METRICS`. What is undefined is nan, with a warning: auroc and pr_auc if `labels` holds one
        class only, kappa if labels and predictions are one same class.
    """
    given = check(labels, probabilities, n_classes=n_classes, threshold=threshold)
    found = {metric.name: metric(given) for metric in metrics_of(given.n_classes)}
    undefined = [name for name, value in found.items() if np.isnan(value)]
    if undefined:
        # Imported by name: `live` knows this package, and a device has no scikit-learn.
        sklearn = import_extra("sklearn.exceptions", "scikit-learn", "report", "zipbrain.metrics")
        words = f"labels hold class {given.labels[0]} only, so {', '.join(undefined)} is undefined and given as nan"
        warnings.warn(words, sklearn.UndefinedMetricWarning, stacklevel=2)
    return found


def metrics_of(n_classes: int) -> list[Metric]:
    """The metrics that are defined for so many classes."""
    return [metric for metric in METRICS.values() if n_classes == 2 or not metric.two_classes]


def score(logits: ArrayLike, labels: ArrayLike, metric: str) -> float:
    """One metric of logits (n, 1 or K); NaN where it is undefined or a logit is not finite."""
    if metric not in METRICS:
        raise OptionError("metric", metric, f"it must be one of {', '.join(METRICS)}")
    if not np.isfinite(logits).all():
        return float("nan")
    return METRICS[metric](check(labels, probabilities(logits)))


def biot_threshold(val_labels: ArrayLike, val_probabilities: ArrayLike) -> float:
    """Threshold of BIOT's own code: the k-th largest validation probability, k being the number of positives.

    It moves accuracy, balanced accuracy, kappa and F1, never AUROC or PR-AUC. The paper's other models use 0.5.
    """
    given = check(val_labels, val_probabilities, n_classes=2)
    positives = int(given.labels.sum())
    if positives == 0:
        raise OptionError("val_labels", "no positive", "BIOT's rule needs at least one window of class 1")
    return float(np.sort(given.probabilities)[-positives])


def per_class(
    labels: ArrayLike, probabilities: ArrayLike, classes: Sequence[str], *, threshold: float = 0.5
) -> list[dict[str, Any]]:
    """One row for every class, given their names in the order of the labels; other arguments as for `scores`.

    A row has class, support (windows that are of it), predicted (windows called it), precision, recall (sensitivity),
    specificity and f1; nan where there is nothing to divide by.
    """
    given = check(labels, probabilities, threshold=threshold)
    check_names(classes, given.n_classes)
    table = given.table
    true, called, right, total = table.sum(1), table.sum(0), np.diagonal(table), table.sum()
    with np.errstate(invalid="ignore"):
        ratios = {"precision": right / called, "recall": right / true, "f1": 2 * right / (true + called)}
        ratios["specificity"] = (total - true - called + right) / (total - true)
    return [
        {"class": str(name), "support": int(true[i]), "predicted": int(called[i])}
        | {key: float(values[i]) for key, values in ratios.items()}
        for i, name in enumerate(classes)
    ]


def check(
    labels: ArrayLike, probabilities: ArrayLike, *, n_classes: int | None = None, threshold: float = 0.5
) -> Checked:
    """Labels and probabilities that fit each other, with the predictions; others are refused."""
    values = _columns("probabilities", probabilities)
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


def _columns(name: str, given: ArrayLike) -> Array:
    """Numbers as (n,) or (n, classes); one column counts as none."""
    values = _numbers(name, given)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.size == 0:
        raise OptionError(name, values.shape, "their shape must be (n,) or (n, classes), with n at least 1")
    return values


def _numbers(name: str, given: ArrayLike) -> Array:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        allowed = "an array of numbers is needed (of a tensor, its .detach().cpu())"
        raise OptionError(name, type(given).__name__, allowed) from None
    if not np.isfinite(values).all():
        wrong = int((~np.isfinite(values)).sum())
        raise OptionError(name, f"{wrong} of {values.size} values NaN or infinite", "they must be finite")
    return values
