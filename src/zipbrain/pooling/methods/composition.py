"""Split, match, merge: the three questions as exchangeable parts, so that an ablation is another composition."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import DROPPED, Grouping, take
from zipbrain.pooling.merges import LargestNorm, MergeRule, Prune, merge_rule
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.randomness import random_integers
from zipbrain.pooling.registry import Part, build, register
from zipbrain.pooling.spaces import Spaces, canonical_space, source_of
from zipbrain.pooling.steps import (
    RESOLUTION,
    exact_share,
    highest,
    match_tokens,
    partition,
    pivot_count,
    score_redundancy,
    select_pivots,
    select_redundant,
)
from zipbrain.pooling.tokens import Tokens


class Split(Part):
    """Which unprotected tokens are redundant."""

    role = "split"

    @property
    def reads(self) -> frozenset[str]:
        """Which of q, k, v the split needs."""
        return frozenset()

    def macs(self, n: int, r: int, shape: BlockShape) -> int:
        """Multiply-adds of its matrix products, for r redundant tokens among n."""
        return 0

    @abstractmethod
    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        """Mark the redundant tokens: bool (B, N), exactly ``tokens.r`` per row."""


class Match(Part):
    """Which kept token every redundant one joins."""

    role = "match"

    @property
    def reads(self) -> frozenset[str]:
        """Which of q, k, v the match needs."""
        return frozenset()

    def macs(self, n: int, r: int, shape: BlockShape) -> int:
        """Multiply-adds of its matrix products, for r redundant tokens among n."""
        return 0

    @abstractmethod
    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        """Target of every source (B, r): index of a token that is not ``redundant`` (B, N), or -1."""


@register("pivots")
@dataclass(frozen=True)
class PivotSplit(Split):
    """Steps 1 and 2 of the paper: norm pivots in z1, redundancy to the mean pivot in z2; pivots always stay."""

    z1: str = "x"
    z2: str = "q"
    rho: float = 0.5
    share: Fraction = field(init=False, repr=False, compare=False)  # rho, exactly

    def __post_init__(self) -> None:
        object.__setattr__(self, "z1", canonical_space("z1", self.z1))
        object.__setattr__(self, "z2", canonical_space("z2", self.z2))
        object.__setattr__(self, "share", exact_share("rho", self.rho))
        object.__setattr__(self, "rho", float(self.share))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({source_of(self.z1), source_of(self.z2)} - {"x"})

    def macs(self, n: int, r: int, shape: BlockShape) -> int:
        return 2 * n * shape.space_width(self.z2)  # the mean pivot, and every token's product with it

    def pivots(self, tokens: Tokens, spaces: Spaces) -> tuple[Tensor, int]:
        """Step 1: which tokens are pivots (bool (B, N)) and how many per row."""
        count = pivot_count(tokens.count, tokens.r, self.share)
        return select_pivots(spaces.length(self.z1), count), count

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        pivots, count = self.pivots(tokens, spaces)
        if count == tokens.count - tokens.r:  # nothing is left to choose: all others are redundant (rho = 1)
            return ~pivots
        score = score_redundancy(spaces.unit(self.z2), pivots)
        return select_redundant(score, count, pivots, tokens.r)


@register("regular_pivots")
@dataclass(frozen=True)
class RegularPivotSplit(PivotSplit):
    """The paper's ablation: pivots define the prototype but may become redundant like any other token."""

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        pivots, count = self.pivots(tokens, spaces)
        return select_redundant(score_redundancy(spaces.unit(self.z2), pivots), count, None, tokens.r)


@register("random_split")
@dataclass(frozen=True)
class RandomSplit(Split):
    """The paper's ablation: any r tokens. Depends on (seed, layer, N), the same for every window and device."""

    seed: int = 0

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        draw = random_integers(self.seed, tokens.layer, tokens.count, 1, tokens.count, tokens.x.device)
        return highest(draw.double().unsqueeze(0), tokens.r, RESOLUTION).expand(tokens.x.shape[0], -1)


@register("most_similar")
@dataclass(frozen=True)
class MostSimilar(Match):
    """Step 3 of the paper: the kept token with the largest cosine in z3."""

    z3: str = "x"

    def __post_init__(self) -> None:
        object.__setattr__(self, "z3", canonical_space("z3", self.z3))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({source_of(self.z3)} - {"x"})

    def macs(self, n: int, r: int, shape: BlockShape) -> int:
        return r * n * shape.space_width(self.z3)

    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        unit = spaces.unit(self.z3)
        rows = take(unit, source - tokens.leading if tokens.leading else source)
        target = match_tokens(rows, unit, redundant)[0]
        return target + tokens.leading if tokens.leading else target


@register("random_match")
@dataclass(frozen=True)
class RandomMatch(Match):
    """The paper's ablation: any kept token. Depends on (seed, layer, N), the same on every device."""

    seed: int = 0

    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        unique = tokens.count - tokens.r
        open_ones, _ = partition(redundant, tokens.r)  # (B, N - r), ascending
        draw = random_integers(self.seed, tokens.layer, tokens.count, 2, tokens.r, source.device) % unique
        return open_ones[:, draw] + tokens.leading


@register("drop")
@dataclass(frozen=True)
class Drop(Match):
    """The paper's ablation, pruning instead of pooling: redundant tokens are dropped."""

    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        return torch.full_like(source, DROPPED)


@register("composition")
@dataclass(frozen=True)
class Composition(Method):
    """Any split, match and merge put together.

    Parameters
    ----------
    split : Split
        Which tokens are redundant.
    match : Match
        Which kept token each joins.
    merge : merge rule
        How a group's features combine.
    """

    title = "composition"

    split: Split = field(default_factory=PivotSplit)
    match: Match = field(default_factory=MostSimilar)
    merge: MergeRule = field(default_factory=LargestNorm)

    def __post_init__(self) -> None:
        for name, kind in (("split", Split), ("match", Match)):
            given = getattr(self, name)
            part = build(given, name, kind) if isinstance(given, str | dict) else given
            if not isinstance(part, kind):
                raise OptionError(name, given, f"it must be a {kind.__name__}")
            object.__setattr__(self, name, part)
        object.__setattr__(self, "merge", merge_rule(self.merge))

    @property
    def reads(self) -> frozenset[str]:
        return self.split.reads | self.match.reads

    @property
    def merges(self) -> bool:
        return not self.drops

    @property
    def drops(self) -> bool:
        return isinstance(self.match, Drop)

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return self.split.macs(n, r, shape) + self.match.macs(n, r, shape)

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return Prune() if self.drops else self.merge

    def __call__(self, tokens: Tokens) -> Grouping:
        spaces = Spaces(tokens)
        redundant = self.split(tokens, spaces)
        kept, source = partition(redundant, tokens.r, tokens.leading, tokens.trailing)
        target = self.match(tokens, spaces, redundant, source)
        return Grouping(kept, source, target, tokens.total, drops=self.drops)
