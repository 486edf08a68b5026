"""ZIPBrain in two calls of compiled code around the matching product, for float32 CPU tensors outside of a graph."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from zipbrain.pooling.steps import float32_product
from zipbrain.pooling.tokens import Tokens

_cpu: Any
try:
    from zipbrain.pooling.backends import _cpu  # type: ignore[attr-defined, no-redef, unused-ignore]
except ImportError:  # installed without a C compiler: the plain operators do the same
    _cpu = None

_FLOATS: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the process has as its defaults
_MOST_SIMILARITIES = 2**24  # held at once; beyond, the plain path matches in chunks

_on = os.environ.get("ZIPBRAIN_CPU_KERNEL", "1") != "0"


def available() -> bool:
    """Whether the compiled kernel was built."""
    return _cpu is not None


def switch(on: bool) -> bool:
    """Turn the kernel on or off in this process (also: environment ZIPBRAIN_CPU_KERNEL=0); returns the old setting."""
    global _on
    before, _on = _on, on
    return before


def usable(tokens: Tokens, spaces: tuple[str, str, str]) -> bool:
    """Whether these tokens are ordinary float32 CPU tensors, and no graph is being captured."""
    if not _on or _cpu is None or torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return False
    if torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0:
        return False  # the matching product would be rounded; a forward gradient would be lost
    fits = tokens.x.shape[0] * tokens.r * tokens.count <= _MOST_SIMILARITIES
    if not fits or not 0 < tokens.r < tokens.count:
        return False
    for name in {"x", *(space[0] for space in spaces)}:
        values = getattr(tokens, name)
        if type(values) is not Tensor or values.dtype is not torch.float32 or not values.is_cpu:
            return False
        if values.stride(-1) != 1 or torch._C._functorch.is_functorch_wrapped_tensor(values):
            return False
    return True


def group(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, vanished: float, merge: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Decide and merge.

    Parameters
    ----------
    tokens : Tokens
        For which `usable` is true.
    spaces : tuple of str
        z1, z2, z3.
    pivots : int
        Number of pivots.
    vanished : float
        A sum this many times shorter than its longest member takes the kept token's direction.
    merge : bool
        Whether to merge x, by the largest norm and without mass.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    merged : Tensor of shape (B, T - r, D), or None
    """
    x, r, n, total = tokens.x.detach(), tokens.r, tokens.count, tokens.total
    batch = x.shape[0]
    z1, z2, z3 = spaces
    views = (*_view(tokens, z1), *_view(tokens, z2), *_view(tokens, z3))
    integers = torch.empty((batch, total + r), dtype=torch.int64, device="cpu")
    flat = integers.view(-1)
    kept = flat[: batch * (total - r)].view(batch, total - r)
    source = flat[batch * (total - r) : batch * total].view(batch, r)
    target = flat[batch * total :].view(batch, r)
    redundant = torch.empty((batch, n), dtype=torch.uint8, device="cpu")
    if z3 == "x":
        unit = tokens.unprotected(x, 1)
        width = x.shape[2]
    else:
        heads: Tensor = getattr(tokens, z3[0])
        width = heads.shape[3] * (heads.shape[1] if z3[1:] else 1)
        unit = torch.empty((batch, n, width), **_FLOATS)
    rows = torch.empty((batch, r, width), **_FLOATS)
    lengths = torch.empty((batch, n), **_FLOATS)
    _cpu.decide(
        *views, z1 == z2, z1 == z3, z2 == z3, batch, n, r, pivots, tokens.leading, tokens.trailing, kept.data_ptr(),
        source.data_ptr(), redundant.data_ptr(), 0 if z3 == "x" else unit.data_ptr(), rows.data_ptr(),
        lengths.data_ptr(),
    )  # fmt: skip
    cosine = float32_product(rows, unit.transpose(1, 2))
    merged = torch.empty((batch, total - r, x.shape[2]), **_FLOATS) if merge else None
    _cpu.finish(
        cosine.data_ptr(), lengths.data_ptr() if z3 == "x" else 0, redundant.data_ptr(), x.data_ptr(), x.stride(0),
        x.stride(1), x.shape[2], batch, n, r, tokens.leading, total, kept.data_ptr(), source.data_ptr(),
        target.data_ptr(), 0 if merged is None else merged.data_ptr(), vanished,
    )  # fmt: skip
    return kept, source, target, merged


def _view(tokens: Tokens, space: str) -> tuple[int, int, int, int, int, int, int]:
    """Address of the first unprotected token, strides of batch, head and token, heads, width, and kind of space."""
    if space == "x":
        x = tokens.x
        return x.data_ptr() + 4 * tokens.leading * x.stride(1), x.stride(0), 0, x.stride(1), 1, x.shape[2], 0
    heads: Tensor = getattr(tokens, space[0])
    batch, head, token, _ = heads.stride()
    start = heads.data_ptr() + 4 * tokens.leading * token
    return start, batch, head, token, heads.shape[1], heads.shape[3], 2 if space[1:] else 1
