"""One compressed block, from top to bottom: attend, group, merge, feed forward."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError, UnsupportedModel
from zipbrain.pooling.backends.choose import is_captured, pool_tokens
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import spread
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.pool import pool_masked
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.schedule import PerLayer, Schedule
from zipbrain.pooling.tokens import Tokens
from zipbrain.recipe import Recipe
from zipbrain.seams.dialects.base import Attended, Dialect, Ends
from zipbrain.seams.flow import Flow

if TYPE_CHECKING:
    from zipbrain.seams.readout import Readout


_FIRST: Final = threading.Lock()  # around the plan of a length that is new, so that one of several threads warns


class Protection(NamedTuple):
    """Which tokens are never touched: those at the ends, or those that a mask marks."""

    leading: int
    trailing: int
    mask: tuple[bool, ...] | None
    length: int | None  # T of the mask that was given; one that marks just the ends becomes leading and trailing
    late: tuple[int, int]  # first block that finds tokens put in front between the blocks, and how many


@dataclass(eq=False)
class Plan:
    """Everything that was decided when a model was compressed."""

    dialect: type[Dialect]
    method: Method
    schedule: Schedule
    mass: Mass
    reducing: tuple[bool, ...]
    protection: Protection
    shape: BlockShape
    tokens: int | None  # N that was declared by `tokens` or `example`
    where: str  # path of the module that holds the blocks
    origin: Recipe | None = None  # the recipe that gave every option, if one did
    readout: Readout | None = None  # what the head reads, where an example showed it
    reads_protected: bool = False  # the head reads protected tokens and no others
    can_run_tail: bool = False  # and takes them alone, so that the last block need not run for others
    second_look: float | None = None  # windows with a smaller margin run again uncompressed
    cells_per_token: int = 0  # of a grid, side by side in a token, where an example showed them
    is_window_major: bool = False  # patches of a window were seen to follow each other in the batch
    has_root: bool = False  # the model around the hosts is swapped too
    flow: Flow = field(default_factory=Flow)
    cache: dict[int, tuple[int, ...]] = field(default_factory=dict)  # removals by N: the declared one, then those seen

    def __post_init__(self) -> None:
        self.leading, self.trailing, self.mask, self.length, self.late = self.protection
        self.depth = len(self.reducing)
        uses, method = self.mass, self.method
        self.has_mass = uses.attention or uses.merge or (uses.readout and (method.drops or method.appends))
        self.protected = self.leading + self.trailing if self.mask is None else sum(self.mask)
        # Whether the method reads attention maps, without and with late tokens.
        self.needs_map = tuple(
            self.mask is None and self.method.needs_attention(self.leading + late, self.shape.linear)
            for late in (0, self.late[1])
        )

    def block(self, index: int, block: nn.Module, x: Tensor) -> Tensor:
        """Block number `index` (from 0) on tokens (B, T, D): attend, group, merge, feed forward."""
        flow, dialect = self.flow, self.dialect
        if index == 0:
            self._begin(x, block.training)
        late, watch = self.late_at(index), flow.observer
        if late and index == self.late[0]:
            flow.prepend(late)
        if watch is not None:
            known = watch.known_output(index)
            if known is not None:
                watch.fed(index, known)
                return known
        r = flow.removed[index]
        bias = None if flow.mass is None or not self.mass.attention else flow.mass.log()
        if flow.should_run_tail and index == self.depth - 1:
            return self._tail(index, block, x, bias)
        attended = self._attend(index, block, x, bias, r > 0 and self.needs_map[late > 0])
        normed = None
        if r > 0:
            tokens = self._tokens(attended, index, r, bias, late)
            pooled = self._pool(tokens, late, dialect.next_norm(block))
            if watch is not None:
                watch.grouped(index, tokens, pooled)
            flow.backend = pooled.backend
            x, normed = pooled.x, pooled.normed
            del tokens, pooled
        else:
            x = attended.x
        del attended  # frees q, k and v before the feed-forward part, where memory peaks
        x = dialect.feed_forward(block, x) if normed is None else dialect.feed_forward_normed(block, x, normed)
        if watch is not None:
            watch.fed(index, x)
        return self._finish(x) if index == self.depth - 1 else x

    def _tail(self, index: int, block: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """The last block for its protected tokens, leading ones first, which are all that the head reads."""
        flow, watch = self.flow, self.flow.observer
        attended = self.dialect.attend_ends(block, x, bias, Ends(self.leading, self.trailing))
        ended = self.dialect.feed_forward(block, attended.x)
        if watch is not None and watch.follows_groups:  # it sees the block as it would be without a tail
            flow.should_run_tail, flow.removed = False, self.removals(flow.n)
            self.block(index, block, x)
            return ended
        if watch is not None:
            watch.attended(index, attended)
            watch.fed(index, ended)
        flow.places = None
        return self._finish(ended)

    def _attend(self, index: int, block: nn.Module, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        """The block up to the seam."""
        flow, watch = self.flow, self.flow.observer
        attended = None if watch is None else watch.known_attention(index, need_map)
        if attended is None:
            where: tuple[Any, ...] = () if flow.positions is None else (flow.positions,)
            attended = self.dialect.attend(block, x, bias, need_map, *where)
        if watch is not None:
            watch.attended(index, attended)
        return attended

    def _tokens(self, attended: Attended, index: int, r: int, bias: Tensor | None, late: int) -> Tokens:
        """The tokens as the method gets them."""
        mass = self.flow.mass
        if mass is None and self.has_mass:
            x = attended.stream
            mass = torch.ones(x.shape[:2], device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        return Tokens(
            attended.stream,
            r,
            attended.q,
            attended.k,
            attended.v,
            leading=self.leading + late,
            trailing=self.trailing,
            attention=attended.attention,
            bias=bias,
            mass=mass,
            layer=index + 1,
            depth=self.depth,
            scale=attended.scale,
            linear=attended.linear,
            branch=attended.branch,
        )

    def _pool(self, tokens: Tokens, late: int, norm: nn.LayerNorm | None) -> Pooled:
        """Group and merge, and take masses, places and positions along."""
        flow, mask = self.flow, self.flow.mask
        if mask is None:
            pooled = pool_tokens(tokens, self.method, self.mass.merge, norm)
        else:
            pooled = pool_masked(tokens, self.method, mask, self.protected + late, self.mass.merge)
        if self.has_mass or mask is not None or flow.positions is not None or flow.places is not None:
            flow.update(pooled, tokens.x.dtype)
        return pooled

    def _begin(self, x: Tensor, is_training: bool) -> None:
        """Reset the flow for tokens (B, T, D) at the first block."""
        flow, total = self.flow, int(x.shape[1])
        _forget_tensors(flow)
        if self.length is not None and self.length != total:
            given = f"a mask over {self.length} tokens"
            raise OptionError("protected", given, f"there are {total} tokens at the first block")
        if self.protected > total:
            raise OptionError("protected", self.protected, f"there are {total} tokens at the first block")
        flow.n, flow.total, flow.left = total - self.protected, total, 0
        flow.cells_per_token = int(x.shape[2]) // self.shape.dim
        flow.removed = self.removals(flow.n)
        flow.should_run_tail = self.can_run_tail and flow.is_decision and not is_training
        if flow.should_run_tail:
            flow.removed = (*flow.removed[:-1], 0)  # the head would read nothing of it
        if self.mask is not None:
            flow.mask = torch.tensor(self.mask, device=x.device).expand(x.shape[0], -1)
        if self.mass.readout or self.dialect.positional:
            order = torch.arange(total, device=x.device).expand(x.shape[0], -1)
            flow.places = order if self.mass.readout else None
            flow.positions = order if self.dialect.positional else None
        if flow.observer is not None:
            flow.observer.entered(self, x)

    def _finish(self, x: Tensor) -> Tensor:
        """Un-merge for the readout: every original token gets the value of the token it ended in."""
        flow = self.flow
        if flow.places is not None and not self.has_mass:  # every original token has joined one that stayed
            x = torch.cat((x[:, : self.late_at(self.depth - 1)], spread(x, flow.places)), dim=1)
        elif flow.places is not None and flow.mass is not None:
            # Dropped tokens get the mass-weighted mean of the others, which leaves that mean as it is.
            late = self.late_at(self.depth - 1)
            weight = flow.mass * (~self.protected_mask(x, late)).to(flow.mass.dtype)
            mean = torch.matmul(weight.unsqueeze(1), x.to(weight.dtype)) / weight.sum(1)[:, None, None]
            x = torch.cat((x[:, :late], spread(x, flow.places, mean.to(x.dtype))), dim=1)
        flow.left = int(x.shape[1])
        _forget_tensors(flow)
        if flow.observer is not None:
            flow.observer.finished(x)
        return x

    def removals(self, n: int) -> tuple[int, ...]:
        """Tokens that every block removes from n original ones; one cached tuple per n. A new n may warn."""
        if n in self.cache:
            return self.cache[n]
        removed = self.planned(n)
        if not is_captured():  # a graph can't warn: the first window outside of one does
            with _FIRST:
                remarks = [] if n in self.cache else [*self._remarks(n, removed)]
                self.cache[n] = removed
            for remark in remarks:
                warnings.warn(remark, stacklevel=3)
        return removed

    @property
    def sized(self) -> BlockShape:
        """The blocks' sizes, with as many cells in a token as this thread's last forward had, or an example."""
        return self.shape.spanning(self.flow.cells_per_token or self.cells_per_token or 1)

    def planned(self, n: int) -> tuple[int, ...]:
        """Tokens that every block would remove from n original ones."""
        return self.schedule.removals(n, self.reducing, self.method.limit, self.sized, self.protected)

    def _remarks(self, n: int, removed: tuple[int, ...]) -> Iterator[str]:
        """What a user should know about windows of n tokens, which have not been seen before."""
        if self.tokens is not None and n != self.tokens and len(self.cache) == 1:
            yield (
                f"a window has {n} tokens, but {self.tokens} were declared (tokens=, example= or a recipe): one of "
                f"another length gets its own r, here {sum(removed)} of {n} tokens in all"
            )
        if getattr(self.schedule, "ratio", 0) and not any(removed):
            yield f"{self.schedule} rounds to r = 0 for {n} tokens: 0 % are removed"
        if isinstance(self.schedule, PerLayer) and sum(self.schedule.r) > sum(removed):
            yield f"r={list(self.schedule.r)} does not fit {n} tokens: it is cut to {list(removed)}"

    def late_at(self, index: int) -> int:
        """Number of tokens that the model has put in front, between its blocks, before block number `index`."""
        return self.late[1] if index >= self.late[0] else 0

    def protected_mask(self, x: Tensor, late: int) -> Tensor:
        """bool (B, T) for the tokens in x, of which the first `late` were put in front between the blocks."""
        if self.flow.mask is not None:
            return self.flow.mask
        index = torch.arange(x.shape[1], device=x.device)
        ends = (index < self.leading + late) | (index >= x.shape[1] - self.trailing)
        return ends.expand(x.shape[0], -1)


@dataclass(eq=False)
class Site:
    """The plan, block index and original class of one swapped module."""

    plan: Plan
    index: int
    original: type[nn.Module]


@dataclass(eq=False)
class Root:
    """The plan and original class of the model around the hosts."""

    plan: Plan
    original: type[nn.Module]

    def run(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward; it is a decision only without further arguments, which may ask for tokens."""
        flow = self.plan.flow
        before, flow.is_decision = flow.is_decision, len(args) + len(kwargs) == 1
        try:
            return self.original.forward(model, *args, **kwargs)
        finally:
            flow.is_decision = before


def _forget_tensors(flow: Flow) -> None:
    """Drop the tensors that the last forward left in its flow."""
    flow.mass = flow.places = flow.mask = flow.positions = None


def site_of(module: nn.Module) -> Site | None:
    """The site of a swapped host; None for any other module."""
    site = module.__dict__.get("_zipbrain")
    return site if isinstance(site, Site) else None


def find_plan(model: nn.Module) -> Plan | None:
    """The plan by which any part of a model is compressed, or None."""
    return next((site.plan for module in model.modules() if (site := site_of(module)) is not None), None)


def plan_of(model: nn.Module) -> Plan:
    """The plan by which a model is compressed; refused if it is not."""
    plan = find_plan(model)
    if plan is None:
        raise UnsupportedModel(f"{type(model).__name__} is not compressed: call zipbrain.compress(model, ...) first")
    return plan
