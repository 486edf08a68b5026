"""Learning rates of every step of a run, computed beforehand, so that a resumed run has nothing to restore."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain.training.settings import TrainingSettings


class Rates(NamedTuple):
    """Learning rate and, where the schedule moves it, Adam's first moment: (steps,) each."""

    lr: NDArray[np.float64]
    beta1: NDArray[np.float64] | None = None


def rates(settings: TrainingSettings, steps: int) -> Rates:
    """Rates of a whole run with so many optimiser steps in an epoch."""
    total, warmup = settings.epochs * steps, round(settings.warmup_epochs * steps)
    if settings.schedule == "constant":
        return Rates(np.full(total, settings.lr))
    if settings.schedule == "onecycle":
        return _one_cycle(settings.lr, total, settings.warmup_epochs / settings.epochs)
    rising = np.linspace(0.0, settings.lr, warmup)
    share = np.arange(total - warmup) / (total - warmup)
    falling = settings.final_lr + 0.5 * (settings.lr - settings.final_lr) * (1 + np.cos(math.pi * share))
    return Rates(np.concatenate((rising, falling)))


def _one_cycle(highest: float, total: int, rising: float) -> Rates:
    """What torch's OneCycleLR would set, step by step; it moves Adam's first moment too."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(()))], lr=highest)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, total_steps=total, pct_start=rising)
    group, lr, beta1 = optimizer.param_groups[0], np.empty(total), np.empty(total)
    optimizer.step()  # the scheduler warns otherwise
    for step in range(total):
        lr[step], beta1[step] = group["lr"], group["betas"][0]
        scheduler.step()
    return Rates(lr, beta1)
