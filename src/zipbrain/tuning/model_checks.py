"""Checks of a model and its windows before hours are spent on tuning, and notes on what makes it worth little."""

from __future__ import annotations

import copy
import warnings
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain import metrics
from zipbrain.errors import OptionError
from zipbrain.seams import compress
from zipbrain.tuning.groups import halves

_FEWEST: Final = 20  # windows that each half must have


def split_halves(groups: NDArray[np.str_], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of the half that chooses and of the half that certifies, by whole groups."""
    if len(np.unique(groups)) < 2:
        raise OptionError("groups", "one", "recipe and certificate need different people: give windows of at least two")
    choosing, certifying = halves(groups, seed)
    for half in (choosing, certifying):
        if len(np.unique(groups[half])) < 2 and half is certifying:
            found = f"{len(np.unique(groups))} groups"
            raise OptionError("groups", found, "the half that certifies needs two or more: give windows of more people")
        if len(half) < _FEWEST:
            found = f"{len(groups)} windows of {len(np.unique(groups))} groups"
            raise OptionError("windows", found, f"each half needs at least {_FEWEST} windows: give more")
    return choosing, certifying


def note_chance(logits: NDArray[np.float32], labels: NDArray[np.int64] | None) -> list[str]:
    """A line on a model whose score is no better than that of guessing; empty without labels."""
    if labels is None or len(np.unique(labels)) < 2:
        return []
    metric = metrics.main_metric(max(logits.shape[1], 2))
    value, shares = metrics.score(logits, labels, metric), metrics.probabilities(logits)
    if not metrics.is_chance(value, metrics.check(labels, shares).table):
        return []
    found = f"{metrics.metric_title(metric)} {value:.3f} on these windows, guesses {metrics.CHANCE[metric]:g}"
    return [f"the model is no better than chance ({found}): keeping its answers is worth little"]


def note_probabilities(outputs: NDArray[np.float32]) -> list[str]:
    """A line on outputs that are probabilities already; empty for logits."""
    if outputs.shape[1] < 2 or outputs.min() < 0 or not np.allclose(outputs.sum(1), 1, atol=1e-3):
        return []
    return ["the model's outputs look like probabilities, not logits: margins are differences of probabilities"]


def check_second_look(model: nn.Module, windows: torch.Tensor) -> None:
    """Refuse a model that can't look twice, before hours are spent on it."""
    network = compress(copy.deepcopy(model), "twins", ratio=0.5, second_look=1e9)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network(windows)


def check_decisions(logits: NDArray[np.float32]) -> None:
    """Refuse a model that always decides the same."""
    counts = np.bincount(metrics.decisions(logits))
    if metrics.is_one_sided(counts):
        share = metrics.commonest_class(counts)[1]
        found = f"a model that answers one class for {share:.1%} of {len(logits)} windows"
        raise OptionError("model", found, "then nearly any recipe keeps the answers: check scaling, task and windows")
