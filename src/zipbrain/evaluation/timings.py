"""Latency of compressed models beside the original and beside free slicing, in one interleaved run."""

from __future__ import annotations

import copy
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
from zipbrain.evaluation.trial import Trial
from zipbrain.profiling import interleaved
from zipbrain.profiling.machine import processor
from zipbrain.recipe import Recipe
from zipbrain.seams import compress
from zipbrain.signal.scaling import scale


def surroundings(trial: Trial, batch: int, rounds: int) -> dict[str, Any]:
    """What a latency depends on besides model and recipe: device, processor, threads, batch, versions."""
    on_gpu = trial.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(trial.device) if on_gpu else f"CPU ({platform.machine()})",
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "batch": batch,
        "rounds": rounds,
        "torch": torch.__version__,
        "zipbrain": __version__,
    }


@dataclass(frozen=True)
class Candidate:
    """A compressed network to be timed, and the tokens it really had before the first block and after each."""

    network: nn.Module
    recipe: Recipe
    token_counts: Sequence[int]

    def slicing(self) -> dict[str, Any] | None:
        """Options of free slicing to the same token counts; None if nothing is removed."""
        removed = [before - after for before, after in pairwise(self.token_counts)]
        if not any(removed):
            return None
        kept = {"protected": self.recipe.protected, "within": self.recipe.within, "tokens": self.token_counts[0]}
        blocks = [block for block, r in enumerate(removed, 1) if r]
        return {"schedule": [r for r in removed if r], "layers": blocks, **kept}


def latencies(
    trial: Trial,
    candidates: Mapping[str, Candidate],
    *,
    batch: int = 8,
    rounds: int = 10,
    tick: Callable[[], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Candidates, the original, and free slicing to the same token counts, timed round after round.

    Every candidate gets seconds (median of a call of `batch` windows), original_seconds, to_original and to_slicing
    (medians over rounds of ratios of calls made right after each other). `tick` is called after every round.
    """
    x = example(trial, batch)
    models: dict[str, nn.Module] = {"original": trial.model}
    slices: dict[str, str] = {}  # candidate -> the model that slices to the same counts
    for name, candidate in candidates.items():
        models[f"recipe {name}"] = candidate.network
        options = candidate.slicing()
        slices[name] = "original" if options is None else f"slicing {options}"
        if options is not None and slices[name] not in models:
            models[slices[name]] = compress(copy_on_same_weights(trial.model), "free_slicing", **options)
    with torch.inference_mode():
        timings = interleaved({name: partial(model, x) for name, model in models.items()}, rounds=rounds, tick=tick)
    found = {}
    for name in candidates:
        timing = timings[f"recipe {name}"]
        found[name] = {
            "seconds": timing.median,
            "original_seconds": timings["original"].median,
            "to_original": timing.ratio(timings["original"]),
            "to_slicing": timing.ratio(timings[slices[name]]),
        }
    return found


def example(trial: Trial, batch: int) -> Tensor:
    """The first windows, scaled, on the trial's device, (batch, C, T); from the start again if there are fewer."""
    windows = trial.windows.take(np.arange(batch) % len(trial.windows))
    return torch.from_numpy(scale(windows, trial.scaling)).to(trial.device)


def copy_on_same_weights(model: nn.Module) -> nn.Module:
    """A copy of a network, compressed or not, on the same weights."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
