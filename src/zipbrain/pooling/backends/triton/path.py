"""ZIPBrain and Twins in a few Triton kernels, for CUDA tensors. Needs no triton to be imported itself."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import LargestNorm, Mean, MeanNorm, MergeRule, WeightedMean
from zipbrain.pooling.steps import evenly_spread
from zipbrain.pooling.tokens import Tokens

MOST_TOKENS: Final = 512  # unprotected ones that a program holds; beyond, several programs share a window
LONGEST: Final = 2**15  # unprotected tokens; beyond, the plain operators run
MOST_FEATURES: Final = 2048  # in a row of x
_MOST_HEADS: Final = 32
FEW_WINDOWS = 4  # that leave an H200 so much room that cosines of all pairs cost nothing: others by their size
_FOR_EACH: Final = 32  # multiprocessors
MOST_SOURCES: Final = 1024  # that go in one layer
MOST_PROGRAMS: Final = 2**16 - 1  # for a window: a merge may have one for every token
_REACH: Final = 2**31  # elements from the first to the last of a window: offsets inside it are 32 bits wide
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
MODES: Final[dict[type, int]] = {LargestNorm: 0, MeanNorm: 1, Mean: 2, WeightedMean: 2}

_installed = importlib.util.find_spec("triton") is not None
_on = os.environ.get("ZIPBRAIN_TRITON", "1") != "0"
_interpret = False


def switch(on: bool) -> bool:
    """Turn the kernels on or off in this process (also: environment ZIPBRAIN_TRITON=0); returns the old setting."""
    global _on
    before, _on = _on, on
    return before


def is_on() -> bool:
    """Whether the kernels are turned on."""
    return _on


def interpret(on: bool) -> bool:
    """Use Triton's interpreter for CPU tensors, to test the kernels without a GPU; returns the old setting.

    Very slow, and without effect unless the process was started with TRITON_INTERPRET=1 in its environment.
    """
    global _interpret
    before, _interpret = _interpret, on and os.environ.get("TRITON_INTERPRET") == "1"
    return before


def interpreting() -> bool:
    """Whether CPU tensors go to Triton's interpreter."""
    return _interpret


def taken(values: Tensor) -> bool:
    """Whether tensors like this one go to the kernels at all: turned on, and on a GPU or for the interpreter."""
    return _on and (values.is_cuda or _interpret)


def few(x: Tensor) -> bool:
    """Whether so many windows leave a GPU free for what will turn out not to be needed."""
    batch = x.shape[0]
    return batch <= FEW_WINDOWS and (not x.is_cuda or batch * _FOR_EACH <= _multiprocessors(x.device))


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def available() -> bool:
    """Whether Triton is installed and loads."""
    if not _installed or torch.compiler.is_compiling():  # a graph on a GPU is compiled by Triton: there it must load
        return _installed
    return _loads()


@cache
def _loads() -> bool:
    try:
        import zipbrain.pooling.backends.triton.merge_launch
        import zipbrain.pooling.backends.triton.select_launch  # noqa: F401
    except Exception:  # a Triton of another time, or without its native library: the plain operators do the same
        return False
    return True


def capable(device: torch.device) -> bool:
    """Whether the device is one the kernels are written for: NVIDIA's, Ampere or later."""
    return (_is_capable if torch.compiler.is_compiling() else _was_capable)(device)


def _is_capable(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_properties(device).major >= 8


_was_capable = cache(_is_capable)  # asking a device costs as much as a launch


def usable(tokens: Tokens, spaces: tuple[str, ...], most: int = LONGEST) -> bool:
    """Whether the kernels can take these tokens: ordinary CUDA tensors of at most 32 bits, not too many per window."""
    x = tokens.x
    if not taken(x):
        return False
    if not 0 < tokens.r < tokens.count <= most or tokens.r > MOST_SOURCES or x.shape[2] > MOST_FEATURES:
        return False
    if x.shape[1] > MOST_PROGRAMS:
        return False
    if followed():
        return False
    for name in {"x", *(space[0] for space in spaces)}:
        values = getattr(tokens, name)
        if values is None or not ordinary(values, x.device) or values.shape[-1] == 0:
            return False
        if values.dim() == 4 and (values.shape[1] > _MOST_HEADS or values.shape[-1] > MOST_FEATURES // 8):
            return False
        if not in_reach(values):
            return False
    return available() and (not x.is_cuda or capable(x.device))


def usable_by_twins(tokens: Tokens) -> bool:
    """Whether the kernels for `Twins` can take these tokens, and their mass if there is any."""
    known = tokens.mass is None or ordinary(tokens.mass, tokens.x.device)
    return known and usable(tokens, ("x", "q", "k", "v"), MOST_TOKENS)


def followed() -> bool:
    """Whether somebody follows the operators who could not follow a kernel: ONNX, a tracer, forward gradients."""
    if torch.compiler.is_compiling():
        return torch.onnx.is_in_onnx_export()
    return bool(torch._C._get_tracing_state()) or forward_ad._current_level >= 0


def ordinary(values: Tensor, device: torch.device, dtypes: tuple[torch.dtype, ...] = DTYPES) -> bool:
    """Whether this is a plain tensor of such a type on the device, not one that a transform has wrapped."""
    if values.dtype not in dtypes or values.device != device:
        return False
    if torch.compiler.is_compiling():
        return True
    return type(values) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(values)


def group(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, beside: bool = False
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Decide: kept, source and target of tokens for which `usable` is true; beside: while other kernels run."""
    values, kinds = read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        found: tuple[Tensor, Tensor, Tensor] = triton_ops.group(*values, kinds, *counts)
        return found
    from zipbrain.pooling.backends.triton import select_launch as triton_select_launch

    return triton_select_launch.group(values, kinds, *counts, beside)


def twins(tokens: Tokens, same: float, flat: float) -> tuple[Tensor, Tensor, Tensor]:
    """Decide as `Twins` does: kept, source and target of tokens for which `usable_by_twins` is true.

    Parameters
    ----------
    tokens : Tokens
        With mass or without.
    same : float
        What smaller squared distances count as.
    flat : float
        The least variance of a space, as a share of its squared mean.
    """
    x, q, k, v = (getattr(tokens, name).detach() for name in "xqkv")
    mass = None if tokens.mass is None else tokens.mass.detach()
    counts = tokens.r, tokens.leading, tokens.trailing
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        order = evenly_spread(tokens.count, x.device, torch.float32)  # of the graph, not of a cache beside it
        found: tuple[Tensor, Tensor, Tensor] = triton_ops.twins(x, q, k, v, mass, order, *counts, same, flat)
        return found
    from zipbrain.pooling.backends.triton import twins_launch as triton_twins_launch

    return triton_twins_launch.group(x, q, k, v, mass, *counts, same, flat)


def pool(tokens: Tokens, spaces: tuple[str, str, str], pivots: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decide and merge by the largest norm, without mass: x, kept, source and target."""
    x = tokens.x.detach()
    values, kinds = read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    if torch.compiler.is_compiling():
        from zipbrain.pooling.backends.triton import ops as triton_ops

        pooled: tuple[Tensor, Tensor, Tensor, Tensor] = triton_ops.pool(x, *values, kinds, *counts)
        return pooled
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    found = triton_select_launch.group(values, kinds, *counts)
    return triton_merge_launch.merge(x, *found, mode=0)[0], *found


def in_reach(values: Tensor) -> bool:
    """Whether 32 bits are enough for every offset inside a window."""
    sizes = zip(values.shape[1:], values.stride()[1:], strict=True)
    return sum((size - 1) * stride for size, stride in sizes) < _REACH


def mergeable(x: Tensor, removed: int) -> bool:
    """Whether the merge kernel can take these tokens, of which so many go."""
    if not taken(x) or followed() or not ordinary(x, x.device):
        return False
    if not 0 < x.shape[2] <= MOST_FEATURES or not 0 < removed <= MOST_SOURCES or x.shape[1] > MOST_PROGRAMS:
        return False
    if not in_reach(x):
        return False
    return available() and (not x.is_cuda or capable(x.device))


def merge(
    x: Tensor, mass: Tensor | None, grouping: Grouping, rule: MergeRule
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """Merge features, and mass weighted by mass, or None where no kernel can: x (B, M, D) and mass (B, M)."""
    mode = MODES.get(type(rule))
    if grouping.drops or grouping.appended or grouping.weight is not None:
        return None
    if mode is None or not mergeable(x, grouping.removed) or (mass is not None and mass.dtype != torch.float32):
        return None
    index = grouping.kept, grouping.source, grouping.target
    compiling = torch.compiler.is_compiling()
    if torch.is_grad_enabled() and (x.requires_grad or (mass is not None and mass.requires_grad)):
        return None if mass is not None or mode or compiling else (merge_followed(x, *index), None)
    if compiling:
        if mass is None:  # `pool` has done it where the groups came from a kernel too
            return None
        from zipbrain.pooling.backends.triton import ops as triton_ops

        both: tuple[Tensor, Tensor] = triton_ops.merge(x.detach(), mass.detach(), *index, mode)
        return both
    from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

    merged, masses, _ = triton_merge_launch.merge(x.detach(), *index, mode, None if mass is None else mass.detach())
    return merged, masses


def merge_followed(x: Tensor, kept: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Merge tokens for which `mergeable` is true by the largest norm, without mass; gradients flow back to x."""
    merged: Tensor = _Merge.apply(x, kept, source, target)  # type: ignore[no-untyped-call]
    return merged


class _Merge(torch.autograd.Function):
    """The merge by the largest norm, and its gradient, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, source: Tensor, target: Tensor) -> Tensor:
        from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

        ctx.save_for_backward(x, kept, source, target)
        return triton_merge_launch.merge(x, kept, source, target, mode=0)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        from zipbrain.pooling.backends.triton import merge_launch as triton_merge_launch

        x, kept, source, target = ctx.saved_tensors
        return triton_merge_launch.merge_gradient(x, kept, source, target, above), None, None, None


def read(tokens: Tokens, spaces: tuple[str, str, str]) -> tuple[list[Tensor], list[int]]:
    """What z1, z2 and z3 read, and how: 0 as it is, 1 mean over heads, 2 per head."""
    values = [getattr(tokens, space[0]).detach() for space in spaces]
    return values, [0 if space == "x" else 2 if space.endswith("h") else 1 for space in spaces]
