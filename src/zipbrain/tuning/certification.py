"""`Certification`: the last step of a tuning, where the recipe's decisions are counted and its time is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain.edge.runtimes import find_runtime
from zipbrain.export.shipped_graph import graphs
from zipbrain.metrics import decision_margins, is_doubtful
from zipbrain.recipe import Recipe
from zipbrain.seams import compress
from zipbrain.seams.forward import plan_of
from zipbrain.tuning.certificate import Certificate, ComparedLogits, certify
from zipbrain.tuning.grouped_windows import GroupedWindows
from zipbrain.tuning.logit_cache import TOGETHER
from zipbrain.tuning.times import ORIGINAL, RUNTIMES, Times

_TIMED: Final = 64  # windows that one timed call runs, in batches

Array = NDArray[np.float32]
Run = Callable[[Array], Array]


class Certification:
    """The original and the recipe's network, opened in the runtime, and the windows of the certifying half."""

    def __init__(self, model: nn.Module, recipe: Recipe, windows: GroupedWindows, times: Times) -> None:
        self.recipe, self.windows, self.times = recipe, windows, times
        network = compress(copy.deepcopy(model), recipe)
        if times.runtime == "torch":
            self.original: Run = partial(_run_torch, copy.deepcopy(model))
            self.tuned: Run = partial(_run_torch, network)
            self._once: Run = partial(_look_once, network)
            return
        kind = find_runtime(RUNTIMES[times.runtime])
        opened = []
        for number, one in enumerate((model, network)):
            times.tell("exporting what was chosen", number, 2)
            shipped, _ = graphs(one, times.shape)
            opened.append(kind(shipped.SerializeToString(), "the tuned model", threads=times.threads))
        self.original, self.tuned = opened[0].run, opened[1].run
        self._once = partial(_look_at_graph, opened[1]) if opened[1].takes_margin else opened[1].run

    @cached_property
    def first(self) -> Array:
        """Logits of the recipe's first pass."""
        return self._run_all(self._once, "the first pass")

    def certificate(self, thresholds: Sequence[float]) -> Certificate:
        """The certificate, from the decisions of the original and of the recipe."""
        margin = self.recipe.second_look
        before, after = self._run_all(self.original, "the original"), self._run_all(self.tuned, "the recipe")
        return certify(
            ComparedLogits(before, after, self.first),
            self.windows.groups,
            labels=self.windows.labels,
            classes=self.windows.classes or None,
            thresholds=thresholds,
            looked_twice=0.0 if margin is None else float(is_doubtful(self.first, margin).mean()),
            runtime=self.times.runtime,
        )

    def time(self) -> float:
        """Time relative to the original's, on windows of which as many are doubtful as in the whole half."""
        batch = self.times.batch

        def opened() -> dict[str, Callable[[], object]]:
            order = np.argsort(decision_margins(self.first), kind="stable")
            count = max(batch, _TIMED // batch * batch)
            rows = order[
                np.linspace(0, len(order) - 1, count).astype(np.intp)
            ]  # so that as many are doubtful as in the whole half
            x = self.windows.x[np.random.default_rng(0).permutation(rows)]
            networks = {ORIGINAL: self.original, "tuned": self.tuned}
            return {name: partial(_run_batches, run, x, batch) for name, run in networks.items()}

        return self.times.of_calls("what was chosen", f"{self.windows.sha256()[:8]} {self.recipe.key()}", opened)[
            "tuned"
        ]

    def _run_all(self, run: Run, title: str) -> Array:
        found, x = [], self.windows.x
        together = max(self.times.batch, TOGETHER)  # any number: logits don't depend on the other windows of a call
        for start in range(0, len(x), together):
            self.times.tell(f"certifying: {title}", start, len(x))
            found.append(run(np.ascontiguousarray(x[start : start + together])))
        return np.concatenate(found).astype(np.float32)


def _run_torch(network: nn.Module, x: Array) -> Array:
    with torch.inference_mode():
        answer: Array = network(torch.from_numpy(x)).float().numpy()
    return answer


def _look_once(network: nn.Module, x: Array) -> Array:
    plan = plan_of(network)
    margin, plan.second_look = plan.second_look, None
    try:
        return _run_torch(network, x)
    finally:
        plan.second_look = margin


def _look_at_graph(opened: Any, x: Array) -> Array:
    answer: Array = opened.look(x, 0.0)[0]  # no margin is below zero
    return answer


def _run_batches(run: Run, x: Array, batch: int) -> None:
    for start in range(0, len(x), batch):
        run(x[start : start + batch])
