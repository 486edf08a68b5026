"""`Flow`: what travels between the blocks of one forward besides tokens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zipbrain.pooling.backends.choose import move_places
from zipbrain.pooling.grouping import DROPPED
from zipbrain.pooling.pooled import Pooled

if TYPE_CHECKING:
    from zipbrain.seams.observe import Observer


class Flow(threading.local):
    """What travels between the blocks of one forward: one object in every thread, shared by all blocks.

    Reset by the first block, cleared by the last, fresh after a copy, in another process and in every thread.
    """

    def __init__(self) -> None:
        self.n = 0  # unprotected tokens of the window
        self.total = self.left = 0  # tokens at the first block, and behind the last one; 0 until it is done
        self.cells_per_token = 0  # of a grid, side by side in a token; 1 where there is no grid
        self.removed: tuple[int, ...] = ()  # tokens that go in every block
        self.mass: Tensor | None = None  # (B, T); None while all are 1
        self.places: Tensor | None = None  # (B, T at the first block): place of every original token now
        self.mask: Tensor | None = None  # (B, T): protected tokens, if not at the ends
        self.positions: Tensor | None = None  # (B, T): where the tokens stood, for attention that asks for it
        self.observer: Observer | None = None
        self.is_decision = False  # the model's own forward runs, with windows alone: its head reads the blocks' output
        self.should_run_tail = False  # the last block runs for protected tokens alone
        self.backend = "", ""  # name of the one that pooled last, and why it was not a faster one

    def prepend(self, count: int) -> None:
        """Make room for `count` protected tokens that the model has put in front since the last block."""
        if self.mass is not None:
            self.mass = F.pad(self.mass, (count, 0), value=1.0)
        if self.places is not None:
            self.places = torch.where(self.places < 0, DROPPED, self.places + count)
        if self.mask is not None:
            self.mask = F.pad(self.mask, (count, 0), value=True)

    def update(self, pooled: Pooled, dtype: torch.dtype) -> None:
        """Take mass, places, mask and positions through a pooling of tokens of this dtype."""
        self.mass = pooled.mass
        if self.places is not None:
            self.places = move_places(self.places, pooled.grouping)
        if self.mask is not None:
            grouping = pooled.grouping
            longer = torch.cat((self.mask, torch.zeros_like(self.mask[:, : grouping.appended])), dim=1)
            self.mask = longer.gather(1, grouping.kept)
        if self.positions is not None:  # a merged token stands where the kept one stood, a new one between its sources
            grouping, places = pooled.grouping, self.positions
            if grouping.appended:
                middle = places.gather(1, grouping.source).to(dtype).mean(1, keepdim=True)
                places = torch.cat((places.to(middle.dtype), middle.expand(-1, grouping.appended)), dim=1)
            self.positions = places.gather(1, grouping.kept)

    def __deepcopy__(self, memo: dict[int, Any]) -> Flow:
        fresh = memo[id(self)] = Flow()
        return fresh

    def __reduce__(self) -> tuple[type[Flow], tuple[()]]:
        return Flow, ()
