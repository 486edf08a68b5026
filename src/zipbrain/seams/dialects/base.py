"""A seam: one dialect of transformer block, cut open between attention and feed-forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.evaluation_mode import evaluation_mode

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


class Seam(ABC):
    """One dialect of transformer block. Subclass, fill in four methods, and call `register_seam`."""

    name: ClassVar[str]
    looks_like: ClassVar[str]  # what the block must have, for the error that lists all dialects
    host_levels: ClassVar[int] = 0  # how far above the block the module stands whose forward runs it (0: the block)
    units: ClassVar[str] = "tokens"  # what is pooled
    axis: ClassVar[str] = ""  # of a grid, where it is not the usual one: "time"
    cells: ClassVar[str] = ""  # of a grid: what stands side by side in a unit
    positional: ClassVar[bool] = False  # attention depends on positions: `attend` gets them as a fifth argument (B, T)

    @classmethod
    def along(cls, axis: str | None) -> type[Seam]:
        """The dialect that pools along an axis of its grid; refused where there is no grid."""
        if axis is not None:
            raise OptionError("axis", axis, f"{cls.name} blocks hold one sequence of tokens and no grid: leave it out")
        return cls

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
    def attend_ends(cls, block: nn.Module, x: Tensor, bias: Tensor | None, ends: Ends) -> Attended:
        """`attend` for the tokens at the two ends alone: stream and q hold theirs, k and v those of all tokens."""
        raise NotImplementedError(f"{cls.__name__} has no attention of some tokens alone")

    @classmethod
    def has_tail(cls) -> bool:
        """True where the class that says how to `attend` also says how to `attend_ends`."""
        owner = next(kind for kind in cls.__mro__ if "attend" in vars(kind))
        return owner is not Seam and "attend_ends" in vars(owner)

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


class PairSeam(Seam):
    """A dialect of pairs [attention, feed-forward] in a list, run by the loop of the module that holds the list."""

    host_levels = 2  # pair -> ModuleList -> module with the loop

    @classmethod
    def refuses(cls, block: nn.Module) -> str | None:
        return cls.refuses_pair(block) if isinstance(block, nn.ModuleList) and len(block) == 2 else ""

    @classmethod
    @abstractmethod
    def refuses_pair(cls, pair: Any) -> str | None:
        """`refuses` for a list of two modules."""

    @classmethod
    def run(cls, host: Any, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        refuse_arguments(host, args, kwargs)
        for index, block in enumerate(host.layers):
            x = site.plan.block(index, block, x)
        return x


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


def hidden_width(feed: nn.Module, dim: int) -> int:
    """Width of the two-layer feed-forward with as many multiply-adds as all linear layers of `feed` together."""
    layers = [layer for layer in feed.modules() if isinstance(layer, nn.Linear)]
    return sum(layer.in_features * layer.out_features for layer in layers) // (2 * dim)


def refuse_other_forward(
    seam: type[Seam],
    block: nn.Module,
    weight: Tensor,
    forward: Callable[[Tensor], Tensor] | None = None,
    steps: int = 1,
) -> str | None:
    """A reason if a block's own forward gives something else than the seam, tried on 3 tokens and on 240; else None.

    `weight` is any weight that takes tokens, for width, dtype and device; of a grid, a token holds `steps` such widths.
    Attention over neighbours differs only among many tokens. A forward that fails on tokens needs a grid and differs;
    one that needs more arguments, or has weights without values, is judged by its structure alone. The verdict is
    cached until the block's code, plain attributes or weights change.
    """
    if weight.is_meta:
        return None

    def own_forward(x: Tensor) -> Tensor:
        result: Tensor = original_class(block).forward(block, x)
        return result

    state = [torch.is_autocast_enabled(weight.device.type), *_fingerprint(block)]
    verdicts = _VERDICTS.setdefault(block, {})
    known = verdicts.get(seam)
    if known is None or known[0] != state:
        known = verdicts[seam] = state, _tried(seam, block, weight, forward or own_forward, steps)
    return _OTHER_FORWARD if known[1] else None


# Weak, so that a block is forgotten with its model; a copy is another block and is looked at anew.
_VERDICTS: WeakKeyDictionary[nn.Module, dict[type[Seam], tuple[Any, bool]]] = WeakKeyDictionary()


def _fingerprint(block: nn.Module) -> list[Any]:
    """All that may change a verdict: classes and their forwards, hooks, plain attributes, identities of weights.

    Equal before and after `compress`. It holds no reference to the block, which would keep it alive.
    """
    found: list[Any] = []
    for module in block.modules():
        kind, own = original_class(module), module.__dict__
        plain = {name: repr(value) for name, value in own.items() if name != "training" and is_plain(value)}
        hooks = [*module._forward_pre_hooks, *module._forward_hooks]
        found += [kind, kind.forward, id(own.get("forward")), plain, hooks]
    for value in (*block.parameters(), *block.buffers()):
        found.append((id(value), None if value.is_inference() else value._version, value.dtype, value.device))
    return found


def is_plain(value: object) -> bool:
    """Whether a value is None, a truth value, a number, a string, or a list or tuple of such."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _tried(seam: type[Seam], block: nn.Module, weight: Tensor, forward: Callable[[Tensor], Tensor], steps: int) -> bool:
    try:
        with evaluation_mode(block):
            return any(_differs(seam, block, weight, forward, (count, steps)) for count in (3, 240))
    except TypeError:  # more arguments
        return False
    except Exception as error:
        return "not implemented for" not in str(error)  # of this dtype on this device


def _differs(
    seam: type[Seam], block: nn.Module, weight: Tensor, forward: Callable[[Tensor], Tensor], size: tuple[int, int]
) -> bool:
    count, steps = size
    values = torch.linspace(1, 40, count * steps * weight.shape[1], device=weight.device)
    x = (values.sin() + (7 * values).cos()).reshape(1, count, -1).to(weight.dtype)
    where: tuple[Any, ...] = (torch.arange(count, device=weight.device)[None],) if seam.positional else ()
    with torch.no_grad():
        expected = forward(x)
        found = seam.feed_forward(block, seam.attend(block, x, None, False, *where).x)
        change, largest = (expected - x).abs().max(), expected.abs().max()
        bound = 0.01 * change + 16 * torch.finfo(x.dtype).eps * largest
        return bool((found - expected).abs().max() > bound)


_OTHER_FORWARD = "its forward does something else than pre-norm attention and feed-forward"


def refuse_arguments(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A compressed block takes tokens and nothing else: a mask would not fit the tokens that are left."""
    extra = {f"argument {i + 2}": value for i, value in enumerate(args)} | kwargs
    for name, value in extra.items():
        if value is None or value is False:
            continue
        given = f"a {type(value).__name__}"
        raise OptionError(name, given, f"a compressed {original_class(host).__name__} takes no mask or other argument")
