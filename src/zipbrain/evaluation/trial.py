"""`Trial`: one model on one set of windows, which scores any recipe against the uncompressed model."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import cached_property
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain import metrics
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation.fingerprints import data_sha256, foreign_code
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.second_look import count_looks, has_second_look
from zipbrain.models import name_of, task_of
from zipbrain.models.task import check_places
from zipbrain.paper import DATASETS, NETWORKS, known_name
from zipbrain.pooling.methods.base import Mass, Method, as_method
from zipbrain.pooling.schedule import Schedule, as_schedule
from zipbrain.profiling.flops import hand_flops
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, is_compressed, restore, trace
from zipbrain.seams.identity import network_of
from zipbrain.seams.prefix_cache import Prefix
from zipbrain.training.loader import Feed, pick_device, scaling_for
from zipbrain.training.model_setup import check_rate
from zipbrain.weights import fingerprint

log = logging.getLogger("zipbrain")

ANSWERS: Final = 1  # raised whenever a method, a seam or a model changes an answer, so that older records don't count

Logits = NDArray[np.float32]


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
    prefix_budget : int, optional
        Bytes for what comes before the first reduction, which is then computed once for all recipes, to the last bit
        the same. Windows that don't fit are run in full; 0 reuses nothing. If not given, 2 GiB on a CPU and 8 GiB on a
        GPU (at most 40 % of what is free there).
    checkpoint, split : str
        Names for the records.

    Attributes
    ----------
    remarks : list of str
        What the user should know, such as that the model came compressed.
    """

    def __init__(
        self,
        model: nn.Module,
        windows: Windows,
        *,
        device: str | torch.device = "auto",
        batch_size: int = 128,
        scaling: str | None = None,
        prefix_budget: int | None = None,
        checkpoint: str = "",
        split: str = "test",
    ) -> None:
        if batch_size < 1:
            raise OptionError("batch_size", batch_size, "it must be at least 1")
        windows = check_fit(model, windows)
        present = np.unique(windows.labels)
        if len(present) == 1:
            found = f"{len(windows)} windows of class {windows.classes[present[0]]!r} only"
            raise OptionError("windows", found, "scores need windows of at least two classes: take more or others")
        self.windows, self.batch_size, self.checkpoint, self.split = windows, batch_size, checkpoint, split
        self.scaling = scaling if scaling is not None else scaling_for(model, windows)
        self.device = pick_device(device)
        self.remarks = note_differences(model, windows)
        if is_compressed(model):
            self.remarks.append("the model came compressed: its original here is the same model without compression")
            log.info("%s", self.remarks[-1])
        self.model = restore(copy.deepcopy(model)).to(self.device, torch.float32).eval()
        self._network = network_of(self.model)  # now, since a forward may leave attributes behind
        self._applied: Recipe | None = None
        self._feed = Feed(windows, self.scaling, self.device)
        budget = _budget(self.device) if prefix_budget is None else prefix_budget
        self._prefix = Prefix(budget) if budget else None

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
    def original(self) -> Result:
        """The uncompressed model's result, computed when it is first needed."""
        applied = self._applied
        restore(self.model)
        logits, seconds, _ = self._pass(None)
        found = self._result(None, logits, self._count(None), seconds=seconds, operations=1.0)
        if applied is not None:
            compress(self.model, applied)
        return found

    @contextmanager
    def compressed(self, recipe: Recipe | None) -> Iterator[nn.Module]:
        """The trial's model, compressed by a recipe inside; may be nested for one recipe, which is applied once."""
        if recipe is None or recipe is self._applied:
            yield self.model
            return
        try:
            self._applied = recipe
            yield compress(self.model, recipe)
        finally:
            self._applied = None
            restore(self.model)

    def run(self, recipe: Recipe, tick: Callable[[int], None] | None = None, *, broken: str = "refuse") -> Result:
        """Score a recipe.

        Parameters
        ----------
        recipe : Recipe
            See `recipe_for`.
        tick : callable, optional
            Called with the number of windows done, for a progress bar.
        broken : {"refuse", "nan"}
            What to do if logits are not finite: an error, or a result whose scores are NaN.
        """
        scores = dict.fromkeys(self.original.scores, math.nan)
        with self.compressed(recipe) as model:
            counts = self._count(recipe)
            logits, seconds, looked = self._pass(tick)
            operations = _operations(model, counts, looked)
        measured: dict[str, Any] = {"seconds": seconds, "operations": operations, "looked": looked}
        if broken == "nan" and not np.isfinite(logits).all():
            return self._unscored(recipe, counts, scores, logits=logits, **measured)
        return self._result(recipe, logits, counts, **measured)

    @property
    def prefix_seconds(self) -> float:
        """What came before the first reduction took, in the pass that noted it down: what every later pass saves."""
        return 0.0 if self._prefix is None else self._prefix.seconds

    def key(self, recipe: Recipe | None) -> str:
        """SHA-256 of all that decides the answer: network, weights, data, scaling, recipe and code.

        The code is `ANSWERS` for our own, and the source of methods and their parts that are not ours.
        """
        weights, data = self.task["weights_sha256"], self.task["data_sha256"]
        code = None if recipe is None else [recipe.key(), foreign_code(recipe)]
        content = [ANSWERS, self._network, weights, data, self.scaling, code]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def _pass(self, tick: Callable[[int], None] | None) -> tuple[Logits, float, float]:
        """Logits of all windows, the seconds they took, and the share that looked twice (NaN without second look)."""
        found = []
        prefix = None if has_second_look(self.model) else self._prefix  # whole batches: a second look runs some windows
        started = perf_counter()
        with torch.inference_mode(), count_looks(self.model) as looks:
            for number, (x, _) in enumerate(self._feed.batches(np.arange(len(self._feed)), self.batch_size)):
                with nullcontext() if prefix is None else prefix.batch(self.model, number):
                    found.append(self.model(x).float())
                if tick is not None:
                    tick(len(x))
            logits = torch.cat(found).cpu().numpy()  # waits for the device
        return logits, perf_counter() - started, looks.second_look_share

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

    def _result(self, recipe: Recipe | None, logits: Logits, counts: tuple[int, ...], **measured: float) -> Result:
        wrong = np.flatnonzero(~np.isfinite(logits).all(1))
        if len(wrong):
            found = f"{len(wrong)} of {len(logits)} windows with NaN or infinite logits (the first is {wrong[0]})"
            raise OptionError("windows", found, "such windows can't be scored: leave them out or prepare them again")
        before = logits if recipe is None else self.original.logits
        assert before is not None
        labels, probabilities = self.windows.labels, metrics.probabilities(logits)
        return self._unscored(
            recipe,
            counts,
            metrics.scores(labels, probabilities),
            confusion=metrics.check(labels, probabilities).table.astype(int).tolist(),
            agreement=metrics.agreement(logits, before),
            logit_error=metrics.logit_error(logits, before),
            logits=logits,
            **measured,
        )

    def _unscored(
        self, recipe: Recipe | None, counts: tuple[int, ...], scores: dict[str, float], **measured: Any
    ) -> Result:
        label = "original" if recipe is None else str(recipe.method["name"])
        removed = 1 - counts[-1] / counts[0] if counts else 0.0
        form = None if recipe is None else recipe.to_dict()
        about = {"token_counts": counts, "removed": removed, **measured}
        return Result(self.key(recipe), "trial", label, None, self.task, form, scores, **about)


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


def check_fit(model: nn.Module, windows: Windows) -> Windows:
    """The windows, with classes in the order of the model's; refused if it can't be scored on them.

    That is: none at all, other classes, channels or rate. Only what stands in the model's `config` and in its training
    task (`zipbrain.models.Task`) is checked.
    """
    if not len(windows):
        raise OptionError("data", repr(windows), "there is none: take another split or prepare the data again")
    task = task_of(model)
    if task is not None:
        task.check(windows.classes, windows.ch_names, windows.sfreq)
        windows = windows.reorder(task.names(windows.classes))
    if (name := _name(model)) in NETWORKS:
        check_rate(name, windows.sfreq)
    config = getattr(model, "config", None)
    if not isinstance(config, dict):
        return windows
    outputs, classes = config.get("n_outputs"), len(windows.classes)
    if outputs is not None and classes != max(2, outputs):
        raise OptionError("data", f"{classes} classes", f"the model has {outputs} output{'s' * (outputs > 1)}")
    check_places(model, windows.ch_names)
    names = config.get("ch_names")
    channels = len(names) if names is not None else config.get("n_chans")
    if channels is not None and channels != windows.n_chans:
        raise OptionError("data", f"{windows.n_chans} channels", f"the model was made for {channels}")
    return windows


def note_differences(model: nn.Module, windows: Windows) -> list[str]:
    """Lines on how windows differ from those that a model was trained on, where it can be scored on them all the same.

    That is their length, which a trained model has in its `config`, and their filters, which its task has.
    """
    config, task = getattr(model, "config", None), task_of(model)
    if task is None:
        return []
    lengths = [windows.n_times, config.get("n_times") if isinstance(config, dict) else None]
    known = [n_times and f"of {n_times / windows.sfreq:g} s" for n_times in lengths]
    filters = [words and f"filtered {words}" for words in (windows.filters, task.filters)]
    words = "windows {}, but the model was trained on windows {}: scores may be lower than with those"
    return [words.format(*pair) for pair in (known, filters) if None not in pair and pair[0] != pair[1]]


def _name(model: nn.Module) -> str:
    """The paper's name of a model, or the name of its class."""
    return known_name(name_of(model), NETWORKS)


def _operations(model: nn.Module, counts: tuple[int, ...], looked: float) -> float:
    """See `Result.operations`."""
    try:
        return hand_flops(model, counts[0]).operations(0.0 if math.isnan(looked) else looked)
    except ZipbrainError:  # blocks whose sizes are not known
        return math.nan


def _budget(device: torch.device) -> int:
    """Bytes that prefixes may take."""
    if device.type != "cuda":
        return 2 * 2**30
    return min(8 * 2**30, int(0.4 * torch.cuda.mem_get_info(device)[0]))
