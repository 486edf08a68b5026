"""What every launch of a Triton kernel needs. Imports triton: import it only where that is known to work.

A launch must cost the host little: a GPU is done with a window before Python has looked at its shape. So everything
that follows from shapes is worked out once and kept, and a kernel that was built is started without Triton's own look
at its forty arguments.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

MERGE_TILE = 512  # features that a warp merges at a time
_FEATURES = 32  # read at a time of a wide row
Added = tuple[Tensor, Tensor | None]  # a branch (B, T, D) that still belongs to x, dense, and its gain (D,)


@dataclass(frozen=True)
class View:
    """A tensor over tokens as a kernel reads it: (B, T, D), or (B, H, T, d) by head or averaged over heads.

    Kind 3: rows of unit vectors, each number as a sum of two. ``parts``: how many vectors lie in a row; ``width``: how
    many numbers.
    """

    values: Tensor
    kind: int
    parts: int = 1
    width: int | None = None

    @property
    def distances(self) -> tuple[int, int]:
        """How far windows and heads lie apart, in units of the last of `constants`."""
        window, head, unit = self._distances
        return window // unit, head // unit

    @property
    def constants(self) -> tuple[int, int, int, int, int]:
        """Kind, heads, width, how far tokens lie apart, and the unit of the other distances."""
        heads = self.parts if self.values.dim() == 3 else int(self.values.shape[1])
        return self.kind, heads, self.features, self.values.stride(-2), self._distances[2]

    @property
    def features(self) -> int:
        """How many numbers of a row, or of a head, are read."""
        return int(self.values.shape[-1]) if self.width is None else self.width

    @property
    def _distances(self) -> tuple[int, int, int]:
        window, *between, _, _ = self.values.stride()
        head = between[0] if between else 0
        return window, head, alignment(self.values, window, head)

    @property
    def block(self) -> int:
        """How many features are read at a time."""
        return min(power_of_two(self.features, 16), _FEATURES if self.features <= 1024 else 64)

    def alike(self, other: View) -> bool:
        """Whether another view reads the same vectors."""
        mine, theirs = self.values, other.values
        where = mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride()
        return self.kind == other.kind and where and mine.shape == theirs.shape and mine.dtype == theirs.dtype

    def reads_as(self, other: View) -> bool:
        """Whether another view reads the same vectors, one for each token."""
        return self.kind != 2 and self.alike(other)


def alignment(values: Tensor, *distances: int) -> int:
    """What divides all distances, up to the elements in 16 bytes: the widest load that a kernel may use."""
    size = 16 // values.element_size()
    while any(distance % size for distance in distances):
        size //= 2
    return size


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is not below either number."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def readable(values: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense, else a dense copy; windows, heads and tokens may lie anyhow."""
    return values if values.stride(-1) == 1 or values.shape[-1] == 1 else values.contiguous()


def aligned(index: Tensor) -> Tensor:
    """Indices as built kernels expect them: dense, and where a load of 16 bytes may begin."""
    index = index.contiguous()
    return index if index.data_ptr() % 16 == 0 else index.clone()


@dataclass
class Start:
    """One kernel with all that does not change from call to call."""

    kernel: Any
    programs: int  # for each window
    constants: tuple[Any, ...]
    warps: int
    waits: bool = False  # it begins with `after_others`
    built: Any = field(default=None)
    quick: tuple[Any, ...] | None = None  # how it is started without Triton's own launcher in Python
    told: tuple[Any, ...] = ()  # constants that the kernel was built with
    overlaps: bool = False  # it may begin to start before the launch before has ended
    flat: bool = False  # programs of one window have numbers behind each other, and so run at the same time

    def __call__(self, batch: int, *given: Any, stream: int | None = None, crowded: bool = False) -> None:
        """Start programs for `batch` windows; crowded: it would only take other kernels' place while it waits."""
        grid = (batch * self.programs, 1, 1) if self.flat else (batch, self.programs, 1)
        built = self.built
        if built is None:
            self._build(grid, given)
            return
        if stream is not None and self.quick is not None and _unheard():
            launch, function, together, about = self.quick
            early = self.overlaps and not crowded
            launch(*grid, stream, function, together, early, None, None, about, None, None, None, *given, *self.told)
            return
        if self.overlaps:
            built.run.launch_pdl = not crowded
        built[grid](*given, *self.told, stream=stream)

    def _build(self, grid: tuple[int, int, int], given: tuple[Any, ...]) -> None:
        self.told = self.constants
        if self.waits:
            self.overlaps = overlapping()
            self.told = *self.constants, self.overlaps
        self.built = built = self.kernel[grid](*given, *self.told, num_warps=self.warps)
        if _DIRECT and built is not None and not (built.run.global_scratch_size or built.run.profile_scratch_size):
            run = built.run
            self.quick = run.launch, built.function, run.launch_cooperative_grid, built.packed_metadata


_DIRECT = triton.__version__.startswith("3.6.")  # where what `built.run` is and takes was looked up
_OVERLAP = os.environ.get("ZIPBRAIN_TRITON_OVERLAP", "1") != "0"


def overlapping() -> bool:
    """Whether a kernel may begin to start before the one it waits for has ended: Hopper and later.

    Whatever ran before, such a kernel waits for its end (`after_others`). ZIPBRAIN_TRITON_OVERLAP=0 turns it off.
    """
    able = _OVERLAP and _DIRECT and torch.cuda.is_available() and torch.version.hip is None
    return able and torch.cuda.get_device_capability()[0] >= 9 and _driver() >= _CAPTURES


_CAPTURES = 12030  # CUDA of the first drivers that capture such launches in a graph


@cache
def _driver() -> int:
    """The driver's version of CUDA, 12030 for 12.3; taken for new enough where nobody can tell."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return _CAPTURES
    return _CAPTURES if failed else version.value


def _unheard() -> bool:
    """Whether a kernel may be started without telling anybody: nobody has asked Triton to be told."""
    told = triton.knobs.runtime
    return not told.launch_enter_hook.calls and not told.launch_exit_hook.calls


def look(values: Tensor) -> tuple[Any, ...]:
    """What a built kernel depends on."""
    return values.shape[1:], values.stride(), values.dtype, values.device.index, values.data_ptr() % 16


def added_kind(added: Added | None) -> int:
    """As the merge calls it: nothing, a branch, or a branch times a gain."""
    return 0 if added is None else 1 if added[1] is None else 2


def device_of(values: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, which need not be the tensors'."""
    if values.is_cuda and values.device.index != torch.cuda.current_device():
        return torch.cuda.device(values.device)
    return nullcontext()
