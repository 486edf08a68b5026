"""Latency of compressed models beside the original and beside free slicing, in one interleaved run.

A call takes the same time whatever its windows hold, but for second looks: these are timed apart and added as often as
the scored windows needed them.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain import __version__
from zipbrain.cores import free_cores
from zipbrain.evaluation.rounds import read_rounds
from zipbrain.evaluation.second_look import SplitCall, copy_on_same_weights
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.profiling import Timing
from zipbrain.profiling.machine import processor
from zipbrain.recipe import Recipe
from zipbrain.seams import compress
from zipbrain.signal.scaling import scale

# Times calls by name, in turn; nothing if there was no time for it.
Measure = Callable[[Mapping[str, Callable[[], object]]], dict[str, Timing]]


def surroundings(
    trial: Trial, store: Store | None, batch: int, rounds: int, threads: int | None = None
) -> dict[str, Any]:
    """What a latency depends on besides model and recipe: device, processor, threads, batch, versions.

    If `threads` are not given: those with which an earlier run began to time this model, so that its times go on
    counting; else as many as cores are free, of those that torch uses.
    """
    on_gpu = trial.device.type == "cuda"
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(trial.device) if on_gpu else f"CPU ({platform.machine()})",
        "cpu": processor(),
        "threads": threads,
        "batch": batch,
        "rounds": rounds,
        "torch": torch.__version__,
        "zipbrain": __version__,
    }
    if threads is None:
        found["threads"] = _earlier_threads(trial, store, found) or min(torch.get_num_threads(), free_cores())
    return found


def _earlier_threads(trial: Trial, store: Store | None, wanted: dict[str, Any]) -> int | None:
    """The threads of stored times of the same weights in the same surroundings, if there are any."""
    if store is None:
        return None
    weights = trial.task["weights_sha256"]
    finished = (r["extra"]["timing"] for r in store.records() if _is_latency(r, weights))
    begun = (entry["about"] for entry in read_rounds(store.folder).values())
    for timing in (*begun, *finished):
        threads = timing.get("threads")
        if timing == {**wanted, "threads": threads} and isinstance(threads, int) and threads > 0:
            return threads
    return None


def _is_latency(record: dict[str, Any], weights: str) -> bool:
    extra, task = record.get("extra"), record.get("task")
    return (
        record.get("kind") == "latency"
        and isinstance(task, dict)
        and task.get("weights_sha256") == weights
        and isinstance(extra, dict)
        and isinstance(extra.get("timing"), dict)
    )


@dataclass(frozen=True)
class Candidate:
    """A compressed network to be timed, and the tokens it really had before the first block and after each."""

    network: nn.Module
    recipe: Recipe
    token_counts: Sequence[int]
    looked: float = math.nan  # share of the windows that look twice; NaN without a second look

    def slicing(self) -> dict[str, Any] | None:
        """Options of free slicing to the same token counts; None if nothing is removed."""
        removed = [before - after for before, after in pairwise(self.token_counts)]
        if not any(removed):
            return None
        blocks = [block for block, r in enumerate(removed, 1) if r]
        same = {"schedule": [r for r in removed if r], "layers": blocks, "tokens": self.token_counts[0]}
        return {**self.recipe.options(), **same, "mass": False, "second_look": None}


def latencies(
    trial: Trial, candidates: Mapping[str, Candidate], measure: Measure, batch: int = 8
) -> dict[str, dict[str, float]]:
    """Candidates, the original, and free slicing to the same token counts, timed round after round by `measure`.

    Every candidate gets seconds (median of a call of `batch` windows), original_seconds, to_original and to_slicing
    (medians over rounds of ratios of calls made right after each other), and noise, see `Timing.noise`, where there
    were rounds enough. Nothing, if nothing was measured.
    """
    x = example(trial, batch)
    models: dict[str, nn.Module] = {"original": trial.model}
    looks: dict[str, SplitCall] = {}
    slices: dict[str, str] = {}  # candidate -> the model that slices to the same counts
    for name, candidate in candidates.items():
        models[f"recipe {name}"] = candidate.network
        if not math.isnan(candidate.looked):
            looks[f"recipe {name}"] = SplitCall.of(candidate.network, x, candidate.looked)
        options = candidate.slicing()
        slices[name] = "original" if options is None else f"slicing {options}"
        if options is not None and slices[name] not in models:
            models[slices[name]] = compress(copy_on_same_weights(trial.model), "free_slicing", **options)
    calls: dict[str, Callable[[], object]] = {name: partial(model, x) for name, model in models.items()}
    for name, look in looks.items():
        calls |= {name: look.first, f"again {name}": look.again}
    with torch.inference_mode():
        timings = measure(calls)
    found = {}
    for name in candidates if timings else ():
        timing = timings[f"recipe {name}"]
        if f"recipe {name}" in looks:
            timing = timing.plus(timings[f"again recipe {name}"], looks[f"recipe {name}"].weight)
        found[name] = {
            "seconds": timing.median,
            "original_seconds": timings["original"].median,
            "to_original": timing.ratio(timings["original"]),
            "to_slicing": timing.ratio(timings[slices[name]]),
        }
        noise = timing.noise(timings["original"])
        if not math.isnan(noise):
            found[name]["noise"] = noise
    return found


def example(trial: Trial, batch: int) -> Tensor:
    """The first windows, scaled, on the trial's device, (batch, C, T); from the start again if there are fewer."""
    windows = trial.windows.take(np.arange(batch) % len(trial.windows))
    return torch.from_numpy(scale(windows, trial.scaling)).to(trial.device)
