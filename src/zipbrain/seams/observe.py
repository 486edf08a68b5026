"""The one way to watch a compressed model's forward: every block calls an `Observer`.

Watching changes no bit: groups and features are those that the forward computes anyway. A `Trace` is an observer; so
are the prefix cache, the decision outputs of an export, and what figures are drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import UnsupportedModel
from zipbrain.pooling.grouping import DROPPED, Grouping, compose
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams.dialects.base import Attended
from zipbrain.seams.forward import plan_of

if TYPE_CHECKING:
    from zipbrain.seams.forward import Plan


class Observer:
    """Base of everything that watches a forward; override what is of interest. Blocks are counted from 0.

    Where the head reads protected tokens only, the last block runs for them alone and groups nothing. An observer that
    `follows_groups` sees it with all tokens, which costs that block once more.
    """

    follows_groups: bool = False

    def entered(self, plan: Plan, x: Tensor) -> None:
        """Tokens (B, T, D) have reached the first block."""

    def attended(self, index: int, attended: Attended) -> None:
        """A block has run its attention."""

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        """A block has grouped and merged its tokens; not called where nothing goes."""

    def fed(self, index: int, x: Tensor) -> None:
        """A block has run its feed-forward part, or its output (B, T, D) was known."""

    def finished(self, x: Tensor) -> None:
        """The last block is done, and tokens are un-merged where mass asks for it."""

    def looked(self, doubtful: Tensor) -> None:
        """A model with a second look has decided; bool (B,) marks the windows that ran twice."""

    def known_output(self, index: int) -> Tensor | None:
        """The output of a block, where it is known: the block does not run."""
        return None

    def known_attention(self, index: int, need_map: bool) -> Attended | None:
        """A block after its attention, where that is known: its attention does not run."""
        return None


class Observers(Observer):
    """Two observers at once; where both know an output, the first one's is taken."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self.first, self.second = first, second
        self.follows_groups = first.follows_groups or second.follows_groups

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.first.entered(plan, x)
        self.second.entered(plan, x)

    def attended(self, index: int, attended: Attended) -> None:
        self.first.attended(index, attended)
        self.second.attended(index, attended)

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        self.first.grouped(index, tokens, pooled)
        self.second.grouped(index, tokens, pooled)

    def fed(self, index: int, x: Tensor) -> None:
        self.first.fed(index, x)
        self.second.fed(index, x)

    def finished(self, x: Tensor) -> None:
        self.first.finished(x)
        self.second.finished(x)

    def looked(self, doubtful: Tensor) -> None:
        self.first.looked(doubtful)
        self.second.looked(doubtful)

    def known_output(self, index: int) -> Tensor | None:
        known = self.first.known_output(index)
        return self.second.known_output(index) if known is None else known

    def known_attention(self, index: int, need_map: bool) -> Attended | None:
        known = self.first.known_attention(index, need_map)
        return self.second.known_attention(index, need_map) if known is None else known


@contextmanager
def observe(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Let an observer watch every forward of a compressed model, in this thread, while the ``with`` block runs."""
    if isinstance(model, torch._dynamo.OptimizedModule) or model._compiled_call_impl is not None:
        raise UnsupportedModel("a compiled model can't be watched: watch the model that was compiled")
    flow = plan_of(model).flow
    before = flow.observer
    flow.observer = observer if before is None else Observers(before, observer)
    try:
        yield
    finally:
        flow.observer = before


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """What happened in one block: unprotected tokens before and after, and who went where."""

    block: int
    before: int
    after: int
    grouping: Grouping


@dataclass(eq=False)
class Trace(Observer):
    """A record of the last forward of a compressed model; `layers` holds one `LayerTrace` per block, in order."""

    follows_groups = True
    layers: list[LayerTrace] = field(default_factory=list)
    protected: Tensor | None = None  # bool (B, T) at the first block
    _plan: Plan | None = None

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.layers.clear()
        self._plan = plan
        self.protected = F.pad(plan.protected_mask(x, 0), (plan.late[1], 0), value=True)

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        self._add(index, pooled.grouping)

    def fed(self, index: int, x: Tensor) -> None:
        if len(self.layers) == index:  # nothing went
            self._add(index, Grouping.identity(x.shape[0], int(x.shape[1]), x.device))

    def _add(self, index: int, grouping: Grouping) -> None:
        """Append a block; tokens that the model puts in front later count as if they had been there from the start."""
        plan = self._plan
        assert plan is not None
        before = grouping.tokens - plan.protected - plan.late_at(index)
        grouping = grouping.behind(plan.late[1] - plan.late_at(index))
        self.layers.append(LayerTrace(index + 1, before, before - grouping.removed, grouping))

    @property
    def token_counts(self) -> list[int]:
        """Unprotected tokens before the first block, then after each block."""
        return [self.layers[0].before, *(layer.after for layer in self.layers)] if self.layers else []

    def source_map(self) -> Tensor:
        """For every unprotected original token, the original token it ended in; -1 where it was dropped.

        Returns
        -------
        owner : Tensor of int64, shape (B, N)
            Both counted among the unprotected tokens, from 0. A token appended by EViT has number N, N + 1, ...
        """
        if not self.layers or self.protected is None:
            raise RuntimeError("nothing was traced yet: run the model inside the `with` block")
        whole = compose(layer.grouping for layer in self.layers)
        places = whole.places()
        owner = torch.where(places < 0, DROPPED, whole.kept.gather(1, places.clamp_min(0)))
        free = ~self.protected
        count = int(free[0].sum())
        number = torch.cumsum(free, 1) - 1
        extra = torch.arange(count, count + whole.appended, device=owner.device).expand(owner.shape[0], -1)
        number = torch.cat((number, extra), dim=1)
        owner = torch.where(owner < 0, DROPPED, number.gather(1, owner.clamp_min(0)))
        return owner[free].reshape(owner.shape[0], count)


@contextmanager
def trace(model: nn.Module) -> Iterator[Trace]:
    """Record who went where in the last forward inside the ``with`` block.

    Parameters
    ----------
    model : nn.Module
        A compressed model.

    Yields
    ------
    trace : Trace
        With `layers`, `token_counts` and `source_map`.
    """
    record = Trace()
    with observe(model, record):
        yield record
