"""Training-free ways to pool that were tried beside the paper's: which tokens go, whom they join, how they merge.

All carry mass. Parts that won live in `zipbrain.pooling`; the others stay here, so that the comparison can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from zipbrain.pooling.grouping import take
from zipbrain.pooling.merges import MeanNorm, MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.methods.composition import Composition, Match, MostSimilar, PivotSplit, RandomSplit, Split
from zipbrain.pooling.methods.twins import ClosePairs
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import float32_product, highest, largest
from zipbrain.pooling.tokens import Tokens
from zipbrain.pooling.ward import cheapest_partner

_GOLDEN = 0.6180339887498949
_NEVER = 1e30


def masses(tokens: Tokens) -> Tensor:
    """(B, N): how many original tokens each unprotected one stands for."""
    if tokens.mass is None:
        return torch.ones(tokens.x.shape[0], tokens.count, device=tokens.x.device)
    return tokens.unprotected(tokens.mass, 1).float()


def first(score: Tensor, r: int) -> Tensor:
    """Mark the r lowest scores (B, N), ties to the lower index."""
    order = torch.argsort(score, dim=1, stable=True)[:, :r]
    return torch.zeros_like(score, dtype=torch.bool).scatter(1, order, True)


def spread(n: int, device: torch.device, shift: float = 0.0) -> Tensor:
    """(n,): multiples of the golden ratio, modulo 1: any first few of them are evenly spread."""
    return ((torch.arange(n, device=device, dtype=torch.float64) * _GOLDEN + shift) % 1.0).float()


def harmonic(a: Tensor, b: Tensor, power: float) -> Tensor:
    """What Ward's method multiplies a squared distance with."""
    return (a * b / (a + b)) ** power


def distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Squared distances (B, R, M) of rows (B, R, F) and columns (B, M, F)."""
    product = float32_product(rows, columns.transpose(1, 2))
    return ((rows**2).sum(2)[:, :, None] + (columns**2).sum(2)[:, None] - 2 * product).clamp_min(0)


@register("try_lightest")
@dataclass(frozen=True)
class Lightest(Split):
    """The tokens of least mass go; among equals the evenly spread, the first, or those of the smallest norm."""

    tie: str = "spread"

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        mass = masses(tokens)
        if self.tie == "spread":
            tie = spread(tokens.count, mass.device).expand_as(mass)
        elif self.tie == "norm":
            length = spaces.length("x")
            tie = length / length.amax(1, keepdim=True).clamp_min(1e-20)
        else:
            tie = torch.linspace(0, 1, tokens.count, device=mass.device).expand_as(mass)
        return first(mass + 0.999 * tie, tokens.r)


@register("try_energy")
@dataclass(frozen=True)
class Energy(Split):
    """The tokens with the smallest mass ** a times norm ** b go."""

    a: float = 1.0
    b: float = 1.0
    space: str = "x"

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        return first(masses(tokens) ** self.a * spaces.length(self.space) ** self.b, tokens.r)


@register("try_pairs")
@dataclass(frozen=True)
class Pairs(Split):
    """The lighter token of each of the closest pairs goes; all pairs are looked at."""

    space: str = "x"
    raw: bool = False  # distances of vectors, or of unit vectors
    power: float = 1.0  # of the masses' share in the cost

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        mass = masses(tokens)
        rows = spaces.vectors(self.space) if self.raw else spaces.unit(self.space)
        cost = distances(rows, rows) * harmonic(mass[:, :, None], mass[:, None], self.power)
        weight = mass + 0.5 * spread(tokens.count, mass.device)
        lighter = weight[:, None, :] > weight[:, :, None]
        return first(cost.masked_fill(~lighter, _NEVER).amin(2), tokens.r)


@register("try_anchors")
@dataclass(frozen=True)
class Anchors(Split):
    """A few evenly spread tokens stay for certain; of the others those closest to one of them go. Linear in N."""

    share: float = 0.25
    raw: bool = True
    power: float = 1.0
    by_norm: bool = False

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        mass, n = masses(tokens), tokens.count
        count = min(n - tokens.r, max(1, round(n * self.share)))
        rows = spaces.vectors("x") if self.raw else spaces.unit("x")
        if self.by_norm:
            stay = torch.argsort(spaces.length("x"), dim=1, descending=True, stable=True)[:, :count]
        else:
            order = torch.argsort(spread(n, mass.device, 0.37 * tokens.layer), stable=True)[:count]
            stay = order.expand(len(mass), -1)
        cost = distances(rows, take(rows, stay)) * harmonic(mass[:, :, None], mass.gather(1, stay)[:, None], self.power)
        return first(cost.amin(2).scatter(1, stay, _NEVER), tokens.r)


@register("try_neighbours")
@dataclass(frozen=True)
class Neighbours(Split):
    """Only the token before in order is looked at: the next second of the same channel, mostly."""

    raw: bool = True

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        mass = masses(tokens)
        rows = spaces.vectors("x") if self.raw else spaces.unit("x")
        cost = ((rows[:, 1:] - rows[:, :-1]) ** 2).sum(2) * harmonic(mass[:, 1:], mass[:, :-1], 1.0)
        return first(torch.cat((torch.full_like(cost[:, :1], _NEVER), cost), dim=1), tokens.r)


@register("try_ward")
@dataclass(frozen=True)
class Ward(Match):
    """Join the token that makes the least sum of squares: near, and light."""

    space: str = "x"
    raw: bool = True
    power: float = 1.0

    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        mass, places = masses(tokens), source - tokens.leading
        rows = spaces.vectors(self.space) if self.raw else spaces.unit(self.space)
        cost = distances(take(rows, places), rows) + 1e-9
        cost = cost * harmonic(mass.gather(1, places)[:, :, None], mass[:, None], self.power)
        return cost.masked_fill(redundant[:, None], torch.inf).argmin(2) + tokens.leading


@register("try_near")
@dataclass(frozen=True)
class Near(Split):
    """Close pairs in several spaces side by side: "q k v" is the first Twins, "x q k v" scaled the second."""

    spaces: str = "q k v"
    scaled: bool = False  # every space divided by its own root mean square over the window, so that all count alike

    def __call__(self, tokens: Tokens, spaces: Spaces) -> Tensor:
        rows, mass = side_by_side(spaces, self.spaces, self.scaled), masses(tokens)
        order = (torch.arange(tokens.count, device=rows.device, dtype=torch.float64) * _GOLDEN) % 1.0
        cost = cheapest_partner(rows, mass, mass + 0.5 * order.to(rows.dtype))
        return highest(-cost, tokens.r, 1 / largest(cost))


@register("try_near_match")
@dataclass(frozen=True)
class NearMatch(Match):
    """Join the token that costs least in the same spaces."""

    spaces: str = "q k v"
    scaled: bool = False

    def __call__(self, tokens: Tokens, spaces: Spaces, redundant: Tensor, source: Tensor) -> Tensor:
        mass, places = masses(tokens), source - tokens.leading
        rows = side_by_side(spaces, self.spaces, self.scaled)
        cost = distances(take(rows, places), rows) + 1e-9
        cost = cost * harmonic(mass.gather(1, places)[:, :, None], mass[:, None], 1.0)
        return cost.masked_fill(redundant[:, None], torch.inf).argmin(2) + tokens.leading


@register("try_first_twins")
@dataclass(frozen=True)
class FirstTwins(Composition):
    """Twins in its first version: what docs/notes/experiments.md calls Twins."""

    split: Split = field(default_factory=ClosePairs)
    merge: MergeRule = field(default_factory=MeanNorm)

    @property
    def mass(self) -> Mass:
        return Mass(attention=True, merge=True, readout=True)


def side_by_side(spaces: Spaces, names: str, scaled: bool) -> Tensor:
    """Vectors of several spaces, one after the other: (B, N, F). "ux" is x with its mean taken out, at unit length."""
    parts = []
    for name in names.split():
        if name == "ux":
            part = torch.nn.functional.layer_norm(spaces.vectors("x"), spaces.vectors("x").shape[-1:])
        else:
            part = spaces.vectors(name).flatten(2)
        if scaled:
            centred = part - part.mean(1, keepdim=True)
            part = part / centred.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12) / part.shape[2] ** 0.5
        parts.append(part)
    return torch.cat(parts, 2)


def relatives() -> dict[str, Method]:
    """The first Twins and what is close to it: the second round, after the 60 of `candidates`."""
    found: dict[str, Method] = {}
    for names in (
        "q k v",
        "k v",
        "k",
        "v",
        "x",
        "ux",
        "x q k v",
        "ux q k v",
        "ux k v",
        "qh kh vh",
        "kh vh",
        "ux kh vh",
    ):
        for scaled in (False, True) if " " in names else (False,):
            name = f"{names}{', scaled' * scaled}"
            split = Near(names, scaled)
            found[f"{name} / x / mean_norm"] = Composition(split, MostSimilar("x"), "mean_norm")
            found[f"{name} / same / mean_norm"] = Composition(split, NearMatch(names, scaled), "mean_norm")
            if names in ("q k v", "ux q k v", "qh kh vh"):
                found[f"{name} / same / mean"] = Composition(split, NearMatch(names, scaled), "mean")
    for name in ("random", "lightest, spread", "lightest, norm", "pivots x q 0.5"):
        found[f"{name} / x / mean_norm"] = candidates()[f"{name} / x / mean_norm"]
    found["lightest, spread / same (ux q k v) / mean_norm"] = Composition(
        Lightest("spread"), NearMatch("ux q k v", True), "mean_norm"
    )
    return found


def candidates() -> dict[str, Method]:
    """Everything that is tried, by name: split / match / merge."""
    splits: dict[str, Split] = {
        "random": RandomSplit(0),
        "pivots x q 0.5": PivotSplit("x", "q", 0.5),
        "pivots x x 0.5": PivotSplit("x", "x", 0.5),
        "pivots k k 0.9": PivotSplit("k", "k", 0.9),
        "lightest, spread": Lightest("spread"),
        "lightest, norm": Lightest("norm"),
        "norm": Energy(0, 1),
        "mass x norm": Energy(1, 1),
        "mass x norm^2": Energy(1, 2),
        "root mass x norm": Energy(0.5, 1),
        "pairs, cosine": Pairs("x", False, 0),
        "pairs, Ward unit": Pairs("x", False, 1),
        "pairs, Ward": Pairs("x", True, 1),
        "pairs, Ward root": Pairs("x", True, 0.5),
        "pairs, Ward k": Pairs("k", True, 1),
        "anchors 1/8": Anchors(0.125),
        "anchors 1/4": Anchors(0.25),
        "anchors 1/2": Anchors(0.5),
        "norm anchors 1/8": Anchors(0.125, by_norm=True),
        "norm anchors 1/4": Anchors(0.25, by_norm=True),
        "norm anchors 1/2": Anchors(0.5, by_norm=True),
        "neighbours": Neighbours(),
    }  # fmt: skip
    found: dict[str, Method] = {}
    for name, split in splits.items():
        found[f"{name} / x / mean_norm"] = Composition(split, MostSimilar("x"), "mean_norm")
        found[f"{name} / Ward / mean_norm"] = Composition(split, Ward(), "mean_norm")
    for name in ("random", "pivots x q 0.5", "mass x norm", "lightest, norm", "pairs, Ward", "anchors 1/4"):
        for merge in ("largest_norm", "mean"):
            match = Ward() if name in ("pairs, Ward", "anchors 1/4") else MostSimilar("x")
            found[f"{name} / {'Ward' if isinstance(match, Ward) else 'x'} / {merge}"] = Composition(
                splits[name], match, merge
            )
    for name in ("mass x norm", "lightest, norm"):
        for space in ("k", "v"):
            found[f"{name} / {space} / mean_norm"] = Composition(splits[name], MostSimilar(space), "mean_norm")
    return found
