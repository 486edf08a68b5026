"""What a compressed model carries: the plan (fixed) and what travels between blocks during one forward."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.pooling.backends.triton import mass_path as triton_mass_path
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import DROPPED, Grouping, compose, spread
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.pool import Pooled, pool_masked, pool_tokens
from zipbrain.pooling.schedule import Schedule
from zipbrain.pooling.tokens import Tokens
from zipbrain.recipe import Recipe
from zipbrain.seams import beside
from zipbrain.seams.dialects.base import Seam
from zipbrain.seams.prefix_cache import Memo


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """What happened in one block: unprotected tokens before and after, and who went where."""

    block: int
    before: int
    after: int
    grouping: Grouping


@dataclass(eq=False)
class Trace:
    """A record of the last forward of a compressed model.

    Attributes
    ----------
    layers : list of LayerTrace
        One per block, in order.
    """

    layers: list[LayerTrace] = field(default_factory=list)
    protected: Tensor | None = None  # bool (B, T) at the first block

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


class Carry(threading.local):
    """What travels between the blocks of one forward, in a plain object shared by all of them.

    Reset by the first block, cleared by the last, fresh after a copy, in another process and in every thread.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mass: Tensor | None = None  # (B, T)
        self.places: Tensor | None = None  # (B, T at the first block): place of every original token now
        self.mask: Tensor | None = None  # (B, T): protected tokens, if not at the ends
        self.positions: Tensor | None = None  # (B, T): where the tokens stood, for attention that asks for it
        self.trace: Trace | None = None
        self.memo: Memo | None = None  # where a prefix is noted down or resumed from

    def clear(self) -> None:
        """Forget the tensors of the last forward."""
        self.mass = self.places = self.mask = self.positions = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Carry:
        fresh = memo[id(self)] = Carry()
        return fresh

    def __reduce__(self) -> tuple[type[Carry], tuple[()]]:
        return Carry, ()


@dataclass(eq=False)
class Plan:
    """Everything that was decided when a model was compressed."""

    seam: type[Seam]
    method: Method
    schedule: Schedule
    mass: Mass
    reducing: tuple[bool, ...]
    leading: int
    trailing: int
    mask: tuple[bool, ...] | None
    shape: BlockShape
    tokens: int | None
    where: str
    length: int | None = None  # of the mask that said what is protected
    late: tuple[int, int] = (0, 0)  # first block that finds tokens put in front between the blocks, and how many
    origin: Recipe | None = None  # the recipe that said all of it
    carry: Carry = field(default_factory=Carry)
    cache: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.reducing)

    @property
    def protected(self) -> int:
        """Number of protected tokens at the first block."""
        return self.leading + self.trailing if self.mask is None else sum(self.mask)

    def late_at(self, index: int) -> int:
        """How many tokens were put in front between the blocks before block number `index`."""
        return self.late[1] if index >= self.late[0] else 0

    def removals(self, n: int) -> tuple[int, ...]:
        """Tokens that every block removes from n original ones; one cached tuple per n."""
        if n not in self.cache:
            self.cache[n] = self.schedule.removals(n, self.reducing, self.method.limit, self.shape, self.protected)
            if getattr(self.schedule, "ratio", 0) and not any(self.cache[n]):
                warnings.warn(f"{self.schedule} rounds to r = 0 for {n} tokens: 0 % are removed", stacklevel=2)
        return self.cache[n]

    def block(self, index: int, block: nn.Module, x: Tensor) -> Tensor:
        """Run block number `index` (from 0) on (B, T, D): attention, pooling, feed-forward."""
        carry = self.carry
        if index == 0:
            self._begin(x)
        late = self.late_at(index)
        if late and index == self.late[0]:
            self._arrive(late)
        count = int(x.shape[1]) - self.protected - late
        early = None if carry.memo is None else carry.memo.output(index)
        if early is not None:  # known from another pass over the same input
            self._record_nothing(index, count, x)
            return early
        bias = None if carry.mass is None or not self.mass.attention else carry.mass.log()
        r = min(self.removals(carry.n)[index], self.method.limit(count), count - 1)
        need_map = r > 0 and self.mask is None and self.method.needs_attention(self.leading + late, self.shape.linear)
        where: tuple[Any, ...] = () if carry.positions is None else (carry.positions,)
        attended = None if carry.memo is None else carry.memo.known(index, need_map)
        plain, decision = r > 0 and self._plain, None
        if attended is None:
            if plain and self.method.ignores_x and beside.possible(x):
                decision = beside.Beside(self.method, Tokens(x, r, leading=self.leading + late, trailing=self.trailing))
                with decision.listening():
                    attended = self.seam.attend(block, x, bias, need_map, *where)
            else:
                attended = self.seam.attend(block, x, bias, need_map, *where)
            if carry.memo is not None:
                carry.memo.keep_attended(index, need_map, r > 0, attended)
        if r > 0:
            norm = self.seam.next_norm(block)
            rest = (
                r, attended.q, attended.k, attended.v, self.leading + late, self.trailing, attended.attention, bias,
                self._mass(x), index + 1, self.depth, attended.scale, attended.linear,
            )  # fmt: skip
            quick = None
            if plain:
                grouping = None if decision is None else decision.grouping(attended.q)
                quick = self.method.fused_norm(Tokens(attended.stream, *rest), norm, grouping, attended.branch)
                del grouping
            x, normed = self._pool(Tokens(attended.x, *rest), late, norm) if quick is None else quick
            del rest
        else:
            x, normed = attended.x, None
            self._record_nothing(index, count, x)
        del attended, decision  # or q, k and v would lie beside the feed-forward part, where memory peaks
        x = self.seam.feed_forward(block, x) if normed is None else self.seam.feed_forward_normed(block, x, normed)
        if carry.memo is not None:
            carry.memo.keep_output(index, x)
        if index == self.depth - 1:
            x = self._finish(x)
        return x

    @property
    def _plain(self) -> bool:
        """Whether nobody asks who went where: no mass, no trace, no mask, no positions."""
        carry = self.carry
        if self.mass or carry.trace is not None:
            return False
        return carry.mask is None and carry.positions is None

    def _begin(self, x: Tensor) -> None:
        carry = self.carry
        carry.clear()
        if self.length is not None and self.length != x.shape[1]:
            given = f"a mask over {self.length} tokens"
            raise OptionError("protected", given, f"there are {int(x.shape[1])} tokens at the first block")
        if self.protected > x.shape[1]:
            raise OptionError("protected", self.protected, f"there are {int(x.shape[1])} tokens at the first block")
        carry.n = int(x.shape[1]) - self.protected if self.tokens is None else self.tokens
        if self.mask is not None:
            carry.mask = torch.tensor(self.mask, device=x.device).expand(x.shape[0], -1)
        order = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        if self.mass.readout:
            carry.places = order
        if self.seam.positional:
            carry.positions = order
        if carry.memo is not None:
            carry.memo.begin(x)
        if carry.trace is not None:
            carry.trace.layers.clear()
            carry.trace.protected = F.pad(self._protected_mask(x, 0), (self.late[1], 0), value=True)

    def _arrive(self, count: int) -> None:
        """The model has put tokens in front since the last block."""
        carry = self.carry
        if carry.mass is not None:
            carry.mass = F.pad(carry.mass, (count, 0), value=1.0)
        if carry.places is not None:
            carry.places = torch.where(carry.places < 0, DROPPED, carry.places + count)
        if carry.mask is not None:
            carry.mask = F.pad(carry.mask, (count, 0), value=True)

    def _record(self, index: int, before: int, grouping: Grouping) -> None:
        """Write a block into the trace, as if tokens that come later had been in front from the start."""
        assert self.carry.trace is not None
        grouping = grouping.behind(self.late[1] - self.late_at(index))
        self.carry.trace.layers.append(LayerTrace(index + 1, before, before - grouping.removed, grouping))

    def _record_nothing(self, index: int, count: int, x: Tensor) -> None:
        """Write into the trace, if there is one, that a block removed nothing from its `count` tokens."""
        if self.carry.trace is not None:
            self._record(index, count, Grouping.identity(x.shape[0], int(x.shape[1]), x.device))

    def _mass(self, x: Tensor) -> Tensor | None:
        if not self.mass:
            return None
        if self.carry.mass is None:
            return torch.ones(x.shape[:2], device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        return self.carry.mass

    def _pool(self, tokens: Tokens, late: int, norm: nn.LayerNorm | None) -> tuple[Tensor, Tensor | None]:
        """Features of the tokens that are left, and their norm where a kernel gave it in passing."""
        carry, method = self.carry, self.method
        if self._plain:
            quick = method.fused(tokens)
            if quick is not None:
                return quick[0], None
        if carry.mask is None:
            pooled, normed = self._pool_normed(tokens, norm)
        else:
            ends = Tokens(**{**vars(tokens), "leading": 0, "trailing": 0})
            pooled, normed = pool_masked(ends, method, carry.mask, self.protected + late, self.mass.merge), None
        grouping = pooled.grouping
        carry.mass = pooled.mass
        if carry.places is not None:
            followed = triton_mass_path.follow(carry.places, grouping)
            if followed is None:
                step = grouping.places().gather(1, carry.places.clamp_min(0))
                followed = torch.where(carry.places < 0, DROPPED, step)
            carry.places = followed
        if carry.mask is not None:
            longer = torch.cat((carry.mask, torch.zeros_like(carry.mask[:, : grouping.appended])), dim=1)
            carry.mask = longer.gather(1, grouping.kept)
        if carry.positions is not None:  # a merged token stands where the kept one stood, a new one between its sources
            places = carry.positions
            if grouping.appended:
                middle = places.gather(1, grouping.source).to(tokens.x.dtype).mean(1, keepdim=True)
                places = torch.cat((places.to(middle.dtype), middle.expand(-1, grouping.appended)), dim=1)
            carry.positions = places.gather(1, grouping.kept)
        if carry.trace is not None:
            self._record(tokens.layer - 1, tokens.total - self.protected - late, grouping)
        return pooled.x, normed

    def _pool_normed(self, tokens: Tokens, norm: nn.LayerNorm | None) -> tuple[Pooled, Tensor | None]:
        """Pool with protected tokens at the ends; where a kernel merges with mass, it applies the norm as well."""
        method, grouping = self.method, None
        if self.mass.merge and norm is not None:
            rule = method.merge_rule(tokens)
            if triton_mass_path.merges_normed(tokens, rule, norm):
                grouping = method(tokens)
                found = triton_mass_path.merge_norm(tokens, grouping, rule, norm)
                if found is not None:
                    return Pooled(found[0], grouping, found[1]), found[2]
        return pool_tokens(tokens, method, self.mass.merge, grouping), None

    def _finish(self, x: Tensor) -> Tensor:
        """Un-merge for the readout: every original token gets the value of the token it ended in."""
        carry = self.carry
        if carry.places is not None and carry.mass is not None:
            # Dropped tokens get the mass-weighted mean of the others, which leaves that mean as it is.
            late = self.late_at(self.depth - 1)
            free = (~self._protected_mask(x, late)).to(carry.mass.dtype)
            weight = carry.mass * free
            mean = torch.matmul(weight.unsqueeze(1), x.to(weight.dtype)) / weight.sum(1)[:, None, None]
            x = torch.cat((x[:, :late], spread(x, carry.places, mean.to(x.dtype))), dim=1)
        carry.clear()
        return x

    def _protected_mask(self, x: Tensor, late: int) -> Tensor:
        """bool (B, T) for the tokens in x, of which the first `late` were put in front between the blocks."""
        if self.carry.mask is not None:
            return self.carry.mask
        index = torch.arange(x.shape[1], device=x.device)
        ends = (index < self.leading + late) | (index >= x.shape[1] - self.trailing)
        return ends.expand(x.shape[0], -1)


@dataclass(eq=False)
class Site:
    """Where one module of a compressed model stands in the plan."""

    plan: Plan
    index: int
    original: type[nn.Module]
