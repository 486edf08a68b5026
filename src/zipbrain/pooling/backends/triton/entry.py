"""What the kernels can take, and how they are called; importable without triton.

Within a captured graph (compile, export) a call is one torch operator, see `ops`. Otherwise kernels are launched
directly: an operator's dispatch costs more than they do.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import LargestNorm, Mean, MeanNorm, MergeRule
from zipbrain.pooling.module_hooks import has_hooks
from zipbrain.pooling.steps import evenly_spread
from zipbrain.pooling.tokens import Branch, Tokens

Index = tuple[Tensor, Tensor, Tensor]  # kept (B, T - r), source and target (B, r), int64
Spaces = tuple[str, str, str]  # z1, z2, z3

MOST_TOKENS: Final = 512  # unprotected tokens that one program holds; with more, several programs share a window
LONGEST: Final = 2**15  # unprotected tokens; beyond, the plain operators run
MOST_FEATURES: Final = 2048  # of a token
MOST_SOURCES: Final = 1024  # tokens that go in one layer
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_MOST_HEADS: Final = 32
_MOST_PROGRAMS: Final = 2**16 - 1  # for one window: a merge may have one for every token
_MOST_ELEMENTS: Final = 2**31  # from the first to the last of a window: offsets inside it are 32 bits wide
_FEW_WINDOWS: Final = 4  # up to this batch, idle processors make all-pairs cosines free,
_PROCESSORS: Final = 32  # if the GPU has this many for each window
MODES: Final[dict[type, int]] = {LargestNorm: 0, MeanNorm: 1, Mean: 2}

interprets_cpu = False
_installed = importlib.util.find_spec("triton") is not None
_on = os.environ.get("ZIPBRAIN_TRITON", "1") != "0"


# -- switches and devices ----------------------------------------------------------------------------------------------


def switch(on: bool) -> bool:
    """Turn the kernels on or off in this process (also: environment ZIPBRAIN_TRITON=0); returns the old setting."""
    global _on
    before, _on = _on, on
    return before


def is_on() -> bool:
    """True if the kernels are turned on."""
    return _on


def interpret(on: bool) -> bool:
    """Use Triton's interpreter for CPU tensors, to test the kernels without a GPU; returns the old setting.

    Very slow, and without effect unless the process was started with TRITON_INTERPRET=1 in its environment.
    """
    global interprets_cpu
    before, interprets_cpu = interprets_cpu, on and os.environ.get("TRITON_INTERPRET") == "1"
    return before


def available() -> bool:
    """True if Triton is installed and the kernels load."""
    if not _installed or torch.compiler.is_compiling():  # torch.compile needs Triton on a GPU: there it must load
        return _installed
    return _loads()


@cache
def _loads() -> bool:
    try:
        import zipbrain.pooling.backends.triton.language  # noqa: F401
    except Exception:  # a Triton that is too old, or without its native library
        return False
    return True


def capable(device: torch.device) -> bool:
    """True for the devices that the kernels are written for: NVIDIA's, Ampere or later."""
    return (_is_capable if torch.compiler.is_compiling() else _was_capable)(device)


def _is_capable(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_properties(device).major >= 8


_was_capable = cache(_is_capable)  # asking a device costs as much as a launch


def has_idle_processors(x: Tensor) -> bool:
    """True if a batch leaves most multiprocessors of its GPU idle."""
    batch = x.shape[0]
    return batch <= _FEW_WINDOWS and (not x.is_cuda or batch * _PROCESSORS <= _multiprocessors(x.device))


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


# -- tensors that the kernels can take ---------------------------------------------------------------------------------


def is_traced() -> bool:
    """True during ONNX export, tracing or forward-mode AD, which can't follow a kernel."""
    if torch.compiler.is_compiling():
        return torch.onnx.is_in_onnx_export()
    return bool(torch._C._get_tracing_state()) or forward_ad._current_level >= 0


def is_plain(values: Tensor, device: torch.device, dtypes: tuple[torch.dtype, ...] = DTYPES) -> bool:
    """True for a tensor of such a type on the device that no transform has wrapped."""
    if values.dtype not in dtypes or values.device != device:
        return False
    return torch.compiler.is_compiling() or (type(values) is Tensor and not _is_wrapped(values))


def _is_wrapped(values: Tensor) -> bool:
    """True inside a function transform, as `torch.vmap`."""
    return not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(values)


def _has_short_offsets(values: Tensor) -> bool:
    """True if 32 bits are enough for every offset inside a window."""
    return sum((n - 1) * step for n, step in zip(values.shape[1:], values.stride()[1:], strict=True)) < _MOST_ELEMENTS


def reason(x: Tensor, removed: int) -> str:
    """Why the kernels can't merge tokens of which so many go; "" if they can."""
    if not _on:
        return "the Triton kernels are switched off (ZIPBRAIN_TRITON=0)"
    if not (x.is_cuda or interprets_cpu):
        return "the Triton kernels need a CUDA device"
    if x.dtype not in DTYPES:
        return f"there are no Triton kernels for {str(x.dtype).removeprefix('torch.')}"
    if is_traced() or not is_plain(x, x.device):
        return "the Triton kernels can't be traced"
    if not 0 < x.shape[2] <= MOST_FEATURES:
        return f"a token has {x.shape[2]} features, not 1 to {MOST_FEATURES}"
    if not 0 < removed <= MOST_SOURCES:
        return f"{removed} tokens go in one block, not 1 to {MOST_SOURCES}"
    if x.shape[1] > _MOST_PROGRAMS or not _has_short_offsets(x):
        return "a window has too many tokens for the Triton kernels"
    if not available():
        return "triton is not installed or does not load"
    return "" if not x.is_cuda or capable(x.device) else "the Triton kernels need an NVIDIA GPU from Ampere on"


def mergeable(x: Tensor, removed: int) -> bool:
    """True if the merge kernel can take these tokens, of which so many go."""
    return not reason(x, removed)


def usable(tokens: Tokens, spaces: tuple[str, ...], most: int = LONGEST) -> bool:
    """True if the kernels can group these tokens by these spaces."""
    x = tokens.x
    if not 0 < tokens.r < tokens.count <= most or not mergeable(x, tokens.r):
        return False
    for name in {space[0] for space in spaces} - {"x"}:
        values = getattr(tokens, name)
        if values is None or not is_plain(values, x.device) or not _has_short_offsets(values):
            return False
        if values.shape[1] > _MOST_HEADS or not 0 < values.shape[-1] <= MOST_FEATURES // 8:
            return False
    return True


def usable_by_twins(tokens: Tokens) -> bool:
    """True if the kernels for `Twins` can take these tokens, and their mass if there is any."""
    is_known = tokens.mass is None or is_plain(tokens.mass, tokens.x.device)
    return is_known and usable(tokens, ("x", "q", "k", "v"), MOST_TOKENS)


def takes_branch(tokens: Tokens, spaces: Spaces, branch: Branch) -> bool:
    """True if a kernel can add a branch to x along with the merge, or when it measures x for the pivots."""
    x, values, scale = tokens.x, branch.values, branch.scale
    if values.shape != x.shape or not values.is_contiguous() or x.stride(-1) != 1:
        return False
    if values.dtype != x.dtype or not is_plain(values, x.device):
        return False
    if scale is not None:
        if scale.shape != x.shape[2:] or scale.dtype != x.dtype or scale.device != x.device:
            return False
        if not scale.is_contiguous() or _is_wrapped(scale):
            return False
    return "x" not in spaces or (spaces[0] == "x" and tokens.count <= MOST_TOKENS)


def takes(norm: nn.LayerNorm, x: Tensor) -> bool:
    """True if the merge kernel can apply a LayerNorm to what it merges, with the same result."""
    if type(norm) is not nn.LayerNorm or has_hooks(norm):
        return False
    weights = norm._parameters  # asking a module for what is in there is slow
    weight, bias = weights.get("weight"), weights.get("bias")
    if weight is None or bias is None or torch.is_autocast_enabled(x.device.type):
        return False
    if _is_wrapped(weight) or _is_wrapped(bias):
        return False
    fits = norm.normalized_shape == (x.shape[2],) and weight.dtype == x.dtype and weight.device == x.device
    return fits and not (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad))


# -- calls -------------------------------------------------------------------------------------------------------------


def group(tokens: Tokens, spaces: Spaces, pivots: int) -> Index:
    """Steps 1 to 3 for tokens for which `usable` is true: kept, source and target."""
    from zipbrain.pooling.backends.triton import ops

    run: Any = ops.group_op if torch.compiler.is_compiling() else ops.group
    found: Index = run(*_read(tokens, spaces), [tokens.r, pivots, tokens.leading, tokens.trailing])
    return found


def twins(tokens: Tokens, same: float, flat: float) -> Index:
    """Steps 1 to 3 of `Twins` for tokens for which `usable_by_twins` is true: kept, source and target."""
    from zipbrain.pooling.backends.triton import ops

    values = [getattr(tokens, name).detach() for name in "xqkv"]
    mass = None if tokens.mass is None else tokens.mass.detach()
    counts = [tokens.r, 0, tokens.leading, tokens.trailing]
    is_compiling, device = torch.compiler.is_compiling(), tokens.x.device
    order = evenly_spread(tokens.count, device, torch.float32) if is_compiling else _order(tokens.count, device)
    run: Any = ops.twins_op if is_compiling else ops.twins
    found: Index = run(*values, mass, order, counts, [same, flat])
    return found


_orders: dict[tuple[int, torch.device], Tensor] = {}


def _order(n: int, device: torch.device) -> Tensor:
    """`evenly_spread`, kept for the next call unless a graph is being captured, where it has no values yet."""
    found = _orders.get((n, device))
    if found is None:
        found = evenly_spread(n, device, torch.float32)
        if device.type != "cuda":
            _orders[n, device] = found
        elif not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
            _orders[n, device] = found
    return found


def pool_norm(
    tokens: Tokens, spaces: Spaces, pivots: int, norm: nn.LayerNorm | None
) -> tuple[Tensor, Tensor | None, Index]:
    """Group, merge by the largest norm without mass and apply a norm: x, normed x if `takes` allows it, and groups.

    A branch of the tokens for which `takes_branch` is true is added to x on the way.
    """
    from zipbrain.pooling.backends.triton import ops

    x, branch = tokens.x.detach(), tokens.branch
    after = (norm.weight, norm.bias, norm.eps) if norm is not None and takes(norm, x) else (None, None, 0.0)
    added = (None, None) if branch is None else (branch.values, branch.scale)
    counts = [tokens.r, pivots, tokens.leading, tokens.trailing]
    run: Any = ops.pool_op if torch.compiler.is_compiling() else ops.pool
    merged, normed, kept, source, target = run(x, *_read(tokens, spaces), counts, *added, *after)
    return merged, None if after[0] is None else normed, (kept, source, target)


def _read(tokens: Tokens, spaces: Spaces) -> list[Any]:
    """What z1, z2 and z3 read, and how: 0 as it is, 1 mean over heads, 2 per head."""
    values = [getattr(tokens, space[0]).detach() for space in spaces]
    return [*values, [0 if space == "x" else 2 if space.endswith("h") else 1 for space in spaces]]


def merge(x: Tensor, mass: Tensor | None, grouping: Grouping, rule: MergeRule) -> tuple[Tensor, Tensor | None] | None:
    """Features (B, M, D) merged by a rule, weighted by mass if given, and mass (B, M); None if no kernel can."""
    mode = MODES.get(type(rule))
    if mode is None or not _has_plain_groups(grouping) or not mergeable(x, grouping.removed):
        return None
    if mass is not None and mass.dtype != torch.float32:
        return None
    index, is_compiling = (grouping.kept, grouping.source, grouping.target), torch.compiler.is_compiling()
    if torch.is_grad_enabled() and (x.requires_grad or (mass is not None and mass.requires_grad)):
        if mass is not None or mode or is_compiling:
            return None
        from zipbrain.pooling.backends.triton.merge import Merge

        return Merge.apply(x, *index), None  # type: ignore[no-untyped-call]
    x, mass = x.detach(), None if mass is None else mass.detach()
    if is_compiling and mass is None:  # torch.compile fuses the plain operators
        return None
    from zipbrain.pooling.backends.triton import ops

    merged, masses, _ = (ops.merge_op if is_compiling else ops.merge)(x, mass, *index, mode, None, None, 0.0)
    return merged, None if mass is None else masses


def _has_plain_groups(grouping: Grouping) -> bool:
    """True if tokens are merged only: none dropped, appended or weighted."""
    return not (grouping.drops or grouping.appended) and grouping.weight is None


def merges_normed(tokens: Tokens, rule: MergeRule, norm: nn.LayerNorm | None) -> bool:
    """True if `merge_norm` can take these tokens with their mass, if no token is dropped or appended."""
    x, mass = tokens.x, tokens.mass
    if norm is None or mass is None or mass.dtype != torch.float32 or type(rule) not in MODES:
        return False
    if torch.is_grad_enabled() and (x.requires_grad or mass.requires_grad):
        return False
    if not mergeable(x, tokens.r) or torch.compiler.is_exporting() or not is_plain(mass, x.device):
        return False
    return takes(norm, x)


def merge_norm(
    tokens: Tokens, grouping: Grouping, rule: MergeRule, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Features merged by mass, mass, and normed features, where `merges_normed` is true; None for other groups."""
    if not _has_plain_groups(grouping) or not 0 < grouping.removed <= MOST_SOURCES:
        return None
    from zipbrain.pooling.backends.triton import ops

    assert tokens.mass is not None
    index, after = (grouping.kept, grouping.source, grouping.target), (norm.weight, norm.bias, norm.eps)
    run: Any = ops.merge_op if torch.compiler.is_compiling() else ops.merge
    merged, masses, normed = run(tokens.x.detach(), tokens.mass.detach(), *index, MODES[type(rule)], *after)
    return merged, masses, normed


def follow(places: Tensor, grouping: Grouping) -> Tensor | None:
    """Places (B, T0) of original tokens after another pooling, -1 where dropped; None if no kernel can."""
    source, target = grouping.source, grouping.target
    if not (_on and (places.is_cuda or interprets_cpu)) or is_traced() or torch.compiler.is_exporting():
        return None
    if not 0 < source.shape[1] <= MOST_SOURCES or grouping.removed != source.shape[1] or places.shape[1] > LONGEST:
        return None
    if grouping.appended or not all(is_plain(one, places.device, (torch.int64,)) for one in (places, source, target)):
        return None
    if not available() or (places.is_cuda and not capable(places.device)):
        return None
    from zipbrain.pooling.backends.triton import ops

    moved: Tensor = (ops.follow_op if torch.compiler.is_compiling() else ops.follow)(places, source, target)
    return moved
