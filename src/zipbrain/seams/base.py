"""A seam: one dialect of transformer block, cut open between attention and feed-forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape

if TYPE_CHECKING:
    from zipbrain.seams.plan import Site


@dataclass(frozen=True, eq=False)
class Attended:
    """A block after its attention.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        The residual stream: attention added, layer scale included (in a post-norm layer, norm1's output).
    q, k, v : Tensor, shape (B, H, T, d)
        What entered the dot product, before the scale.
    scale : float
        Factor on q k^T.
    linear : bool
        Linear attention.
    attention : Tensor of shape (B, H, T, T), optional
        The attention map, if it was asked for.
    """

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    linear: bool = False
    attention: Tensor | None = None


class Seam(ABC):
    """One dialect of transformer block. Subclass, fill in four methods, and call `register_seam`."""

    name: ClassVar[str]
    looks_like: ClassVar[str]  # what the block must have, for the error that lists all dialects
    host_levels: ClassVar[int] = 0  # how far above the block the module stands whose forward runs it (0: the block)

    @classmethod
    @abstractmethod
    def refuses(cls, block: nn.Module) -> str | None:
        """None if this is a block of the dialect, "" if not, or the reason why a near miss can't be cut open."""

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
    @abstractmethod
    def feed_forward(cls, block: nn.Module, x: Tensor) -> Tensor:
        """Run the rest of the block on the tokens that are left, (B, T', D)."""

    @classmethod
    @abstractmethod
    def shape(cls, block: nn.Module) -> BlockShape:
        """The block's sizes, for counting operations."""

    @classmethod
    def run(cls, host: nn.Module, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What replaces the host's forward."""
        refuse_arguments(host, args, kwargs)
        return site.plan.block(site.index, host, x)

    @classmethod
    def tokens_in(cls, host: nn.Module, x: Tensor) -> int:
        """T of the host's input."""
        return int(x.shape[1])


_SEAMS: list[type[Seam]] = []


def register_seam(seam: type[Seam]) -> type[Seam]:
    """Make a dialect known; later ones are tried first. Usable as a class decorator."""
    if seam not in _SEAMS:
        _SEAMS.insert(0, seam)
    return seam


def seams() -> tuple[type[Seam], ...]:
    """All known dialects."""
    return tuple(_SEAMS)


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before it was compressed."""
    site: Site | None = module.__dict__.get("_zipbrain")
    return type(module) if site is None else site.original


def refuse_arguments(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A compressed block takes tokens and nothing else: a mask would not fit the tokens that are left."""
    extra = {f"argument {i + 2}": value for i, value in enumerate(args)} | kwargs
    for name, value in extra.items():
        if value is None or value is False:
            continue
        given = f"a {type(value).__name__}"
        raise OptionError(name, given, f"a compressed {original_class(host).__name__} takes no mask or other argument")
