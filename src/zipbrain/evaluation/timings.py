"""Latency of compressed models beside the original and beside free slicing, in one interleaved run."""

from __future__ import annotations

import copy
import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain import __version__
from zipbrain.evaluation.trial import Trial
from zipbrain.profiling import interleaved
from zipbrain.recipe import Recipe
from zipbrain.seams import compress
from zipbrain.signal.scaling import scale


def surroundings(trial: Trial, batch: int, rounds: int) -> dict[str, Any]:
    """What a latency depends on besides model and recipe: device, processor, threads, batch, versions."""
    on_gpu = trial.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(trial.device) if on_gpu else f"CPU ({platform.machine()})",
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "batch": batch,
        "rounds": rounds,
        "torch": torch.__version__,
        "zipbrain": __version__,
    }


def latencies(
    trial: Trial,
    recipes: Mapping[str, tuple[Recipe, Sequence[int]]],
    *,
    batch: int = 8,
    rounds: int = 10,
    tick: Callable[[], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Time recipes, the original, and free slicing to the same token counts, round after round.

    Parameters
    ----------
    trial : Trial
        Model, windows, scaling and device.
    recipes : mapping of str to (Recipe, token counts)
        What to time, with the tokens that were really there before the first block and after each.
    batch, rounds : int
        Windows per call, and timed calls of each candidate.
    tick : callable, optional
        Called after every round.

    Returns
    -------
    found : dict of str to dict
        Of every recipe: seconds (median of a call), original_seconds, to_original and to_slicing (medians over rounds
        of ratios of calls made right after each other).
    """
    x = example(trial, batch)
    models: dict[str, nn.Module] = {"original": trial.model}
    slices: dict[str, str] = {}  # recipe -> the candidate that slices to the same counts
    for name, (recipe, counts) in recipes.items():
        models[f"recipe {name}"] = compress(twin(trial.model), recipe.method, **recipe.options())
        removed = [before - after for before, after in pairwise(counts)]
        slices[name] = f"slicing {recipe.protected} {recipe.within} {removed}" if any(removed) else "original"
        if slices[name] not in models:
            models[slices[name]] = compress(
                twin(trial.model), "free_slicing", schedule=[r for r in removed if r], tokens=counts[0],
                layers=[block for block, r in enumerate(removed, 1) if r], protected=recipe.protected,
                within=recipe.within,
            )  # fmt: skip
    calls = {name: _Call(model, x) for name, model in models.items()}
    with torch.inference_mode():
        timings = interleaved(calls, rounds=rounds, tick=tick)
    found = {}
    for name in recipes:
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


def twin(model: nn.Module) -> nn.Module:
    """The same network with the same weights, not a copy of them."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})


@functools.cache
def _processor() -> str:
    """The processor's name, as exactly as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


class _Call:
    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x = model, x

    def __call__(self) -> object:
        return self.model(self.x)
