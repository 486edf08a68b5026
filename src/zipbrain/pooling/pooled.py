"""`Pooled`: what is left of a window's tokens after one pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from zipbrain.pooling.grouping import Grouping


@dataclass(slots=True, eq=False)
class Pooled:
    """What `pool` returns.

    Parameters
    ----------
    x : Tensor, shape (B, T - r, D)
        Features of the kept tokens, in their original order.
    groups : Grouping, or a function that makes it
        Who went where. A function is called when `grouping` is first read.
    mass : Tensor of shape (B, T - r), optional
        How many original tokens each token stands for, if mass was given.
    normed : Tensor of shape (B, T - r, D), optional
        The LayerNorm of x, where a kernel computed it along with the merge.
    backend : (str, str)
        Name of the one that pooled, and why it was not a faster one.
    """

    x: Tensor
    groups: Grouping | Callable[[], Grouping]
    mass: Tensor | None = None
    normed: Tensor | None = None
    backend: tuple[str, str] = ("", "")

    @property
    def grouping(self) -> Grouping:
        """Who went where."""
        if not isinstance(self.groups, Grouping):
            self.groups = self.groups()
        return self.groups
