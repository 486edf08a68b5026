"""The last step of a tuning: the recipe as it will run, its decisions counted and its time measured once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain.edge.runtimes import find_runtime
from zipbrain.export.shipped_graph import graphs
from zipbrain.recipe import Recipe
from zipbrain.seams import compress
from zipbrain.tuning.answers import TOGETHER
from zipbrain.tuning.certificate import Certificate, certify
from zipbrain.tuning.margin import margins_of
from zipbrain.tuning.sample import Sample
from zipbrain.tuning.times import ORIGINAL, RUNTIMES, Times

_TIMED: Final = 64  # windows of a timed call, in batches

Array = NDArray[np.float32]
Run = Callable[[Array], NDArray[Any]]


def certify_recipe(
    model: nn.Module, recipe: Recipe, sample: Sample, times: Times, thresholds: Sequence[float]
) -> Certificate:
    """Count decisions of the original, of the first pass and of the recipe, all in the runtime."""
    first = Recipe(**{**recipe.options(), "method": recipe.method, "model": recipe.model, "second_look": None})
    before, once, twice = (
        _answers(open_network(model, one, times), sample.x, times, title)
        for one, title in ((None, "the original"), (first, "the first pass"), (recipe, "the recipe"))
    )
    looked = recipe.second_look is not None and ~(margins_of(once) >= recipe.second_look)
    return certify(
        before,
        twice,
        once,
        sample.groups,
        labels=sample.labels,
        classes=sample.classes or None,
        thresholds=thresholds,
        looked_twice=float(np.mean(looked)),
        runtime=times.runtime,
    )


def time_recipe(model: nn.Module, recipe: Recipe, sample: Sample, times: Times) -> float:
    """Time of a recipe relative to the original's, on windows of which as many are doubtful as in the whole sample."""
    once = Recipe(**{**recipe.options(), "method": recipe.method, "model": recipe.model, "second_look": None})

    def opened() -> dict[str, Callable[[], object]]:
        first = _answers(open_network(model, once, times), sample.x, times, "windows to time")
        order = np.argsort(margins_of(first), kind="stable")
        count = max(times.batch, _TIMED // times.batch * times.batch)
        rows = order[np.linspace(0, len(order) - 1, count).astype(np.intp)]  # every doubt in its share
        x = sample.x[np.random.default_rng(0).permutation(rows)]
        networks = {ORIGINAL: open_network(model, None, times), "tuned": open_network(model, recipe, times)}
        return {name: partial(_in_batches, run, x, times.batch) for name, run in networks.items()}

    return times.of_calls(f"{times.batch} {recipe.key()}", opened)["tuned"]


def open_network(model: nn.Module, recipe: Recipe | None, times: Times) -> Run:
    """What answers scaled windows (m, C, T) in the runtime, compressed by a recipe."""
    network = copy.deepcopy(model)
    if recipe is not None:
        compress(network, recipe)
    if times.runtime == "torch":
        return partial(_run_torch, network)
    kind = find_runtime(RUNTIMES[times.runtime])
    shipped, _ = graphs(network, times.shape)
    options = {"threads": times.threads}
    return kind(shipped.SerializeToString(), "the tuned model", **options).run


def _run_torch(network: nn.Module, x: Array) -> Array:
    with torch.inference_mode():
        answer: Array = network(torch.from_numpy(x)).float().numpy()
    return answer


def _answers(run: Run, x: Array, times: Times, title: str) -> Array:
    found = []
    together = max(times.batch, TOGETHER)  # a decision does not depend on the windows beside it
    for start in range(0, len(x), together):
        times.tell(f"certifying: {title}", start, len(x))
        found.append(run(np.ascontiguousarray(x[start : start + together])))
    return np.concatenate(found).astype(np.float32)


def _in_batches(run: Run, x: Array, batch: int) -> None:
    for start in range(0, len(x), batch):
        run(x[start : start + batch])
