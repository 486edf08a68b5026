"""`Dialect`: one kind of transformer block, cut open between attention and feed-forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, original_class

if TYPE_CHECKING:
    from zipbrain.seams.forward import Site


@dataclass(slots=True, eq=False)
class Attended:
    """A block after its attention."""

    # The residual stream: attention added, layer scale included (in a post-norm layer, norm1's output); without
    # attention, if that is given as `branch`.
    stream: Tensor
    q: Tensor  # what entered the dot product, before the scale
    k: Tensor
    v: Tensor
    scale: float  # factor on q k^T
    linear: bool = False  # linear attention
    attention: Tensor | None = None  # the attention map, where `need_map` was True
    # What is still to be added to the stream: done when `x` is read, or by a kernel along with the merge.
    branch: Branch | None = None

    @property
    def x(self) -> Tensor:
        """The residual stream with attention added, (B, T, D)."""
        if self.branch is not None:
            self.stream, self.branch = self.branch.added_to(self.stream), None
        return self.stream

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        found = (self.x, self.q, self.k, self.v, self.attention)
        return [values for values in found if values is not None]


class Ends(NamedTuple):
    """How many tokens stand at the two ends of a sequence."""

    leading: int
    trailing: int

    def of(self, x: Tensor) -> Tensor:
        """The leading, then the trailing tokens of (B, T, D)."""
        if not self.trailing:
            return x[:, : self.leading]
        trailing = x[:, -self.trailing :]
        return torch.cat((x[:, : self.leading], trailing), dim=1) if self.leading else trailing


class Dialect(ABC):
    """One kind of transformer block. Subclass, fill in four methods, and call `register_dialect`."""

    name: ClassVar[str]
    looks_like: ClassVar[str]  # what the block must have, for the error that lists all dialects
    host_levels: ClassVar[int] = 0  # how far above the block the module stands whose forward runs it (0: the block)
    units: ClassVar[str] = "tokens"  # what is pooled
    axis: ClassVar[str] = ""  # of a grid, where it is not the usual one: "time"
    cells: ClassVar[str] = ""  # of a grid: what stands side by side in a unit
    positional: ClassVar[bool] = False  # attention depends on positions: `attend` gets them as a fifth argument (B, T)

    @classmethod
    def along(cls, axis: str | None) -> type[Dialect]:
        """The dialect that pools along an axis of its grid; refused where there is no grid."""
        if axis is not None:
            raise OptionError("axis", axis, f"{cls.name} blocks hold one sequence of tokens and no grid: leave it out")
        return cls

    @classmethod
    @abstractmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        """`MATCH` for a block of the dialect, `near_miss` with a reason for one that nearly is, else `NO_MATCH`."""

    @classmethod
    @abstractmethod
    def attend(cls, block: nn.Module, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        """Run the block up to the seam.

        Parameters
        ----------
        block : nn.Module
            The block.
        x : Tensor, shape (B, T, D)
            Its input, batch first.
        bias : Tensor of shape (B, T), optional
            To be added to the attention logits of every key (log of the mass).
        need_map : bool
            Whether the attention map must be returned.
        """

    @classmethod
    def attend_ends(cls, block: nn.Module, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        """`attend` for the tokens at the two ends alone: stream and q hold theirs, k and v those of all tokens."""
        raise NotImplementedError(f"{cls.__name__} has no attention of some tokens alone")

    @classmethod
    def can_attend_ends(cls) -> bool:
        """True if the class that says how to `attend` also says how to `attend_ends`."""
        owner = next(kind for kind in cls.__mro__ if "attend" in vars(kind))
        return owner is not Dialect and "attend_ends" in vars(owner)

    @classmethod
    @abstractmethod
    def feed_forward(cls, block: nn.Module, x: Tensor) -> Tensor:
        """Run the rest of the block on the tokens that are left, (B, T', D)."""

    @classmethod
    def next_norm(cls, block: nn.Module) -> nn.LayerNorm | None:
        """The LayerNorm that `feed_forward` begins with, if it may be computed along with the merge."""
        return None

    @classmethod
    def feed_forward_normed(cls, block: nn.Module, x: Tensor, normed: Tensor) -> Tensor:
        """`feed_forward` of tokens whose `next_norm` is known; called only where a dialect names one."""
        raise NotImplementedError(f"{cls.__name__} names a next_norm, so it must say what comes behind it")

    @classmethod
    @abstractmethod
    def shape(cls, block: nn.Module) -> BlockShape:
        """The block's sizes, for counting operations."""

    @classmethod
    def run(cls, host: nn.Module, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What replaces the host's forward."""
        if args or kwargs:
            refuse_arguments(host, args, kwargs)
        return site.plan.block(site.index, host, x)

    @classmethod
    def token_axis(cls, host: nn.Module, x: Tensor) -> int:
        """The axis of the tokens in the host's input and output."""
        return 1


class PairDialect(Dialect):
    """A dialect of pairs [attention, feed-forward] in a list, run by the loop of the module that holds the list."""

    host_levels = 2  # pair -> ModuleList -> module with the loop

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        is_pair = isinstance(block, nn.ModuleList) and len(block) == 2
        return cls.recognise_pair(block) if is_pair else NO_MATCH

    @classmethod
    @abstractmethod
    def recognise_pair(cls, pair: Any) -> Recognition:
        """`recognise` for a list of two modules."""

    @classmethod
    def run(cls, host: Any, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        refuse_arguments(host, args, kwargs)
        for index, block in enumerate(host.layers):
            x = site.plan.block(index, block, x)
        return x


_DIALECTS: list[type[Dialect]] = []


def register_dialect(dialect: type[Dialect]) -> type[Dialect]:
    """Make a dialect known; later ones are tried first. Usable as a class decorator."""
    if dialect not in _DIALECTS:
        _DIALECTS.insert(0, dialect)
    return dialect


def all_dialects() -> tuple[type[Dialect], ...]:
    """All registered dialects, in the order in which they are tried."""
    return tuple(_DIALECTS)


def hidden_width(feed: nn.Module, dim: int) -> int:
    """Width of the two-layer feed-forward with as many multiply-adds as all linear layers of `feed` together."""
    layers = [layer for layer in feed.modules() if isinstance(layer, nn.Linear)]
    return sum(layer.in_features * layer.out_features for layer in layers) // (2 * dim)


def refuse_arguments(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A compressed block takes tokens and nothing else: a mask would not fit the tokens that are left."""
    extra = {f"argument {i + 2}": value for i, value in enumerate(args)} | kwargs
    for name, value in extra.items():
        if value is None or value is False:
            continue
        given = f"a {type(value).__name__}"
        raise OptionError(name, given, f"a compressed {original_class(host).__name__} takes no mask or other argument")


# -- earlier names -----------------------------------------------------------------------------------------------------


class Seam(Dialect):
    """A dialect that says `refuses` in the place of `recognise`, as the first ones did."""

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        missing = cls.refuses(block)
        return MATCH if missing is None else Recognition(False, missing)

    @classmethod
    @abstractmethod
    def refuses(cls, block: nn.Module) -> str | None:
        """None for a block of the dialect, "" for any other, or what a near miss lacks."""


class PairSeam(Seam, PairDialect):
    """A dialect of pairs that says `refuses_pair` in the place of `recognise_pair`."""

    @classmethod
    def refuses(cls, block: nn.Module) -> str | None:
        return cls.refuses_pair(block) if isinstance(block, nn.ModuleList) and len(block) == 2 else ""

    @classmethod
    @abstractmethod
    def refuses_pair(cls, pair: Any) -> str | None:
        """`refuses` for a list of two modules."""


register_seam = register_dialect
