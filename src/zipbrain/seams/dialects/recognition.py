"""`Recognition`: whether a block is of a dialect, by its parts and by what its own forward gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from zipbrain.seams.evaluation_mode import evaluation_mode

if TYPE_CHECKING:
    from zipbrain.seams.dialects.base import Dialect
    from zipbrain.seams.forward import Site


class Recognition(NamedTuple):
    """Whether a block is of a dialect and, if it nearly is, what it lacks."""

    is_match: bool
    missing: str = ""  # of a near miss: why it can't be cut open, in words


MATCH: Final = Recognition(True)
NO_MATCH: Final = Recognition(False)


def near_miss(missing: str) -> Recognition:
    """A block that looks like the dialect's but can't be cut open, and why: "its attention is causal"."""
    return Recognition(False, missing)


_OTHER_FORWARD = near_miss("its forward does something else than pre-norm attention and feed-forward")


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before it was compressed."""
    site: Site | None = module.__dict__.get("_zipbrain")
    return type(module) if site is None else site.original


def match_forward(
    dialect: type[Dialect],
    block: nn.Module,
    weight: Tensor,
    forward: Callable[[Tensor], Tensor] | None = None,
    cells_per_token: int = 1,
) -> Recognition:
    """`MATCH` if a block's own forward gives what the dialect gives, tried on 3 tokens and on 240; else a near miss.

    `weight` is any weight that takes tokens, for width, dtype and device; of a grid, a token holds `cells_per_token`
    such widths. Attention over neighbours differs only among many tokens. A forward that fails on tokens needs a grid
    and differs; one that needs more arguments, or has weights without values, is judged by its structure alone. The
    verdict is cached until the block's code, plain attributes or weights change.
    """
    if weight.is_meta:
        return MATCH

    def own_forward(x: Tensor) -> Tensor:
        result: Tensor = original_class(block).forward(block, x)
        return result

    state = [torch.is_autocast_enabled(weight.device.type), *_fingerprint(block)]
    verdicts = _VERDICTS.setdefault(block, {})
    known = verdicts.get(dialect)
    if known is None or known[0] != state:
        known = verdicts[dialect] = state, _try_forward(dialect, block, weight, forward or own_forward, cells_per_token)
    return known[1]


# Weak, so that a block is forgotten with its model; a copy is another block and is looked at anew.
_VERDICTS: WeakKeyDictionary[nn.Module, dict[type[Dialect], tuple[list[Any], Recognition]]] = WeakKeyDictionary()


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
    """True for None, a truth value, a number, a string, and a list or tuple of such."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _try_forward(
    dialect: type[Dialect], block: nn.Module, weight: Tensor, forward: Callable[[Tensor], Tensor], cells_per_token: int
) -> Recognition:
    """`match_forward` without its cache."""
    sizes = [(count, cells_per_token * weight.shape[1]) for count in (3, 240)]
    try:
        with evaluation_mode(block):
            is_other = any(_differs(dialect, block, weight, forward, size) for size in sizes)
    except TypeError:  # more arguments
        return MATCH
    except Exception as error:
        is_other = "not implemented for" not in str(error)  # of this dtype on this device
    return _OTHER_FORWARD if is_other else MATCH


def _differs(
    dialect: type[Dialect], block: nn.Module, weight: Tensor, forward: Callable[[Tensor], Tensor], size: tuple[int, int]
) -> bool:
    """True if the block's forward and the dialect give different answers to (T, D) = `size` made-up tokens."""
    count, width = size
    values = torch.linspace(1, 40, count * width, device=weight.device)
    x = (values.sin() + (7 * values).cos()).reshape(1, count, -1).to(weight.dtype)
    where: tuple[Any, ...] = (torch.arange(count, device=weight.device)[None],) if dialect.positional else ()
    with torch.no_grad():
        expected = forward(x)
        found = dialect.feed_forward(block, dialect.attend(block, x, None, False, *where).x)
        change, largest = (expected - x).abs().max(), expected.abs().max()
        bound = 0.01 * change + 16 * torch.finfo(x.dtype).eps * largest
        return bool((found - expected).abs().max() > bound)
