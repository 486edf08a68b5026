"""ZIPBrain in two calls of compiled code around the matching product, for float32 CPU tensors outside of a graph."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from zipbrain.pooling.backends import plain
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import VANISHED, LargestNorm
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.zipbrain import ZIPBrain
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.steps import RESOLUTION, float32_product, pivot_count
from zipbrain.pooling.tokens import Tokens

_cpu: Any
try:
    from zipbrain.pooling.backends import _cpu  # type: ignore[attr-defined, no-redef, unused-ignore]

    _cpu.set_resolution(RESOLUTION)
except ImportError:  # installed without a C compiler: the plain operators do the same
    _cpu = None

NAME: Final = "C kernel"
_FLOATS: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the process has as its defaults
_MOST_SIMILARITIES = 2**24  # cosines held at once; beyond, the plain operators match in chunks

_on = os.environ.get("ZIPBRAIN_CPU_KERNEL", "1") != "0"


def available() -> bool:
    """True if the compiled kernel was built."""
    return _cpu is not None


def switch(on: bool) -> bool:
    """Turn the kernel on or off in this process (also: environment ZIPBRAIN_CPU_KERNEL=0); returns the old setting."""
    global _on
    before, _on = _on, on
    return before


def refusal(tokens: Tokens, method: Method) -> str:
    """Why the kernel can't pool these tokens; "" if it can."""
    if not isinstance(method, ZIPBrain):
        return "the C kernel knows ZIPBrain alone"
    if _cpu is None:
        return "the C kernel was not built"
    if not _on:
        return "the C kernel is switched off"
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or forward_ad._current_level >= 0:
        return "the C kernel stays outside of graphs and forward gradients"
    count = tokens.count
    if not 0 < tokens.r < count:
        return "nothing goes"
    if tokens.x.shape[0] * tokens.r * count > _MOST_SIMILARITIES:
        return "the windows are too many or too long for the C kernel"
    for name in {"x", method.z1[0], method.z2[0], method.z3[0]}:
        values = getattr(tokens, name)
        if type(values) is not Tensor or values.dtype is not torch.float32 or not values.is_cpu:
            return "the C kernel takes float32 tensors on a CPU"
        if values.stride(-1) != 1 or torch._C._functorch.is_functorch_wrapped_tensor(values):
            return "the C kernel takes plain tensors whose features lie side by side"
    return ""


def forward(tokens: Tokens, method: Method, weigh: bool, norm: nn.LayerNorm | None) -> Pooled:
    """Group by the kernel; merge by it too, by the largest norm, without mass and without gradient."""
    assert isinstance(method, ZIPBrain)
    follows_gradient = tokens.x.requires_grad and torch.is_grad_enabled()
    if tokens.mass is not None or follows_gradient or type(method.merge) is not LargestNorm:
        return plain.merge(tokens, method, _run(tokens, method, merge=False)[0], weigh)
    grouping, x = _run(tokens, method, merge=True)
    assert x is not None
    return Pooled(x, grouping)


def _run(tokens: Tokens, method: ZIPBrain, merge: bool) -> tuple[Grouping, Tensor | None]:
    """Groups, and the merged features (B, T - r, D) where `merge` is True."""
    x, r, n, total = tokens.x.detach(), tokens.r, tokens.count, tokens.total
    batch = x.shape[0]
    z1, z2, z3 = method.z1, method.z2, method.z3
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
    sizes = batch, n, r, pivot_count(n, r, method.share), tokens.leading, tokens.trailing
    indices = kept.data_ptr(), source.data_ptr(), redundant.data_ptr()
    units = 0 if z3 == "x" else unit.data_ptr()
    _cpu.decide(*views, z1 == z2, z1 == z3, z2 == z3, *sizes, *indices, units, rows.data_ptr(), lengths.data_ptr())
    cosine = float32_product(rows, unit.transpose(1, 2))
    merged = torch.empty((batch, total - r, x.shape[2]), **_FLOATS) if merge else None
    scores = cosine.data_ptr(), lengths.data_ptr() if z3 == "x" else 0, redundant.data_ptr()
    features = x.data_ptr(), x.stride(0), x.stride(1), x.shape[2]
    groups = kept.data_ptr(), source.data_ptr(), target.data_ptr()
    out = 0 if merged is None else merged.data_ptr()
    _cpu.finish(*scores, *features, batch, n, r, tokens.leading, total, *groups, out, VANISHED)
    return Grouping(kept, source, target, total), merged


def _view(tokens: Tokens, space: str) -> tuple[int, int, int, int, int, int, int]:
    """Address of the first unprotected token, strides of batch, head and token, heads, width, and kind of space."""
    if space == "x":
        x = tokens.x
        return x.data_ptr() + 4 * tokens.leading * x.stride(1), x.stride(0), 0, x.stride(1), 1, x.shape[2], 0
    heads: Tensor = getattr(tokens, space[0])
    batch, head, token, _ = heads.stride()
    start = heads.data_ptr() + 4 * tokens.leading * token
    return start, batch, head, token, heads.shape[1], heads.shape[3], 2 if space[1:] else 1
