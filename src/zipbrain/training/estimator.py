"""`EEGClassifier`: fine-tuning as a scikit-learn estimator, for cross-validation and pipelines."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from zipbrain.channels import check_channels
from zipbrain.data.windows import Windows
from zipbrain.errors import MissingExtra, OptionError, ShapeError
from zipbrain.metrics import decisions, probabilities
from zipbrain.numerals import finite_number
from zipbrain.pooling import Method
from zipbrain.pooling.methods.base import as_method
from zipbrain.pooling.schedule import as_schedule
from zipbrain.recipe import as_recipe
from zipbrain.seams import compress
from zipbrain.training.captured_steps import Choice
from zipbrain.training.finetune import finetune
from zipbrain.training.inference import predict
from zipbrain.training.model_setup import choose_settings
from zipbrain.training.settings import TrainingSettings

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import train_test_split
    from sklearn.utils import Tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d
except ModuleNotFoundError:
    raise MissingExtra("scikit-learn", "train", "zipbrain.training.EEGClassifier") from None


class EEGClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An EEG foundation model as a scikit-learn classifier.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm", "cbramod"}
        The model.
    checkpoint : path or sequence of path, optional
        Where to start from: folders of `save_pretrained` or files of the official repositories. Random if not given.
    settings : {"paper", "scratch"} or TrainingSettings, optional
        The paper's if there is a checkpoint, ours if there is none.
    ch_names : sequence of str, optional
        Channels of an array; ``mne.Epochs`` bring theirs. LaBraM and EEGPT need them.
    sfreq : float
        Sampling rate of an array in Hz; ``mne.Epochs`` bring theirs. The models read 200 Hz (EEGPT: also 256).
    units : {"nV", "uV", "mV", "V"}
        Of an array; ``mne.Epochs`` are in volts.
    check : bool
        Refuse amplitudes that are clearly no EEG in these units; see `zipbrain.data.Windows.from_arrays`.
    epochs, batch_size, lr : optional
        In place of those settings.
    overrides : mapping, optional
        In place of any further ones, by name.
    validation_fraction : float
        Share of the training windows set aside to choose an epoch, drawn by class; 0 keeps the last epoch.
    ratio : float or "max", optional
        Compress the trained model: share of the tokens to remove.
    method : str or Method
        How to compress.
    device : str
        "auto" is the GPU if there is one.
    micro_batch : int, optional
        Windows per forward and backward pass, where a batch does not fit.
    capture : {"auto", True, False}
        Capture training steps in CUDA graphs: see `zipbrain.training.finetune`.
    random_state : int, optional
        Seed of everything random; that of the settings if not given.

    Attributes
    ----------
    classes_ : ndarray
        Labels as they were given.
    model_ : nn.Module
        The trained model, compressed if asked.
    settings_ : TrainingSettings
        What was run.
    history_ : list of dict
        One per epoch.
    n_features_in_ : int
        Samples of a window; `n_chans_` has its channels.

    Notes
    -----
    Input is (n, C, T) or (n, 1, C, T), or ``mne.Epochs``, whose EEG channels are taken; also a list of ``mne.Epochs``,
    as which scikit-learn hands on the folds of a cross-validation. scikit-learn's `check_estimator` makes 2-D tables;
    with each feature drawn out into a channel it passes, but for what docs/guides/training.md lists.

    Examples
    --------
    >>> from zipbrain.training import EEGClassifier
    >>> classifier = EEGClassifier(
    ...     "biot", epochs=1, ch_names=["C3", "C4"], overrides={"options": {"dim": 16, "depth": 1}}
    ... )
    >>> x, y = np.random.default_rng(0).normal(0, 20, (8, 2, 400)), [0, 1] * 4
    >>> classifier.fit(x, y).predict_proba(x).shape
    (8, 2)
    """

    def __init__(
        self,
        model: str = "labram",
        *,
        checkpoint: str | Path | Sequence[str | Path] | None = None,
        settings: str | TrainingSettings | None = None,
        ch_names: Sequence[str] | None = None,
        sfreq: float = 200.0,
        units: str = "uV",
        check: bool = True,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        overrides: Mapping[str, Any] | None = None,
        validation_fraction: float = 0.0,
        ratio: float | str | None = None,
        method: str | Method = "zipbrain",
        device: str = "auto",
        micro_batch: int | None = None,
        capture: Choice = "auto",
        random_state: int | None = None,
    ) -> None:
        self.model = model
        self.checkpoint = checkpoint
        self.settings = settings
        self.ch_names = ch_names
        self.sfreq = sfreq
        self.units = units
        self.check = check
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.overrides = overrides
        self.validation_fraction = validation_fraction
        self.ratio = ratio
        self.method = method
        self.device = device
        self.micro_batch = micro_batch
        self.capture = capture
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike | None = None) -> EEGClassifier:
        """Train the model.

        Parameters
        ----------
        X : array (n, C, T), mne.Epochs, or a list of these
            Windows.
        y : array (n,), optional
            Labels of any kind; the event codes of ``mne.Epochs`` if not given.
        """
        if as_recipe(self.method) is None:
            as_method(self.method)
        if self.ratio is not None:
            as_schedule(self.ratio)
        X = _joined(X)
        if y is None:
            if not _is_epochs(X):
                wish = "EEGClassifier requires y to be passed, but the target y is None: arrays come without labels"
                raise OptionError("y", None, wish)
            y = X.events[:, 2]
        windows = self._windows(X)
        classes, codes = _classes(y, len(windows))
        windows.labels, windows.classes = codes, tuple(str(label) for label in classes)
        start = [] if self.checkpoint is None else self.checkpoint
        init = [start] if isinstance(start, str | Path) else list(start)
        settings = choose_settings(self.model, windows, self.settings, bool(init))
        named = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr, "seed": self.random_state}
        given = {name: value for name, value in named.items() if value is not None}
        settings = settings.override(**{**given, **(self.overrides or {})})
        training, validation = windows, None
        if self.validation_fraction:
            rows, aside = _set_aside(self.validation_fraction, codes, settings.seed)
            training, validation = windows.select(rows), windows.select(aside)
        how: dict[str, Any] = {"device": self.device, "micro_batch": self.micro_batch, "capture": self.capture}
        result = finetune(self.model, training, validation, settings=settings, init=init, **how)
        if self.ratio is not None:
            compress(result.model, self.method, ratio=self.ratio)
        self.model_, self.settings_, self.history_ = result.model, result.settings, result.outcome.history
        self.classes_, self.ch_names_, self.sfreq_ = classes, list(windows.ch_names), windows.sfreq
        self.n_chans_, self.n_features_in_ = windows.n_chans, windows.n_times
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits: (n,) for two classes, positive for the second; (n, classes) for more."""
        logits = self._logits(X)
        if len(self.classes_) > 2:
            return logits
        margin: NDArray[np.float64] = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        return margin

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes: (n, classes)."""
        shares = probabilities(self._logits(X))
        return shares if shares.ndim == 2 else np.stack((1 - shares, shares), axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of every window: (n,)."""
        chosen = decisions(self._logits(X))
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def _logits(self, X: Any) -> NDArray[np.float64]:
        if not hasattr(self, "model_"):
            raise NotFittedError("This EEGClassifier is not fitted yet: call fit first")
        windows = self._windows(_joined(X), (self.n_chans_, self.n_features_in_))
        if windows.sfreq != self.sfreq_:
            raise OptionError("X", f"{windows.sfreq:g} Hz", f"the model was fitted at {self.sfreq_:g} Hz")
        check_channels("X", windows.ch_names, self.ch_names_, "the model was fitted on")
        return predict(self.model_, windows, device=self.device).astype(np.float64)

    def _windows(self, X: Any, fitted: tuple[int, int] | None = None) -> Windows:
        """Windows without labels, from an array or from ``mne.Epochs``; of the shape (C, T) that was `fitted`."""
        found = Windows.from_epochs(X, check=self.check) if _is_epochs(X) else None
        x = _as_numbers(X if found is None else found.take(slice(None)))
        if fitted is not None and x.shape[1:] != fitted:
            own = self.ch_names if found is None else found.ch_names
            if own is not None and len(own) == x.shape[1]:
                check_channels("X", [*map(str, own)], self.ch_names_, "the model was fitted on")
            raise ShapeError("X", x.shape, f"the model was fitted on (n, {fitted[0]}, {fitted[1]})")
        if found is not None:
            own, given = list(found.ch_names), self.ch_names
            if fitted is None and given is not None and [name.upper() for name in own] != [*map(str.upper, given)]:
                words = f"ch_names ({', '.join(given)}) are not used: mne.Epochs bring theirs ({', '.join(own)})"
                warnings.warn(words, stacklevel=3)
            return found
        count = x.shape[1]
        names = [f"channel {i}" for i in range(count)] if self.ch_names is None else [str(n) for n in self.ch_names]
        about: dict[str, Any] = {"ch_names": names, "sfreq": float(self.sfreq), "classes": ["0"]}
        blank = np.zeros(len(x), dtype=np.int64)
        return Windows.from_arrays(x, blank, **about, units=self.units, check=self.check)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.non_deterministic = torch.cuda.is_available()
        return tags


def _classes(y: Any, count: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes among labels, and which one every window has."""
    missing = sum(map(_is_missing, np.asarray(y, dtype=object).ravel()))
    if missing:
        raise OptionError(
            "y", f"{missing} labels that are None, NA, NaT or NaN", "every window needs one: leave those out"
        )
    try:
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise OptionError("y", "labels of several kinds", f"they must be all names or all numbers ({error})") from None
    if len(labels) != count:
        raise ShapeError("y", labels.shape, f"X has {count} windows and needs one label for each")
    if len(classes) < 2:
        raise OptionError("y", classes.tolist(), "it holds one class: at least two classes are needed")
    return classes, codes


def _is_missing(label: Any) -> bool:
    """True for None, NaN, NaT and pandas' NA, which has no truth value."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):
        return True


def _set_aside(fraction: Any, codes: NDArray[np.intp], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to train on and rows to choose an epoch with, drawn by class."""
    if not 0 < finite_number("validation_fraction", fraction) < 1:
        raise OptionError("validation_fraction", fraction, "it must lie between 0 and 1")
    try:
        rows, aside = train_test_split(np.arange(len(codes)), test_size=fraction, stratify=codes, random_state=seed)
        kept = min(len(np.unique(codes[part])) for part in (rows, aside))
    except ValueError:  # a part would be empty or have fewer windows than there are classes
        kept = 0
    if kept < 2:
        found = f"{fraction} of {len(codes)} windows ({np.bincount(codes).min()} of the rarest class)"
        raise OptionError("validation_fraction", found, "both parts need windows of two classes or more")
    return rows, aside


def _as_numbers(X: Any) -> NDArray[Any]:
    """An array as finite numbers (n, C, T)."""
    if hasattr(X, "toarray"):
        raise ShapeError("X", type(X).__name__, "sparse input is not taken: X.toarray() is a plain array")
    x = np.asarray(X)
    if x.dtype.kind == "c":
        raise ShapeError("X", f"{x.dtype} {x.shape}", "windows are real numbers. Complex data not supported")
    if x.dtype.kind == "O":
        x = x.astype(np.float64)
    if x.ndim == 4 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 3 or x.dtype.kind not in "fiu":
        wish = "numbers (n, C, T), or mne.Epochs, are needed. Reshape your data"
        raise ShapeError("X", f"{x.dtype} {x.shape}", wish)
    if not x.size:
        raise ShapeError("X", x.shape, "a minimum of 1 window, 1 channel and 1 sample is required")
    if not np.isfinite(x).all():
        raise OptionError("X", "NaN or infinity", "it must be finite")
    return x.astype(np.float32, copy=False)


def _joined(X: Any) -> Any:
    """One ``mne.Epochs`` from a list of them: scikit-learn picks the windows of a fold one by one."""
    if not isinstance(X, list | tuple) or not X or not all(map(_is_epochs, X)):
        return X
    import mne

    return mne.concatenate_epochs(list(X), verbose="error")


def _is_epochs(X: Any) -> bool:
    return hasattr(X, "get_data") and hasattr(X, "events") and hasattr(X, "info")
