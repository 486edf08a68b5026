"""What the rows of a comparison cost: latencies measured together, and onnx-tool's counts, each stored once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import nn

from zipbrain.evaluation import timings
from zipbrain.evaluation.result import Result, results_of
from zipbrain.evaluation.rounds import TimingRounds
from zipbrain.evaluation.second_look import copy_on_same_weights
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.profiling.flops import GraphCount, onnx_tool_flops
from zipbrain.recipe import Recipe


@dataclass(frozen=True, eq=False)
class RowSpec:
    """One row of a comparison before it is measured; the original has no ratio and no recipe."""

    label: str
    ratio: float | str | None = None
    recipe: Recipe | None = None
    mass: bool = False

    @property
    def name(self) -> str:
        """The label, with ``+ mass``."""
        return f"{self.label}{' + mass' * self.mass}"


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of the rows of one comparison."""

    trial: Trial
    store: Store | None
    timing: dict[str, Any]  # see `timings.surroundings`; empty if nothing is to be timed
    has_graphs: bool  # graphs are to be counted
    _networks: dict[RowSpec, nn.Module] = field(default_factory=dict)

    def keep(self, row: RowSpec, model: nn.Module) -> None:
        """Keep a copy of a row's compressed model, on the same weights, if one of its costs is still missing."""
        timed = self.timing and row.recipe is not None and self._known(self._latency_key(row)) is None
        if timed or (self.has_graphs and self._known(self._graph_key(row)) is None):
            self._networks[row] = copy_on_same_weights(model)

    def latencies(
        self, group: Sequence[tuple[RowSpec, Result]], rounds: TimingRounds, tick: Callable[[int], None]
    ) -> list[dict[str, float] | None]:
        """Latencies of the rows of one ratio; those that the store lacks are measured together, if there is time."""
        known = [self._known(self._latency_key(row)) for row, _ in group]
        missing, places = {}, {}
        for place, (row, result) in enumerate(group):
            if row.recipe is not None:
                name = f"{place} {self.trial.key(row.recipe)[:16]}"
                places[name] = place
                if known[place] is None:
                    missing[name] = timings.Candidate(
                        self._networks[row], row.recipe, result.token_counts, result.looked
                    )
        key = json.dumps([sorted(places), self.timing], sort_keys=True)
        if missing:
            measure = partial(rounds.measure, key, self.timing, tick)
            for name, latency in timings.latencies(self.trial, missing, measure, self.timing["batch"]).items():
                row, result = group[places[name]]
                known[places[name]] = extra = {"latency": latency, "timing": self.timing}
                self._add("latency", self._latency_key(row), result, extra)
        if all(extra is not None for extra in known):  # also where a killed run had stored the last one
            rounds.forget(key)
        return [None if extra is None else extra["latency"] for extra in known]

    def graph(self, row: RowSpec, result: Result) -> GraphCount:
        """onnx-tool's count of one row. A failure is not stored, so that the next run tries again."""
        known = self._known(self._graph_key(row))
        if known is not None:
            return GraphCount(known["macs"], tuple(known["uncounted"]))
        model = copy.deepcopy(self._networks[row]).cpu()
        count = onnx_tool_flops(model, timings.example(self.trial, 1).cpu())
        if count.macs is not None:
            extra = {"macs": count.macs, "uncounted": list(count.uncounted)}
            self._add("flops", self._graph_key(row), result, extra)
        return count

    def _latency_key(self, row: RowSpec) -> str:
        return f"latency:{self.trial.key(row.recipe)}:{json.dumps(self.timing, sort_keys=True)}"

    def _graph_key(self, row: RowSpec) -> str:
        return f"onnx-tool:{self.trial.key(row.recipe)}:{_version('onnx-tool')}:{torch.__version__}"

    def _known(self, key: str) -> dict[str, Any] | None:
        record = self.store.get(key) if self.store is not None else None
        found, _ = results_of([] if record is None else [record])
        return found[0].extra if found else None

    def _add(self, kind: str, key: str, result: Result, extra: dict[str, Any]) -> None:
        if self.store is not None:
            about = {"label": result.label, "ratio": result.ratio, "task": self.trial.task, "recipe": result.recipe}
            self.store.add({"key": key, "kind": kind, **about, "extra": extra})


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a count made elsewhere is not valid here
        return "none"
