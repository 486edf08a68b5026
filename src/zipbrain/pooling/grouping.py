"""Who goes where: kept tokens, redundant tokens, and the kept token each redundant one joins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from zipbrain.errors import OptionError, ShapeError

_ONE_HOT_ELEMENTS: Final = 2**22  # up to this many kept x redundant pairs, sums are one-hot matrix products
DROPPED: Final = -1


@dataclass(frozen=True, eq=False)
class Grouping:
    """The answer of a method: a partition of T tokens into groups around the kept ones.

    Parameters
    ----------
    kept : Tensor of int64, shape (B, M)
        Original indices of the tokens that stay, in their order in the output (ascending). An appended token
        (EViT's fused one) has index `tokens`, `tokens` + 1, ...
    source : Tensor of int64, shape (B, R)
        Original indices of the tokens that go, ascending.
    target : Tensor of int64, shape (B, R)
        Original index of the kept token that each source joins; -1 where it is dropped.
    tokens : int
        T, the number of tokens before the reduction.
    appended : int
        How many of `kept` are new tokens.
    weight : Tensor of shape (B, R), optional
        How strongly each source enters a weighted sum (EViT's attention); 1 if not given.
    drops : bool
        Whether any target may be -1.
    """

    kept: Tensor
    source: Tensor
    target: Tensor
    tokens: int
    appended: int = 0
    weight: Tensor | None = None
    drops: bool = False

    @property
    def removed(self) -> int:
        """By how many tokens the sequence becomes shorter."""
        return self.tokens - int(self.kept.shape[1])

    @classmethod
    def identity(cls, batch: int, tokens: int, device: torch.device | str = "cpu") -> Grouping:
        """Nothing goes."""
        kept = torch.arange(tokens, device=device).expand(batch, tokens)
        nothing = kept[:, :0]
        return cls(kept, nothing, nothing, tokens)

    def behind(self, count: int) -> Grouping:
        """The same grouping behind `count` more tokens in front, which stay."""
        if count == 0:
            return self
        front = torch.arange(count, device=self.kept.device).expand(self.kept.shape[0], count)
        kept = torch.cat((front, self.kept + count), dim=1)
        target = torch.where(self.target < 0, DROPPED, self.target + count)
        return replace(self, kept=kept, source=self.source + count, target=target, tokens=self.tokens + count)

    # -- features ------------------------------------------------------------------------------------------------

    def merge(self, values: Tensor, rule: object = "sum", weight: Tensor | None = None) -> Tensor:
        """Merge any tensor over tokens into its groups.

        Parameters
        ----------
        values : Tensor, shape (B, T) or (B, T, D)
            One scalar or one vector per token.
        rule : str or merge rule
            ``"sum"``, ``"mean"``, ``"max"``, ``"largest_norm"``, ``"mean_norm"``, ``"prune"``, or an object of
            `zipbrain.pooling.merges`.
        weight : Tensor of shape (B, T), optional
            Mass of every token, for the rules that weigh.

        Returns
        -------
        merged : Tensor, shape (B, M) or (B, M, D)
        """
        from zipbrain.pooling.merges import merge_rule

        self._check(values, self.tokens)
        chosen = merge_rule(rule)
        if values.dim() == 2:
            return chosen(values.unsqueeze(2), self, weight).squeeze(2)
        return chosen(values, self, weight)

    def unmerge(self, values: Tensor, fill: float | Tensor = 0.0) -> Tensor:
        """Give every original token the value of the token it ended in; dropped tokens get `fill`.

        Parameters
        ----------
        values : Tensor, shape (B, M) or (B, M, D)
            One scalar or one vector per kept token.
        fill : float or Tensor broadcastable to (B, T) or (B, T, D)
            Value of dropped tokens.

        Returns
        -------
        spread : Tensor, shape (B, T) or (B, T, D)
        """
        self._check(values, int(self.kept.shape[1]))
        return spread(values, self.places(), fill)

    def places(self) -> Tensor:
        """For every original token, its group's place in the output; -1 where it was dropped. (B, T)"""
        batch, kept = self.kept.shape
        order = torch.arange(kept, device=self.kept.device).expand(batch, kept)
        slots = torch.full((batch, self.tokens + self.appended), DROPPED, dtype=torch.int64, device=self.kept.device)
        slots = slots.scatter(1, self.kept, order)
        if self.source.shape[1] == 0:
            return slots[:, : self.tokens]
        joined = torch.where(self.target < 0, DROPPED, slots.gather(1, self.target.clamp_min(0)))
        return slots.scatter(1, self.source, joined)[:, : self.tokens]

    def compose(self, later: Grouping) -> Grouping:
        """The grouping that does `self` and then `later` in one step (indices of the first input)."""
        if later.tokens != self.kept.shape[1]:
            found = f"a grouping of {later.tokens} tokens"
            raise ShapeError("later", found, f"after this grouping {self.kept.shape[1]} tokens are left")
        batch, first = self.kept.shape[0], self.tokens + self.appended
        new = torch.arange(first, first + later.appended, device=self.kept.device).expand(batch, later.appended)
        name = torch.cat((self.kept, new), dim=1)  # token of the intermediate sequence -> original index

        def rename(index: Tensor) -> Tensor:
            return torch.where(index < 0, DROPPED, name.gather(1, index.clamp_min(0)))

        kept, moved = rename(later.kept), rename(later.source)
        # Where every original index ends: as itself, or where `later` sends it.
        ends = torch.arange(first + later.appended, device=self.kept.device).repeat(batch, 1)
        ends = ends.scatter(1, moved, rename(later.target))
        old = torch.where(self.target < 0, DROPPED, ends.gather(1, self.target.clamp_min(0)))
        source, order = torch.cat((self.source, moved), dim=1).sort(dim=1)
        target = torch.cat((old, rename(later.target)), dim=1).gather(1, order)
        appended, drops = self.appended + later.appended, self.drops or later.drops
        return Grouping(kept, source, target, self.tokens, appended, None, drops)

    # -- pieces for merge rules --------------------------------------------------------------------------------------

    def take_kept(self, values: Tensor) -> Tensor:
        """Rows of the kept tokens, (B, M, D); zeros for an appended token."""
        return take(self._with_appended(values), self.kept)

    def take_source(self, values: Tensor) -> Tensor:
        """Rows of the tokens that go, (B, R, D); zeros for an appended token that went again."""
        return take(self._with_appended(values), self.source)

    def _with_appended(self, values: Tensor) -> Tensor:
        return F.pad(values, (0, 0, 0, self.appended)) if self.appended else values

    @property
    def small(self) -> bool:
        """True if sums over groups are one-hot products (deterministic, exportable) rather than scatters."""
        pairs = self.kept.shape[1] * self.source.shape[1]
        return pairs <= _ONE_HOT_ELEMENTS or torch.compiler.is_exporting()

    def membership(self) -> Tensor:
        """bool (B, M, R): True where a source joined a kept token."""
        return self.kept.unsqueeze(2) == self.target.unsqueeze(1)

    def destination(self) -> Tensor:
        """Place in the output that each source joins; M where it was dropped. (B, R)"""
        count = int(self.kept.shape[1])
        if self.appended:  # then `kept` need not be ascending
            slots = torch.full_like(self.kept[:, :1], count).repeat(1, self.tokens + self.appended)
            slots = slots.scatter(1, self.kept, torch.arange(count, device=self.kept.device).expand_as(self.kept))
            place = slots.gather(1, self.target.clamp_min(0))
        else:
            place = torch.searchsorted(self.kept.contiguous(), self.target.contiguous())
        return torch.where(self.target < 0, count, place)

    def _check(self, values: Tensor, expected: int) -> None:
        shape = tuple(values.shape)
        if values.dim() not in (2, 3) or shape[0] != self.kept.shape[0] or shape[1] != expected:
            wanted = f"it must be (B, tokens) or (B, tokens, D) with B = {self.kept.shape[0]} and {expected} tokens"
            raise ShapeError("values", shape, wanted)


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows of (B, T, D) named by (B, K): (B, K, D). A row copy, several times faster than `gather` on a CPU."""
    batch, total, width = values.shape
    if batch != 1:
        index = index + torch.arange(batch, device=index.device).unsqueeze(1) * total
    return F.embedding(index, values.reshape(batch * total, width))


def spread(values: Tensor, places: Tensor, fill: float | Tensor = 0.0) -> Tensor:
    """Rows of (B, M) or (B, M, D) by place (B, T); `fill` where the place is -1."""
    flat = values.dim() == 2
    rows = take(values.unsqueeze(2) if flat else values, places.clamp_min(0))
    lost = (places < 0).unsqueeze(2)
    filling = torch.as_tensor(fill, dtype=values.dtype, device=values.device)
    if flat and filling.dim() == 2:
        filling = filling.unsqueeze(2)
    rows = torch.where(lost, filling, rows)
    return rows.squeeze(2) if flat else rows


def compose(groupings: Iterable[Grouping]) -> Grouping:
    """Compose the groupings of successive layers into one.

    Parameters
    ----------
    groupings : iterable of Grouping
        In the order in which they were applied; at least one.
    """
    whole: Grouping | None = None
    for grouping in groupings:
        whole = grouping if whole is None else whole.compose(grouping)
    if whole is None:
        raise OptionError("groupings", [], "at least one grouping is needed")
    return whole
