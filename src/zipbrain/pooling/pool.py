"""`pool`: reduce one set of tokens with any method, with every argument checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zipbrain.errors import OptionError, ShapeError
from zipbrain.numerals import whole_number
from zipbrain.pooling.backends.choose import is_captured, pool_tokens
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.methods import ZIPBrain
from zipbrain.pooling.methods.base import Method, as_method
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens

Protected = int | tuple[int, int] | Tensor
"""A number of leading tokens, (leading, trailing), or a boolean mask over the T tokens."""


def pool(
    x: Tensor,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    r: int,
    method: Method | str | dict[str, Any] | None = None,
    protected: Protected = 0,
    mass: Tensor | None = None,
    layer: int = 1,
    depth: int = 1,
    linear: bool = False,
    scale: float | None = None,
) -> Pooled:
    """Reduce T tokens to T - r.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        The residual stream after attention.
    q, k, v : Tensor of shape (B, H, T, d), optional
        Needed where the method reads them.
    r : int
        How many tokens go: 0 <= r < N, N the number of unprotected tokens. ToMe and ToFu cut it to N // 2.
    method : Method, str or dict
        `ZIPBrain()` by default.
    protected : int, (int, int) or Tensor of bool
        Tokens that are never pivot, source or target: a number of leading ones, (leading, trailing), or a mask of
        shape (T,) or (B, T) with equally many per window.
    mass : Tensor of shape (B, T), optional
        How many original tokens each token stands for; weighs the merge and is merged itself.
    layer, depth : int
        Which block this is (from 1) of how many: ToFu and the random ablations depend on it.
    linear : bool
        Whether q and k belong to linear attention (EViT).
    scale : float, optional
        Factor on q k^T of softmax attention (EViT); d ** -0.5 if not given.

    Returns
    -------
    pooled : Pooled

    Examples
    --------
    >>> import torch, zipbrain
    >>> x = torch.randn(2, 24, 8)
    >>> pooled = zipbrain.pool(x, r=6, method=zipbrain.ZIPBrain("x", "x", "x", rho=0.5), protected=1)
    >>> pooled.x.shape
    torch.Size([2, 18, 8])
    """
    chosen = ZIPBrain() if method is None else as_method(method)
    _check_tensors(x, q, k, v, mass, chosen)
    total = int(x.shape[1])
    leading, trailing, mask, safe = read_protected(protected, total, x.shape[0])
    count = total - safe
    if whole_number("r", r) >= max(count, 1):
        raise OptionError("r", r, f"it must be from 0 to {max(count - 1, 0)} ({count} unprotected tokens)")
    tokens = Tokens(x, r, q, k, v, leading, trailing, mass=mass, layer=layer, depth=depth, scale=scale, linear=linear)
    if mask is None:
        return pool_tokens(tokens, chosen, weigh=mass is not None)
    return pool_masked(tokens, chosen, mask.to(x.device), total - count, weigh=mass is not None)


def pool_masked(tokens: Tokens, method: Method, mask: Tensor, count: int, weigh: bool) -> Pooled:
    """Pool with protected tokens anywhere: bring them to the front, pool, and restore the order.

    `tokens` has no leading or trailing ones; `mask` (bool (B, T)) protects `count` per row; `weigh`: mass weighs the
    merge.
    """
    tokens, total = tokens.joined(), tokens.total
    index = torch.arange(total, device=mask.device)
    # Distinct keys: protected tokens first, both parts in their original order.
    order = torch.where(mask, index, index + total).topk(total, dim=1, largest=False).indices  # (B, T)

    def arrange(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        if values.dim() == 2:
            return values.gather(1, order)
        if values.dim() == 3:
            return take(values, order)
        return values.gather(2, order[:, None, :, None].expand_as(values))

    rest: dict[str, Any] = {name: arrange(getattr(tokens, name)) for name in ("q", "k", "v", "mass", "bias")}
    arranged = replace(tokens, x=take(tokens.x, order), leading=count, attention=None, **rest)
    pooled = pool_tokens(arranged, method, weigh)
    found = pooled.grouping
    names = torch.cat((order, torch.full_like(order[:, :1], total)), dim=1)  # an appended token keeps index T

    def rename(places: Tensor) -> Tensor:
        return torch.where(places < 0, places, names.gather(1, places.clamp_min(0)))

    kept, back = rename(found.kept).sort(dim=1)
    source, swap = rename(found.source).sort(dim=1)
    target = rename(found.target).gather(1, swap)
    weight = None if found.weight is None else found.weight.gather(1, swap)
    grouping = Grouping(kept, source, target, total, found.appended, weight, found.drops)
    mass = None if pooled.mass is None else pooled.mass.gather(1, back)
    restored = Pooled(take(pooled.x, back), grouping, mass)
    restored.backend = pooled.backend
    return restored


def read_protected(protected: object, total: int | None = None, batch: int = 1) -> tuple[int, int, Tensor | None, int]:
    """Read the `protected` option: leading, trailing, a mask (B, T) if it is not just the ends, and how many.

    Without `total`, any number of tokens will do.
    """
    if isinstance(protected, Tensor):
        mask = protected.unsqueeze(0) if protected.dim() == 1 else protected
        length = protected.shape[-1] if total is None and protected.dim() else total
        if mask.dtype != torch.bool or mask.dim() != 2 or mask.shape[1] != length or mask.shape[0] not in (1, batch):
            given = f"a {protected.dtype} tensor of shape {tuple(protected.shape)}"
            shape = "T" if total is None else total
            raise OptionError("protected", given, f"a mask must be bool of shape ({shape},) or ({batch}, {shape})")
        counts = mask.sum(1)
        if bool((counts != counts[:1]).any()):
            raise OptionError("protected", counts.tolist(), "every window must protect equally many tokens")
        ends = _ends_of(mask[0].tolist()) if mask.shape[0] and bool((mask == mask[0]).all()) else None
        if ends is not None:
            return *ends, None, sum(ends)
        return 0, 0, mask.expand(batch, -1), int(counts[0]) if len(counts) else 0
    pair = protected if isinstance(protected, tuple | list) else (protected, 0)
    if len(pair) != 2:
        raise OptionError("protected", protected, "it must be a count, (leading, trailing), or a mask over the tokens")
    leading, trailing = (whole_number("protected", count) for count in pair)
    if total is not None and leading + trailing > total:
        raise OptionError("protected", protected, f"there are only {total} tokens")
    return leading, trailing, None, leading + trailing


def _ends_of(flags: list[bool]) -> tuple[int, int] | None:
    """(leading, trailing) of a mask that protects nothing but its two ends, else None."""
    leading = flags.index(False) if False in flags else len(flags)
    trailing = flags[::-1].index(False) if False in flags else 0
    return (leading, trailing) if leading + trailing == sum(flags) else None


def _check_tensors(
    x: Tensor, q: Tensor | None, k: Tensor | None, v: Tensor | None, mass: Tensor | None, method: Method
) -> None:
    if not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point():
        given = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError("x", given, "it must be a floating-point tensor of shape (B, T, D)")
    for name, heads in (("q", q), ("k", k), ("v", v)):
        if heads is None:
            if name in method.reads:
                raise OptionError(name, None, f"{method.name} reads {name}: give it as a (B, H, T, d) tensor")
            continue
        fits = isinstance(heads, Tensor) and heads.dim() == 4 and heads.is_floating_point()
        if not fits or heads.shape[0] != x.shape[0] or heads.shape[2] != x.shape[1]:
            given = f"{heads.dtype} {tuple(heads.shape)}" if isinstance(heads, Tensor) else type(heads).__name__
            raise ShapeError(name, given, f"it must be (B, H, T, d) with B = {x.shape[0]} and T = {x.shape[1]}")
        if heads.device != x.device:
            raise ShapeError(name, f"a tensor on {heads.device}", f"x is on {x.device}")
    if mass is not None and (not isinstance(mass, Tensor) or mass.shape != x.shape[:2]):
        found = str(tuple(mass.shape)) if isinstance(mass, Tensor) else type(mass).__name__
        raise ShapeError("mass", found, f"it must be (B, T) = {tuple(x.shape[:2])}")
    if mass is not None and not is_captured() and not mass.is_meta:  # a graph can't ask for values
        wrong = int((~(mass.isfinite() & (mass >= 0))).sum())
        if wrong:
            raise OptionError("mass", f"{wrong} negative or infinite values or NaN", "it must count tokens: 0 or more")
