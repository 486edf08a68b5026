"""ZIPBrain and Twins in a few Triton kernels, for CUDA tensors. Needs no triton to be imported itself."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.hooks import hooked
from zipbrain.pooling.merges import LargestNorm, Mean, MeanNorm, MergeRule, WeightedMean
from zipbrain.pooling.steps import evenly_spread
from zipbrain.pooling.tokens import Branch, Tokens

MOST_TOKENS: Final = 512  # unprotected ones that a program holds; beyond, several programs share a window
LONGEST: Final = 2**15  # unprotected tokens; beyond, the plain operators run
MOST_FEATURES: Final = 2048  # in a row of x
_MOST_HEADS: Final = 32
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


def available() -> bool:
    """Whether Triton is installed and loads."""
    if not _installed or torch.compiler.is_compiling():  # a graph on a GPU is compiled by Triton: there it must load
        return _installed
    return _loads()


@cache
def _loads() -> bool:
    try:
        from zipbrain.pooling.kernels import triton_launch  # noqa: F401
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


def group(tokens: Tokens, spaces: tuple[str, str, str], pivots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decide: kept, source and target of tokens for which `usable` is true."""
    values, kinds = _read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    if torch.compiler.is_compiling():
        from zipbrain.pooling.kernels import triton_ops

        found: tuple[Tensor, Tensor, Tensor] = triton_ops.group(*values, kinds, *counts)
        return found
    from zipbrain.pooling.kernels import triton_launch

    return triton_launch.group(values, kinds, *counts)


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
        from zipbrain.pooling.kernels import triton_ops

        order = evenly_spread(tokens.count, x.device, torch.float32)  # of the graph, not of a cache beside it
        found: tuple[Tensor, Tensor, Tensor] = triton_ops.twins(x, q, k, v, mass, order, *counts, same, flat)
        return found
    from zipbrain.pooling.kernels import triton_twins_launch

    return triton_twins_launch.group(x, q, k, v, mass, *counts, same, flat)


def pool(tokens: Tokens, spaces: tuple[str, str, str], pivots: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decide and merge by the largest norm, without mass: x, kept, source and target."""
    x = tokens.x.detach()
    values, kinds = _read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    if torch.compiler.is_compiling():
        from zipbrain.pooling.kernels import triton_ops

        pooled: tuple[Tensor, Tensor, Tensor, Tensor] = triton_ops.pool(x, *values, kinds, *counts)
        return pooled
    from zipbrain.pooling.kernels import triton_launch

    found = triton_launch.group(values, kinds, *counts)
    return triton_launch.merge(x, *found, mode=0)[0], *found


def pool_norm(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: nn.LayerNorm | None,
    found: tuple[Tensor, Tensor, Tensor] | None = None, branch: Branch | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Decide, unless that was `found` before, merge by the largest norm and apply a norm: x and normed x.

    A branch for which `takes_branch` is true is added to ``tokens.x`` in passing.
    """
    assert branch is None or takes_branch(tokens, spaces, branch)
    added = None if branch is None else (branch.values, branch.scale)
    x = tokens.x.detach()
    if found is None and torch.compiler.is_compiling():
        from zipbrain.pooling.kernels import triton_ops

        values, kinds = _read(tokens, spaces)
        counts = tokens.r, pivots, tokens.leading, tokens.trailing
        if norm is None or not takes(norm, x):
            merged: Tensor = triton_ops.pool(x, *values, kinds, *counts)[0]
            return merged, None
        both = triton_ops.pool_norm(x, *values, kinds, *counts, norm.weight, norm.bias, norm.eps)
        return both[0], both[1]
    from zipbrain.pooling.kernels import triton_launch

    after = (norm.weight, norm.bias, norm.eps) if norm is not None and takes(norm, x) else None
    known = found is None and (norm is None or after is not None) and x.shape[0] > 0
    rest = added
    if found is None:
        values, kinds = _read(tokens, spaces)
        counts = tokens.r, pivots, tokens.leading, tokens.trailing
        if added is None or "x" not in spaces:
            found = triton_launch.group(values, kinds, *counts)
        else:
            kept, source, target, x = triton_launch.group_joined(x, added, values, kinds, *counts)
            found, rest = (kept, source, target), None
    merged, _, normed = triton_launch.merge(x, *found, mode=0, norm=after, added=rest)
    if known:  # behind the launches: what is used again must have been built
        _remember(tokens, spaces, pivots, after, added)
    return merged, normed


def takes_branch(tokens: Tokens, spaces: tuple[str, str, str], branch: Branch) -> bool:
    """Whether the kernels can add a branch to x in passing: dense, of the same kind as x, its scale a row."""
    x, values, scale = tokens.x, branch.values, branch.scale
    if torch.compiler.is_compiling() or x.stride(-1) != 1 or not _fits(x, branch):
        return False
    if values.dtype != x.dtype or not ordinary(values, x.device):
        return False
    if scale is not None and (scale.dtype != x.dtype or scale.device != x.device or not scale.is_contiguous()):
        return False
    if scale is not None and torch._C._functorch.is_functorch_wrapped_tensor(scale):
        return False
    return _in_passing(tokens, spaces)


def _fits(x: Tensor, branch: Branch) -> bool:
    """Whether a branch has the size that a kernel expects."""
    values, scale = branch.values, branch.scale
    return values.shape == x.shape and values.is_contiguous() and (scale is None or scale.shape == x.shape[2:])


def _in_passing(tokens: Tokens, spaces: tuple[str, str, str]) -> bool:
    """Whether a branch can wait for the merge, or for the kernel that measures x for the pivots."""
    return "x" not in spaces or (spaces[0] == "x" and tokens.count <= MOST_TOKENS)


_ready: dict[Any, Any] = {}  # what `pool_norm` has pooled before, and how


def pool_norm_again(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: nn.LayerNorm | None, branch: Branch | None = None
) -> tuple[Tensor, Tensor | None] | None:
    """`pool_norm` for tensors like some before, without looking at everything again; None: there were none."""
    x = tokens.x
    if not taken(x) or torch.compiler.is_compiling() or followed():
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or (torch.is_grad_enabled() and x.requires_grad):
        return None
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return None
    after = None
    if norm is not None:
        if not takes(norm, x):
            return None
        after = norm.weight, norm.bias, norm.eps
    if tokens.count > MOST_TOKENS or (branch is not None and not _fits(x, branch)):
        return None
    if branch is not None and not _in_passing(tokens, spaces):
        tokens, branch = replace(tokens, x=branch.added_to(x)), None
    added = None if branch is None else (branch.values, branch.scale)
    ready = _ready.get(_key(tokens, spaces, pivots, after, added))
    if ready is None or not x.shape[0] or not (ready.built or _interpret):
        return None
    values = tuple([getattr(tokens, space[0]) for space in spaces])
    pooled: tuple[Tensor, Tensor | None] = ready(tokens.x, values, after, added)
    return pooled


def _key(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: Any, added: Any
) -> tuple[Any, ...]:  # fmt: skip
    """All that decides how tensors are pooled, but for what `pool_norm_again` asks itself."""
    read = [getattr(tokens, letter) for letter in _letters(spaces)]
    looks = [
        None if one is None else (type(one), one.shape[1:], one.stride(), one.dtype, one.device, one.data_ptr() % 16)
        for one in (tokens.x, *read, *(norm[:2] if norm else ()), *(added or ()))
    ]
    return spaces, tokens.r, tokens.leading, tokens.trailing, pivots, norm is None, added is None, *looks


@cache
def _letters(spaces: tuple[str, str, str]) -> tuple[str, ...]:
    """What the spaces read besides x, each once."""
    return tuple(sorted({space[0] for space in spaces} - {"x"}))


def _remember(tokens: Tokens, spaces: tuple[str, str, str], pivots: int, after: Any, added: Any) -> None:
    from zipbrain.pooling.kernels import triton_ready

    own = [getattr(tokens, letter) for letter in ("x", *_letters(spaces))]
    if len({values.data_ptr() for values in own}) < len(own):  # one reads another's memory by chance
        return
    values, kinds = _read(tokens, spaces)
    counts = tokens.r, pivots, tokens.leading, tokens.trailing
    ready = triton_ready.make(tokens.x, values, kinds, *counts, after, added)
    if ready is not None:
        _ready[_key(tokens, spaces, pivots, after, added)] = ready


def takes(norm: nn.LayerNorm, x: Tensor) -> bool:
    """Whether the merge kernel can apply a LayerNorm to what it merges, with the same result."""
    if type(norm) is not nn.LayerNorm or hooked(norm):
        return False
    weights = norm._parameters  # asking a module for what is in there is slow
    weight, bias = weights.get("weight"), weights.get("bias")
    if weight is None or bias is None or torch.is_autocast_enabled(x.device.type):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if not torch.compiler.is_compiling() and (wrapped(weight) or wrapped(bias)):
        return False
    fits = norm.normalized_shape == (x.shape[2],) and weight.dtype == x.dtype and weight.device == x.device
    return fits and not (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad))


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
        from zipbrain.pooling.kernels import triton_ops

        both: tuple[Tensor, Tensor] = triton_ops.merge(x.detach(), mass.detach(), *index, mode)
        return both
    from zipbrain.pooling.kernels import triton_launch

    merged, masses, _ = triton_launch.merge(x.detach(), *index, mode, None if mass is None else mass.detach())
    return merged, masses


def merge_followed(x: Tensor, kept: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Merge tokens for which `mergeable` is true by the largest norm, without mass; gradients flow back to x."""
    merged: Tensor = _Merge.apply(x, kept, source, target)  # type: ignore[no-untyped-call]
    return merged


class _Merge(torch.autograd.Function):
    """The merge by the largest norm, and its gradient, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, source: Tensor, target: Tensor) -> Tensor:
        from zipbrain.pooling.kernels import triton_launch

        ctx.save_for_backward(x, kept, source, target)
        return triton_launch.merge(x, kept, source, target, mode=0)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        from zipbrain.pooling.kernels import triton_launch

        x, kept, source, target = ctx.saved_tensors
        return triton_launch.merge_gradient(x, kept, source, target, above), None, None, None


def _read(tokens: Tokens, spaces: tuple[str, str, str]) -> tuple[list[Tensor], list[int]]:
    """What z1, z2 and z3 read, and how: 0 as it is, 1 mean over heads, 2 per head."""
    values = [getattr(tokens, space[0]).detach() for space in spaces]
    return values, [0 if space == "x" else 2 if space.endswith("h") else 1 for space in spaces]
