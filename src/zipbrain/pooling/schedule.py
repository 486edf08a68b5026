"""How many tokens go in which layer: schedules, always resolved to integers before a token is touched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.numerals import whole_number
from zipbrain.pooling.flops import BlockShape, network_macs
from zipbrain.pooling.registry import Part, build, register
from zipbrain.pooling.steps import exact_share

Limit = Callable[[int], int]
_LONG: Final = 10**6  # tokens, more than any window has


class Schedule(Part):
    """A rule that says how many tokens each reducing layer shall remove."""

    role = "schedule"

    @abstractmethod
    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        """Tokens that every reducing layer shall remove from `n` unprotected ones, before any clip."""

    def can_remove(self, layers: int) -> bool:
        """True if a long enough window loses tokens; refused where the schedule doesn't fit so many reducing layers."""
        return any(self.requested(_LONG, layers))

    def removals(
        self, n: int, reducing: Sequence[bool], limit: Limit, shape: BlockShape | None = None, protected: int = 0
    ) -> tuple[int, ...]:
        """Tokens that every block really removes, one number per block.

        Parameters
        ----------
        n : int
            Unprotected tokens before the first block.
        reducing : sequence of bool
            Whether each block reduces.
        limit : callable
            The most a method can remove from a number of tokens; one token always stays.
        shape, protected : BlockShape, int
            For schedules that count operations.
        """
        return clip(self.requested(n, sum(reducing)), n, reducing, limit)


def clip(requested: Sequence[int], n: int, reducing: Sequence[bool], limit: Limit) -> tuple[int, ...]:
    """Spread the requested removals over the reducing blocks, cut so that one unprotected token stays."""
    removed, following = [], iter(requested)
    for reduces in reducing:
        r = min(next(following), limit(n), n - 1) if reduces else 0
        r = max(r, 0)
        removed.append(r)
        n -= r
    return tuple(removed)


@register("ratio")
@dataclass(frozen=True)
class Ratio(Schedule):
    """Remove a share of the original tokens over the whole network: r = round-half-up(ratio N / l) in each layer."""

    ratio: float

    def __post_init__(self) -> None:
        share = exact_share("ratio", self.ratio)
        object.__setattr__(self, "ratio", float(share))
        object.__setattr__(self, "_share", (share.numerator, share.denominator))

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        over, under = getattr(self, "_share")  # noqa: B009 - set in __post_init__, no field
        under = under * layers
        return ((2 * over * n + under) // (2 * under),) * layers if layers else ()


@register("maximum")
@dataclass(frozen=True)
class Maximum(Schedule):
    """The paper's maximum compression: r = max(1, ceil(N / l) - 1) in each layer."""

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        return (max(1, -(-n // layers) - 1),) * layers if layers else ()


@register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """Remove r tokens in each layer."""

    r: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", whole_number("r", self.r))

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        return (self.r,) * layers


@register("per_layer")
@dataclass(frozen=True)
class PerLayer(Schedule):
    """Remove a listed number of tokens in each reducing layer; layers after the list remove none."""

    r: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", tuple(whole_number("r", number) for number in self.r))

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        if len(self.r) > layers:
            raise OptionError("r", list(self.r), f"there are {layers} reducing layers")
        return self.r + (0,) * (layers - len(self.r))


@register("allocation")
@dataclass(frozen=True)
class Allocation(Schedule):
    """Remove a listed number of tokens in each reducing layer from windows of `tokens` tokens, else in proportion.

    The removals of a window with another N are those of the list times N / tokens, rounded so that their sum is too.
    """

    r: tuple[int, ...]
    tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", tuple(whole_number("r", number) for number in self.r))
        object.__setattr__(self, "tokens", whole_number("tokens", self.tokens, 1))
        if sum(self.r) >= self.tokens:
            raise OptionError("r", list(self.r), f"at least one of {self.tokens} tokens must stay")

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        if len(self.r) > layers:
            raise OptionError("r", list(self.r), f"there are {layers} reducing layers")
        gone = [(2 * total * n + self.tokens) // (2 * self.tokens) for total in accumulate(self.r, initial=0)]
        return tuple(after - before for before, after in pairwise(gone)) + (0,) * (layers - len(self.r))


@register("linear")
@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """ToMe's linear schedule: about r per layer on average, from many to none (inflect -1) or the other way (1).

    First layer int(r (1 - inflect)) tokens, last layer 2 r minus that, linear and cut to integers between.
    """

    r: int
    inflect: float = -1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", whole_number("r", self.r))
        if not isinstance(self.inflect, int | float) or not -1 <= self.inflect <= 1:
            raise OptionError("inflect", self.inflect, "it must be from -1 (falling) to 1 (rising)")

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        first = int(self.r * (1.0 - self.inflect))
        last = 2 * self.r - first
        if layers < 2:
            return (first,) * layers
        step = (last - first) / (layers - 1)
        return tuple(int(first + step * i) for i in range(layers))


@register("flops_budget")
@dataclass(frozen=True)
class FlopsBudget(Schedule):
    """The smallest constant r whose hand-counted multiply-adds are at most `share` of the uncompressed network's."""

    share: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", float(exact_share("share", self.share)))

    def requested(self, n: int, layers: int) -> tuple[int, ...]:
        raise OptionError("schedule", self, "a FLOPs budget needs the network's shape; use `removals`")

    def can_remove(self, layers: int) -> bool:
        return True

    def removals(
        self, n: int, reducing: Sequence[bool], limit: Limit, shape: BlockShape | None = None, protected: int = 0
    ) -> tuple[int, ...]:
        if shape is None:
            return clip(self.requested(n, sum(reducing)), n, reducing, limit)
        depth = len(reducing)
        share = exact_share("share", self.share)
        budget = Fraction(network_macs(shape, n, (0,) * depth, protected)) * share

        def at(r: int) -> tuple[tuple[int, ...], int]:
            removed = clip((r,) * sum(reducing), n, reducing, limit)
            return removed, network_macs(shape, n, removed, protected)

        low, high = 0, max(n - 1, 0)  # the count falls as r grows, so the smallest r is found by halving
        cost = at(high)[1]
        if cost > budget:
            reached = cost / network_macs(shape, n, (0,) * depth, protected)
            raise OptionError("share", self.share, f"even the largest r leaves {reached:.3f} of the multiply-adds")
        while low < high:
            middle = (low + high) // 2
            if at(middle)[1] <= budget:
                high = middle
            else:
                low = middle + 1
        return at(low)[0]


def as_schedule(ratio: object = None, r: object = None, schedule: object = None) -> Schedule:
    """Read the options `ratio`, `r` and `schedule`, of which exactly one must be given."""
    given = {name: value for name, value in (("ratio", ratio), ("r", r), ("schedule", schedule)) if value is not None}
    if len(given) != 1:
        found = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "none of them"
        raise OptionError("ratio, r, schedule", found, "exactly one must be given")
    if ratio is not None:
        if isinstance(ratio, str):
            if ratio != "max":
                raise OptionError("ratio", ratio, "it must be a number from 0 to 1 or 'max'")
            return Maximum()
        return Ratio(ratio)  # type: ignore[arg-type] # any spelling of a number
    if r is not None:
        if isinstance(r, Sequence) and not isinstance(r, str):
            return PerLayer(tuple(r))
        return Constant(r)  # type: ignore[arg-type]
    if isinstance(schedule, Sequence) and not isinstance(schedule, str):
        return PerLayer(tuple(schedule))
    if isinstance(schedule, str | dict):
        schedule = build(schedule, "schedule", Schedule)
    if not isinstance(schedule, Schedule):
        raise OptionError("schedule", schedule, "it must be a list of integers or an object of pooling.schedule")
    return schedule
