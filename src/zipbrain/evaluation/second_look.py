"""Second looks of a model while it is scored or timed: how many windows had one, and what one costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zipbrain.seams import is_compressed
from zipbrain.seams.forward import plan_of
from zipbrain.seams.observe import Observer, observe
from zipbrain.seams.passes import FirstPass, SecondPass
from zipbrain.seams.second_look import rows_of


class Looks(Observer):
    """Counts the windows that looked twice."""

    def __init__(self) -> None:
        self.windows = self.twice = 0

    def looked(self, doubtful: Tensor) -> None:
        self.windows += len(doubtful)
        self.twice += int(doubtful.sum())

    @property
    def second_look_share(self) -> float:
        """Share of the windows that looked twice; NaN if none was seen, as without a second look."""
        return self.twice / self.windows if self.windows else math.nan


def has_second_look(model: nn.Module) -> bool:
    """True if a model runs doubtful windows again."""
    return is_compressed(model) and plan_of(model).second_look is not None


@contextmanager
def count_looks(model: nn.Module) -> Iterator[Looks]:
    """Counts of all forwards inside the ``with`` block; of a model without second look they stay 0."""
    looks = Looks()
    if not has_second_look(model):
        yield looks
        return
    with observe(model, looks):
        yield looks


@dataclass(frozen=True)
class SplitCall:
    """A call of a model with a second look as two calls: one without any second look, and one second look at some."""

    first: Callable[[], object]
    again: Callable[[], object]
    weight: float  # second looks of `again` that a call needs on average

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, looked: float) -> SplitCall:
        """Of a model on windows (B, C, n_times), if a share `looked` of all windows, in any order, looks twice.

        `again` looks at as many windows as those calls that have any do on average. The model stays as it is.
        """
        certain = copy_on_same_weights(model)
        plan_of(certain).second_look = 0.0  # no margin is smaller
        batch = len(x)
        expected, has_any = batch * looked, 1 - (1 - looked) ** batch
        some = max(1, round(expected / has_any)) if expected > 0 else 1
        with torch.inference_mode():
            tokens = FirstPass(certain)(x)[1]
        rows = torch.arange(some, device=x.device)
        again = partial(SecondPass(certain), x[:some], rows_of(tokens, rows, batch))
        return cls(partial(certain, x), again, expected / some)


def copy_on_same_weights(model: nn.Module) -> nn.Module:
    """A copy of a network, compressed or not, on the same weights."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
