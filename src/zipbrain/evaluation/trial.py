"""`Trial`: one model on one set of windows, which scores any recipe against the uncompressed model."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation import metrics
from zipbrain.evaluation.fingerprints import data_sha256, foreign_code, network_of
from zipbrain.files import json_ready
from zipbrain.models import model_name, task_of
from zipbrain.paper import DATASETS, MODELS, known_name
from zipbrain.pooling.methods.base import Mass, Method, as_method
from zipbrain.pooling.schedule import Schedule, as_schedule
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, is_compressed, restore, trace
from zipbrain.seams.prefix_cache import Prefix
from zipbrain.training.checkpoints import fingerprint
from zipbrain.training.loader import Feed, pick_device, scaling_of
from zipbrain.training.scoring import answers

log = logging.getLogger("zipbrain")

FORMAT: Final = 1
ANSWERS: Final = 1  # raise it whenever a method, a seam or a model changes an answer: older records no longer count

Logits = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one recipe does to a model on a set of windows.

    Attributes
    ----------
    recipe : Recipe or None
        None for the uncompressed model.
    logits : ndarray (n, n_outputs) of float32
        In the order of the windows.
    scores : dict
        See `zipbrain.evaluation.metrics.scores`.
    confusion : list of list of int
        Rows are true classes, columns predicted ones.
    token_counts : tuple of int
        Unprotected tokens before the first block, then after each, as one window really had them; empty for an
        uncompressed model whose blocks were not found.
    removed : float
        Share of the tokens that is gone behind the last block.
    agreement : float
        Share of the windows with the same decision as the uncompressed model.
    logit_error : float
        Mean over outputs of E[(l - l0)^2] / Var[l0], l0 being the uncompressed model's logits; of a softmax head,
        logits are centred over classes first. NaN if an output of the uncompressed model is constant.
    seconds : float
        What the pass took; less than a forward of the model costs where a prefix was reused.
    key : str
        See `Trial.key`.
    """

    recipe: Recipe | None
    logits: Logits
    scores: dict[str, float]
    confusion: list[list[int]]
    token_counts: tuple[int, ...]
    removed: float
    agreement: float
    logit_error: float
    seconds: float
    key: str

    def record(self, task: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The outcome for a `Store`, JSON throughout: what is undefined is None.

        Parameters
        ----------
        task : dict
            `Trial.task`.
        **more
            kind, label, ratio, intervals, extra and the like.
        """
        label = "original" if self.recipe is None else str(self.recipe.method["name"])
        found = {
            "format": FORMAT, "key": self.key, "kind": "trial", "label": label, "ratio": None, "task": task,
            "recipe": None if self.recipe is None else self.recipe.to_dict(), "scores": self.scores,
            "confusion": self.confusion, "token_counts": self.token_counts, "removed": self.removed,
            "agreement": self.agreement, "logit_error": self.logit_error, "seconds": self.seconds,
        }  # fmt: skip
        return json_ready(found | more)


class Trial:
    """One model on one set of windows.

    Parameters
    ----------
    model : nn.Module
        Compressed or not. The trial works on a copy, in evaluation mode and float32: the model given stays as it is.
    windows : Windows
        The split, unscaled. At least two classes must occur in it.
    device : str or torch.device
        "auto" is the GPU if there is one.
    batch_size : int
        Windows per call.
    scaling : str, optional
        See `zipbrain.data.scale`; the model's own for this corpus if not given.
    reuse_prefix : bool
        Compute what comes before the first reduction once for all recipes, in float32 to the last bit the same.
    prefix_budget : int, optional
        Bytes that this may take; windows that don't fit are run in full. 2 GiB on a CPU, 8 GiB on a GPU (at most 40 %
        of what is free there) if not given.
    checkpoint, split : str
        Names for the records.

    Attributes
    ----------
    remarks : list of str
        What the user should know, such as that the model came compressed.
    """

    def __init__(
        self, model: nn.Module, windows: Windows, *, device: str | torch.device = "auto", batch_size: int = 128,
        scaling: str | None = None, reuse_prefix: bool = True, prefix_budget: int | None = None, checkpoint: str = "",
        split: str = "test",
    ) -> None:  # fmt: skip
        if batch_size < 1:
            raise OptionError("batch_size", batch_size, "it must be at least 1")
        check_fit(model, windows)
        present = np.unique(windows.labels)
        if len(present) == 1:
            found = f"{len(windows)} windows of class {windows.classes[present[0]]!r} only"
            raise OptionError("windows", found, "scores need windows of at least two classes: take more or others")
        self.windows, self.batch_size, self.checkpoint, self.split = windows, batch_size, checkpoint, split
        self.scaling = scaling if scaling is not None else _own_scaling(model, windows)
        self.device = pick_device(device)
        self.remarks: list[str] = []
        if is_compressed(model):
            self.remarks.append("the model came compressed: its original here is the same model without compression")
            log.info("%s", self.remarks[-1])
        self.model = restore(copy.deepcopy(model)).to(self.device, torch.float32).eval()
        self._network = network_of(self.model)  # now, since a forward may leave attributes behind
        self._feed = Feed(windows, self.scaling, self.device)
        self._prefix: Prefix | None = None
        if reuse_prefix:
            self._prefix = Prefix(_budget(self.device) if prefix_budget is None else prefix_budget)

    @cached_property
    def task(self) -> dict[str, Any]:
        """Model, data and their fingerprints, as in a record of the store."""
        windows = self.windows
        return {
            "model": _name(self.model),
            "dataset": known_name(windows.name, DATASETS),
            "split": self.split,
            "windows": len(windows),
            "subjects": len(np.unique(windows.subjects)),
            "classes": list(windows.classes),
            "weights_sha256": fingerprint(self.model.state_dict()),
            "data_sha256": data_sha256(windows),
            "checkpoint": self.checkpoint,
        }

    @cached_property
    def original(self) -> Outcome:
        """The uncompressed model's outcome, computed when it is first asked for."""
        logits, seconds = self._pass(None)
        return self._outcome(None, logits, logits, self._count(None), seconds)

    def run(self, recipe: Recipe, tick: Callable[[int], None] | None = None, *, broken: str = "refuse") -> Outcome:
        """Score a recipe.

        Parameters
        ----------
        recipe : Recipe
            See `recipe_for`.
        tick : callable, optional
            Called with the number of windows done, for a progress bar.
        broken : {"refuse", "nan"}
            What to do if logits are not finite: an error, or an outcome whose scores are NaN.
        """
        before = self.original.logits
        try:
            compress(self.model, recipe)
            counts = self._count(recipe)
            logits, seconds = self._pass(tick)
        finally:
            restore(self.model)
        if broken == "nan" and not np.isfinite(logits).all():
            scores, nan = dict.fromkeys(self.original.scores, math.nan), math.nan
            return replace(
                self.original, recipe=recipe, logits=logits, scores=scores, confusion=[], token_counts=counts,
                removed=_removed(counts), agreement=nan, logit_error=nan, seconds=seconds, key=self.key(recipe),
            )  # fmt: skip
        return self._outcome(recipe, logits, before, counts, seconds)

    @property
    def prefix_seconds(self) -> float:
        """What came before the first reduction took, in the pass that noted it down: what every later pass saves."""
        return 0.0 if self._prefix is None else self._prefix.seconds

    def key(self, recipe: Recipe | None) -> str:
        """SHA-256 of all that decides the answer: network, weights, data, scaling, recipe and code.

        The code is `ANSWERS` for our own, and the source of methods and their parts that are not ours.
        """
        content = [
            ANSWERS, self._network, self.task["weights_sha256"], self.task["data_sha256"], self.scaling,
            None if recipe is None else [recipe.key(), foreign_code(recipe)],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def _pass(self, tick: Callable[[int], None] | None) -> tuple[Logits, float]:
        """Logits of all windows, and the seconds they took."""
        found = []
        started = perf_counter()
        with torch.inference_mode():
            for number, (x, _) in enumerate(self._feed.batches(np.arange(len(self._feed)), self.batch_size)):
                with nullcontext() if self._prefix is None else self._prefix.batch(self.model, number):
                    found.append(self.model(x).float())
                if tick is not None:
                    tick(len(x))
            logits = torch.cat(found).cpu().numpy()  # waits for the device
        return logits, perf_counter() - started

    def _count(self, recipe: Recipe | None) -> tuple[int, ...]:
        """Tokens of the first window; all have the same, since a schedule knows no data."""
        if recipe is None:
            try:
                compress(self.model, r=0)
                return self._count_traced()
            except ZipbrainError:  # several chains of blocks, or none
                return ()
            finally:
                restore(self.model)
        return self._count_traced()

    def _count_traced(self) -> tuple[int, ...]:
        with torch.inference_mode(), trace(self.model) as traced:
            for x, _ in self._feed.batches(np.arange(1), 1):
                self.model(x)
        return tuple(traced.token_counts)

    def _outcome(
        self, recipe: Recipe | None, logits: Logits, before: Logits, counts: tuple[int, ...], seconds: float
    ) -> Outcome:
        wrong = np.flatnonzero(~np.isfinite(logits).all(1))
        if len(wrong):
            found = f"{len(wrong)} of {len(logits)} windows with NaN or infinite logits (the first is {wrong[0]})"
            raise OptionError("windows", found, "such windows can't be scored: leave them out or prepare them again")
        labels = self.windows.labels
        probabilities = metrics.probabilities(logits)
        predictions = metrics.check(labels, probabilities).predictions
        every = range(len(self.windows.classes))
        return Outcome(
            recipe=recipe,
            logits=logits,
            scores=metrics.scores(labels, probabilities),
            confusion=metrics.sklearn_metrics().confusion_matrix(labels, predictions, labels=list(every)).tolist(),
            token_counts=counts,
            removed=_removed(counts),
            agreement=float((answers(logits) == answers(before)).mean()),
            logit_error=logit_error(logits, before),
            seconds=seconds,
            key=self.key(recipe),
        )


def recipe_for(
    model: nn.Module,
    method: Method | str | dict[str, Any],
    *,
    ratio: float | str | None = None,
    r: int | list[int] | None = None,
    schedule: Schedule | list[int] | dict[str, Any] | None = None,
    layers: Iterable[int] | None = None,
    mass: bool | Mass | dict[str, bool] = False,
    **provenance: Any,
) -> Recipe:
    """A recipe from anything that `compress` takes.

    Parameters
    ----------
    model : nn.Module
        The model, for its name.
    method, ratio, r, schedule, layers, mass
        As in `zipbrain.compress`.
    **provenance
        Other fields of the recipe: protected, tokens, within, dataset, split, metric, score.
    """
    chosen = as_method(method)
    fields = {
        "method": chosen.to_dict(),
        "schedule": as_schedule(ratio, r, schedule).to_dict(),
        "mass": asdict(Mass.of(mass) | chosen.mass),
        "model": _name(model),
        "layers": None if layers is None else tuple(layers),
    }
    return Recipe(**(fields | provenance))


def check_fit(model: nn.Module, windows: Windows) -> None:
    """Refuse windows that a model can't be scored on: none at all, other classes, other channels.

    Only what a model tells in its `config` and of its training (`zipbrain.models.Task`) is checked.
    """
    if not len(windows):
        raise OptionError("data", repr(windows), "there is none: take another split or prepare the data again")
    task = task_of(model)
    if task is not None:
        task.check(windows.classes, windows.ch_names, windows.sfreq)
    config = getattr(model, "config", None)
    if not isinstance(config, dict):
        return
    outputs, classes = config.get("n_outputs"), len(windows.classes)
    if outputs is not None and classes != max(2, outputs):
        raise OptionError("data", f"{classes} classes", f"the model has {outputs} output{'s' * (outputs > 1)}")
    names = config.get("ch_names")
    channels = len(names) if names is not None else config.get("n_chans")
    if channels is not None and channels != windows.n_chans:
        raise OptionError("data", f"{windows.n_chans} channels", f"the model was made for {channels}")


def logit_error(logits: Logits, before: Logits) -> float:
    """Mean over outputs of E[(l - l0)^2] / Var[l0] for logits (n, K), centred over classes if there are several."""
    new, old = (np.asarray(values, dtype=np.float64) for values in (logits, before))
    if old.shape[1] > 1:
        new, old = (values - values.mean(1, keepdims=True) for values in (new, old))
    error, spread = np.square(new - old).mean(0), old.var(0)
    return float(np.mean(error / spread)) if (spread > 0).all() else float("nan")


def _removed(counts: tuple[int, ...]) -> float:
    return 1 - counts[-1] / counts[0] if counts else 0.0


def _own_scaling(model: nn.Module, windows: Windows) -> str:
    try:
        return scaling_of(model_name(model), windows)
    except OptionError:
        known = f"{type(model).__name__} is none of our models, so its scaling must be given, such as 'hundred'"
        raise OptionError("scaling", None, known) from None


def _name(model: nn.Module) -> str:
    """The paper's name of a model, or the name of its class."""
    try:
        return known_name(model_name(model), MODELS)
    except OptionError:
        return type(model).__name__


def _budget(device: torch.device) -> int:
    """Bytes that prefixes may take."""
    if device.type != "cuda":
        return 2 * 2**30
    return min(8 * 2**30, int(0.4 * torch.cuda.mem_get_info(device)[0]))
