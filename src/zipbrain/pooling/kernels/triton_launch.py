"""Sizes and launches of the Triton kernels. Imports triton: import it only where that is known to work.

A launch must cost the host little: a GPU is done with a window before Python has looked at its shape. So everything
that follows from shapes is worked out once and kept, and a kernel that was built is started without Triton's own look
at its forty arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

from zipbrain.pooling.kernels import triton_merge, triton_select
from zipbrain.pooling.kernels.triton_path import MOST_TOKENS
from zipbrain.pooling.merges import VANISHED

_FEATURES = 32  # read at a time of a wide row
_BLOCK_J = 32  # keys compared at a time where there are too many for one comparison of all pairs
_FEW, _FEW_WIDE = 32, 16  # up to this many sources are matched by the program that selected them; in float32
_COSINES = 32  # memory for cosines comes in steps of so many sources: one kernel serves many layers
_MERGE_TILE = 512  # features that a warp merges at a time


@dataclass(frozen=True)
class View:
    """A tensor over tokens as a kernel reads it: (B, T, D), or (B, H, T, d) by head or averaged over heads."""

    values: Tensor
    kind: int

    @property
    def distances(self) -> tuple[int, int]:
        """How far windows and heads lie apart, in units of the last of `constants`."""
        window, head, unit = self._distances
        return window // unit, head // unit

    @property
    def constants(self) -> tuple[int, int, int, int, int]:
        """Kind, heads, width, how far tokens lie apart, and the unit of the other distances."""
        heads = 1 if self.values.dim() == 3 else int(self.values.shape[1])
        return self.kind, heads, int(self.values.shape[-1]), self.values.stride(-2), self._distances[2]

    @property
    def _distances(self) -> tuple[int, int, int]:
        window, *between, _, _ = self.values.stride()
        head = between[0] if between else 0
        return window, head, alignment(self.values, window, head)

    @property
    def block(self) -> int:
        """How many features are read at a time."""
        return min(power_of_two(int(self.values.shape[-1]), 16), _FEATURES if self.values.shape[-1] <= 1024 else 64)

    def reads_as(self, other: View) -> bool:
        """Whether another view reads the same vectors, one for each token."""
        mine, theirs = self.values, other.values
        where = mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride()
        return self.kind == other.kind != 2 and where and mine.shape == theirs.shape


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
    built: Any = field(default=None)

    def __call__(self, batch: int, *given: Any, stream: int | None = None) -> None:
        grid, built = (batch, self.programs, 1), self.built
        if built is None:
            self.built = self.kernel[grid](*given, *self.constants, num_warps=self.warps)
        elif stream is not None and _unheard():
            built.run(*grid, stream, built.function, built.packed_metadata, None, None, None, *given, *self.constants)
        else:
            built[grid](*given, *self.constants, stream=stream)


def _unheard() -> bool:
    """Whether a kernel may be started without telling anybody: known how, and nobody has asked Triton to be told."""
    if not _DIRECT:
        return False
    told = triton.knobs.runtime
    return not told.launch_enter_hook.calls and not told.launch_exit_hook.calls


_DIRECT = triton.__version__.startswith("3.6.")  # where what `built.run` takes was looked up


@dataclass(frozen=True)
class Group:
    """How to group tensors of certain shapes."""

    distances: tuple[tuple[int, int], ...]
    block_n: int
    rows: int  # of a window's scratch
    lengths: Start | None  # norms of every head before the pivots
    select: Start | None
    scores: Start | None  # of every head behind the pivots,
    rest: Start | None  # and what follows from them
    cosines: Start | None  # of many sources,
    closest: Start | None  # and who is the closest

    @property
    def starts(self) -> list[Start]:
        """All of its kernels."""
        found = self.lengths, self.select, self.scores, self.rest, self.cosines, self.closest
        return [start for start in found if start is not None]

    def __call__(
        self, spaces: Sequence[Any], kept: Any, source: Any, target: Any, scratch: Any, batch: int,
        counts: tuple[int, int, int, int, int], stream: int | None = None,
    ) -> None:  # fmt: skip
        """Start all kernels; counts: unprotected tokens, those that go, pivots, leading, trailing."""
        z1, z2, z3 = spaces
        first, second, third = self.distances
        n, r, pivots, leading, trailing = counts
        given = (
            z1, *first, z2, *second, z3, *third, kept, source, target, scratch, n, r, pivots, leading, trailing,
            2.0**20 / pivots,
        )  # fmt: skip
        if self.lengths is not None:
            self.lengths(batch, z1, *first, scratch, n, leading, pivots, stream=stream)
        if self.select is not None:
            self.select(batch, *given, stream=stream)
        if self.scores is not None and self.rest is not None:
            self.scores(batch, z2, *second, scratch, n, leading, pivots, stream=stream)
            self.rest(batch, *given, stream=stream)
        if self.cosines is not None and self.closest is not None:
            self.cosines(batch, z3, *third, source, scratch, n, r, leading, stream=stream)
            self.closest(batch, target, scratch, n, r, leading, stream=stream)


Added = tuple[Tensor, Tensor | None]  # a branch (B, T, D) that still belongs to x, dense, and its gain (D,)
_groups: dict[Any, Group] = {}
_merges: dict[Any, tuple[Start, int]] = {}
_joins: dict[Any, tuple[Start, int]] = {}


def look(values: Tensor) -> tuple[Any, ...]:
    """What a built kernel depends on."""
    return values.shape[1:], values.stride(), values.dtype, values.device.index, values.data_ptr() % 16


def added_kind(added: Added | None) -> int:
    """As the merge calls it: nothing, a branch, or a branch times a gain."""
    return 0 if added is None else 1 if added[1] is None else 2


def group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3.

    Parameters
    ----------
    spaces : list of Tensor
        What z1, z2 and z3 read: (B, T, D) or (B, H, T, d).
    kinds : list of int
        0 as it is, 1 mean over heads, 2 per head.
    r, pivots, leading, trailing : int
        Tokens that go, pivots, protected tokens at the start and at the end.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    """
    if spaces[0].shape[-2] - leading - trailing > MOST_TOKENS:
        from zipbrain.pooling.kernels import triton_long_launch

        return triton_long_launch.group(spaces, kinds, r, pivots, leading, trailing)
    return _group(None, None, [readable(values) for values in spaces], kinds, r, pivots, leading, trailing)


def group_joined(
    x: Tensor, added: Added, spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Steps 1 to 3 where z1 is x and a branch still belongs to x; at most `MOST_TOKENS` tokens.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features, the last axis dense.
    added : (branch, gain)
        What is to be added to x.
    spaces, kinds, r, pivots, leading, trailing
        As in `group`; where a kind is 0, x with its branch is read instead.

    Returns
    -------
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
    whole : Tensor, shape (B, T, D)
        x with its branch.
    """
    whole = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    others = [whole if kind == 0 else readable(values) for kind, values in zip(kinds, spaces, strict=True)]
    return *_group((x, added), whole, others, kinds, r, pivots, leading, trailing), whole


def _group(
    join: tuple[Tensor, Added] | None, whole: Tensor | None, spaces: list[Tensor], kinds: list[int], r: int,
    pivots: int, leading: int, trailing: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    z1 = spaces[0]
    batch, total, device = z1.shape[0], z1.shape[-2], z1.device
    kept = torch.empty((batch, total - r), dtype=torch.int64, device=device)
    source = torch.empty((batch, r), dtype=torch.int64, device=device)
    target = torch.empty((batch, r), dtype=torch.int64, device=device)
    if batch == 0:
        return kept, source, target
    how = plan_group(spaces, kinds, r, pivots, leading, trailing, join is not None)
    scratch = torch.empty((batch, how.rows, how.block_n), dtype=torch.int32, device=device)
    counts = total - leading - trailing, r, pivots, leading, trailing
    with device_of(z1):
        if join is not None:
            x, added = join
            start, distance = plan_join(x, added, how)
            start(batch, x, distance, *added, whole, scratch, total, counts[0], leading)
        how(spaces, kept, source, target, scratch, batch, counts)
    return kept, source, target


def plan_group(
    spaces: list[Tensor], kinds: list[int], r: int, pivots: int, leading: int, trailing: int, joined: bool = False
) -> Group:  # fmt: skip
    """How tensors like these, whose last axes are dense, are grouped; joined: norms in z1 lie in scratch."""
    z1, z2, z3 = spaces
    places = z1.data_ptr(), z2.data_ptr(), z3.data_ptr()
    shared = places[0] == places[1], places[0] == places[2], places[1] == places[2]
    key = look(z1), look(z2), look(z3), shared, *kinds, r, pivots, leading, trailing, joined
    how = _groups.get(key)
    if how is None:
        views = [View(values, kind) for values, kind in zip(spaces, kinds, strict=True)]
        how = _groups[key] = _plan(views, int(z1.shape[-2]), r, pivots, leading, trailing, joined)
    return how


def _plan(
    views: list[View], total: int, r: int, pivots: int, leading: int, trailing: int, joined: bool
) -> Group:  # fmt: skip
    """By shape alone, never by batch: a window must get the same groups in any batch, to the last bit."""
    n = total - leading - trailing
    block_n = power_of_two(n, 16)
    blocks = [view.block for view in views]
    wide = views[0].values.element_size() > 2
    scored = pivots < n - r
    matched = r <= (_FEW_WIDE if wide else _FEW) and views[2].kind != 2
    same = views[0].reads_as(views[1])
    known = 1 if views[0].reads_as(views[2]) else 2 if scored and views[1].reads_as(views[2]) else 0
    parts = [view.constants[1] if view.kind == 2 else 0 for view in views[:2]]  # heads that have programs of their own
    parts[1] *= scored
    given = 1 if joined else parts[0]
    first_row = triton_select.SCRATCH_ROWS + given + parts[1]  # of the cosines
    block_r, block_c, block_k, match_warps = _match_sizes(views[2], r)
    for_each = min(block_n // 32, 8) or 1  # warps: a thread for every token
    rows = first_row + (0 if matched else -(-r // _COSINES) * _COSINES)

    def select(stage: int) -> Start:
        found = not matched if stage == 2 else given > 0 and (stage == 1 or not (scored or matched))
        constants = (
            *views[0].constants, *views[1].constants, *views[2].constants, scored, same, known, matched, block_n,
            *blocks[:2], _BLOCK_J, 16 if r <= 16 else 32, blocks[2], given, stage, found, rows,
        )  # fmt: skip
        # Programs that find most of their numbers have 8 warps: for 16 the assembler chooses 32 registers, far too few.
        finds = stage == 1 or parts[0] > 0 or found
        warps = 4 if block_n <= 128 else 16 if (wide or block_n > 256) and not finds else 8
        return Start(triton_select.select_kernel, 1, constants, for_each if found else warps)

    def heads(view: View, block: int, scores: bool, ranks: bool = False) -> Start:
        constants = scores, given, ranks, *view.constants[1:], block_n, block, rows
        warps = for_each if ranks else 8 if block_n > 256 else 4
        return Start(triton_select.head_kernel, view.constants[1], constants, warps)

    # Where the norms are known, every head ranks them itself: a launch less, but not for so many that it takes long.
    ranks = given > 0 and block_n <= triton_select.ALL_AT_ONCE.value
    lengths = heads(views[0], blocks[0], False) if parts[0] else None
    scores = heads(views[1], blocks[1], True, ranks) if parts[1] else None
    cosines = closest = None
    if not matched:
        sizes = *views[2].constants, known, block_n, block_r, block_c, block_k, first_row, rows
        cosines = Start(triton_select.cosine_kernel, -(-r // block_r) * -(-n // block_c), sizes, match_warps)
        closest = Start(triton_select.closest_kernel, -(-r // 16), (block_n, 16, first_row, rows), 4)
    distances = tuple(view.distances for view in views)
    first = select(0) if scores is None else None if ranks else select(1)
    rest = None if scores is None else select(2)
    return Group(distances, block_n, rows, lengths, first, scores, rest, cosines, closest)


def plan_join(x: Tensor, added: Added, how: Group) -> tuple[Start, int]:
    """The kernel that adds a branch to x and measures it for `how`, and how far windows of x lie apart."""
    key = look(x), *(None if one is None else one.data_ptr() % 16 for one in added), how.rows, how.block_n
    found = _joins.get(key)
    if found is None:
        view = View(x, 0)
        block_d = power_of_two(int(x.shape[2]), 16)
        block_m = max(1, _MERGE_TILE // block_d)
        constants = *view.constants[2:], added[1] is not None, block_m, block_d, how.block_n, how.rows
        warps = min(4, max(1, block_d // _MERGE_TILE))
        start = Start(triton_select.join_kernel, -(-int(x.shape[1]) // block_m), constants, warps)
        found = _joins[key] = start, view.distances[0]
    return found


def _match_sizes(view: View, r: int) -> tuple[int, int, int, int]:
    """Sources, tokens and features at a time, and warps, of a program that finds cosines: the fastest on an H200."""
    features = int(view.values.shape[-1])
    if view.kind == 2 and r <= 32:
        tile = 16, 32
    elif view.kind == 2:
        tile = (16, 64) if view.values.element_size() == 2 and features > 16 else (32, 64)
    else:
        tile = (64, 64) if 32 < r <= 64 else (32, 64)
    return *tile, min(power_of_two(features, 16), 64), 4


def merge(
    x: Tensor, kept: Tensor, source: Tensor, target: Tensor, mode: int, mass: Tensor | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None, added: Added | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Step 4.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features.
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
        Who goes where, `kept` ascending.
    mode : int
        0 largest norm, 1 mean of the norms, 2 plain mean.
    mass : Tensor of shape (B, T), optional
        Weighs the merge and is merged itself.
    norm : (weight, bias, epsilon), optional
        The LayerNorm that follows.
    added : (branch, gain), optional
        What is still to be added to x.

    Returns
    -------
    merged : Tensor, shape (B, T - r, D)
    mass : Tensor of shape (B, T - r), or None
    normed : Tensor of shape (B, T - r, D), or None
    """
    x = readable(x)
    batch, total, width = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty((batch, stays, width), dtype=x.dtype, device=x.device)
    out_mass = None if mass is None else torch.empty((batch, stays), dtype=mass.dtype, device=x.device)
    normed = None if norm is None else torch.empty_like(out)
    mass = None if mass is None else mass.contiguous()
    scale, offset, epsilon = (
        (None, None, 0.0) if norm is None else (norm[0].contiguous(), norm[1].contiguous(), norm[2])
    )
    if batch == 0:
        return out, out_mass, normed
    kinds = mode, mass is not None, norm is not None, added_kind(added)
    branch, gain = added or (None, None)
    start, distance = plan_merge(triton_merge.merge_kernel, x, stays, r, kinds, (mass, scale, offset, branch, gain))
    with device_of(x):
        start(
            batch, x, distance, branch, gain, aligned(kept), aligned(source), aligned(target), mass, out, out_mass,
            normed, scale, offset, epsilon, VANISHED, total, r, stays,
        )  # fmt: skip
    return out, out_mass, normed


def merge_gradient(x: Tensor, kept: Tensor, source: Tensor, target: Tensor, above: Tensor) -> Tensor:
    """Gradient of the merge by the largest norm without mass.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        Features that were merged.
    kept, source, target : Tensor of int64, shapes (B, T - r), (B, r), (B, r)
        Who went where.
    above : Tensor, shape (B, T - r, D)
        Gradient of the merged features.

    Returns
    -------
    gradient : Tensor, shape (B, T, D)
        Of x. Among members of equal length the first one counts as the longest.
    """
    x, above = readable(x), above.contiguous()
    batch, total, width = x.shape
    stays, r = kept.shape[1], source.shape[1]
    out = torch.empty((batch, total, width), dtype=x.dtype, device=x.device)
    if batch == 0:
        return out
    start, distance = plan_merge(triton_merge.merge_gradient_kernel, x, stays, r, (), (above,))
    with device_of(x):
        start(
            batch, x, distance, aligned(kept), aligned(source), aligned(target), above, out, VANISHED,
            total, r, stays,
        )  # fmt: skip
    return out


def plan_merge(
    kernel: Callable[..., Any], x: Tensor, stays: int, r: int, kinds: tuple[Any, ...], others: tuple[Tensor | None, ...]
) -> tuple[Start, int]:
    """One of the two kernels that merge, for tensors of these shapes, and how far windows of x lie apart."""
    looks = [None if one is None else (one.dtype, one.data_ptr() % 16) for one in others]
    key = id(kernel), look(x), stays, r, kinds, *looks
    found = _merges.get(key)
    if found is None:
        view = View(x, 0)
        block_d = power_of_two(int(x.shape[2]), 16)
        block_m = max(1, _MERGE_TILE // block_d)
        constants = *view.constants[2:], *kinds, block_m, block_d, power_of_two(r, 16)
        warps = min(4, max(1, block_d // _MERGE_TILE))
        found = _merges[key] = Start(kernel, -(-stays // block_m), constants, warps), view.distances[0]
    return found


def device_of(values: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, which need not be the tensors'."""
    if values.is_cuda and values.device.index != torch.cuda.current_device():
        return torch.cuda.device(values.device)
    return nullcontext()
