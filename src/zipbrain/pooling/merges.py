"""How features combine: merge rules, each a small object that turns (B, T, D) and a `Grouping` into (B, M, D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.pooling.grouping import Grouping, take
from zipbrain.pooling.registry import Part, build, register
from zipbrain.pooling.spaces import at_least_float32

VANISHED = 2.0**20  # a sum this many times shorter than its longest member has no direction of its own


@runtime_checkable
class MergeRule(Protocol):
    """Anything that combines the features of each group."""

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        """Combine ``x`` (B, T, D) into (B, M, D); ``weight`` (B, T) is the mass of every token or None."""
        ...


@register("sum")
@dataclass(frozen=True)
class Sum(Part):
    """Sum of the group's members. Conserves mass; EViT's fused token is a sum weighted by attention."""

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        sources = grouping.take_source(x)
        if grouping.weight is not None:
            sources = sources * grouping.weight.unsqueeze(2).to(x.dtype)
        return group_sum(grouping, grouping.take_kept(x), sources)


@register("mean")
@dataclass(frozen=True)
class Mean(Part):
    """Mean of the group's members (the paper's "simple merge"), weighted by mass where that is given (ToMe's merge).

    Sources that a grouping weighs (EViT's fused ones) enter by that weight too.
    """

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        work = at_least_float32(x)
        ones = torch.ones_like(work[:, :, :1])
        weights = ones if weight is None else weight.unsqueeze(2).to(work.dtype)
        kept_weight, source_weight = grouping.take_kept(weights), grouping.take_source(weights)
        if grouping.weight is not None:
            source_weight = source_weight * grouping.weight.unsqueeze(2).to(work.dtype)
        if weight is None and grouping.weight is None:
            kept, sources = grouping.take_kept(work), grouping.take_source(work)
        else:
            kept, sources = grouping.take_kept(work) * kept_weight, grouping.take_source(work) * source_weight
        count = group_sum(grouping, kept_weight, source_weight).clamp_min(torch.finfo(work.dtype).tiny)
        return (group_sum(grouping, kept, sources) / count).to(x.dtype)


WeightedMean = Mean  # its other name, ToMe's


@register("max")
@dataclass(frozen=True)
class Max(Part):
    """Largest value of the group's members, feature by feature."""

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        kept = grouping.take_kept(x)
        if grouping.appended:
            kept = kept.masked_fill((grouping.kept >= grouping.tokens).unsqueeze(2), -torch.inf)
        return group_max(grouping, kept, grouping.take_source(x))


@register("largest_norm")
@dataclass(frozen=True)
class LargestNorm(Part):
    """Step 4 of the paper: mean direction of the group, rescaled to its largest member's norm.

    With mass the direction is the mass-weighted mean's. A token without partners is unchanged. A group whose sum
    vanishes takes its kept token's direction.
    """

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        return _keep_norm(x, grouping, weight, largest=True)


@register("mean_norm")
@dataclass(frozen=True)
class MeanNorm(Part):
    """As `LargestNorm`, but rescaled to the (mass-weighted) mean of the members' norms.

    The largest norm inflates as merges pile up over layers; the mean does not.
    """

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        return _keep_norm(x, grouping, weight, largest=False)


@register("prune")
@dataclass(frozen=True)
class Prune(Part):
    """Redundant tokens are dropped; the kept ones are unchanged."""

    def __call__(self, x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
        return grouping.take_kept(x)


def merge_rule(rule: object) -> MergeRule:
    """Return the merge rule for a name, a dictionary or an object that already is one."""
    if isinstance(rule, str | dict):
        rule = build(rule, "merge", role=Part.role)
    is_other = isinstance(rule, type) or (isinstance(rule, Part) and rule.role != Part.role)
    if is_other or not isinstance(rule, MergeRule):
        raise OptionError("merge", rule, "a merge rule is a name such as 'largest_norm' or an object of pooling.merges")
    return rule


# -- sums and maxima over groups ---------------------------------------------------------------------------------------


def group_sum(grouping: Grouping, kept: Tensor, sources: Tensor) -> Tensor:
    """Add to every kept row (B, M, D) the source rows (B, R, D) that joined it."""
    if grouping.small:  # a one-hot product over the sources alone: deterministic and free of scatters
        return torch.baddbmm(kept, grouping.membership().to(kept.dtype), sources)
    place = grouping.destination().unsqueeze(2).expand_as(sources)
    room = torch.cat((kept, torch.zeros_like(kept[:, :1])), dim=1)  # one more row for what is dropped
    return room.scatter_add(1, place, sources)[:, :-1]


def group_max(grouping: Grouping, kept: Tensor, sources: Tensor) -> Tensor:
    """Largest of every kept value (B, M, D) and the source values (B, R, D) that joined it."""
    if sources.shape[1] == 0:
        return kept
    if grouping.small and kept.shape[2] == 1:
        joined = torch.where(grouping.membership(), sources.transpose(1, 2), -torch.inf)  # (B, M, R)
        return torch.maximum(kept, joined.amax(2, keepdim=True))
    place = grouping.destination().unsqueeze(2).expand_as(sources)
    room = torch.cat((kept, torch.zeros_like(kept[:, :1])), dim=1)
    return room.scatter_reduce(1, place, sources, reduce="amax")[:, :-1]


def _keep_norm(x: Tensor, grouping: Grouping, weight: Tensor | None, largest: bool) -> Tensor:
    if grouping.source.shape[1] == 0:
        return grouping.take_kept(x)
    if grouping.small and not grouping.appended:
        return _keep_norm_at_sources(x, grouping, weight, largest)
    return _keep_norm_everywhere(x, grouping, weight, largest)


def _keep_norm_everywhere(x: Tensor, grouping: Grouping, weight: Tensor | None, largest: bool) -> Tensor:
    """The rule as it is written, on every kept token."""
    work = at_least_float32(x)
    kept, sources = grouping.take_kept(work), grouping.take_source(work)
    kept_norm = torch.linalg.vector_norm(kept, dim=2, keepdim=True)
    source_norm = torch.linalg.vector_norm(sources, dim=2, keepdim=True)
    weights = torch.ones_like(work[:, :, :1]) if weight is None else weight.unsqueeze(2).to(work.dtype)
    kept_weight, source_weight = grouping.take_kept(weights), grouping.take_source(weights)
    total = group_sum(grouping, kept * kept_weight, sources * source_weight)
    if largest:
        length = group_max(grouping, kept_norm, source_norm)
    else:
        mass = group_sum(grouping, kept_weight, source_weight)
        length = group_sum(grouping, kept_norm * kept_weight, source_norm * source_weight) / mass
    alone = group_sum(grouping, torch.zeros_like(kept_norm), torch.ones_like(source_norm)) == 0
    direction, found = _direction(total, kept, kept_norm, length)
    return torch.where(alone, kept, direction * (length / found)).to(x.dtype)


def _keep_norm_at_sources(x: Tensor, grouping: Grouping, weight: Tensor | None, largest: bool) -> Tensor:
    """The same, computed on the R sources and their targets only, then added to the kept tokens as a difference.

    R is small beside M in every layer but a few, and this way the M x D features are touched twice instead of ten
    times. Members of one group compute the same difference; each contributes its share.
    """
    removed = grouping.source.shape[1]
    # A dropped source belongs to no kept token: `membership` leaves it out.
    target = grouping.target.clamp_min(0) if grouping.drops else grouping.target
    both = torch.cat((grouping.source, target), dim=1)
    rows = at_least_float32(take(x, both))  # (B, 2R, D)
    norms = torch.linalg.vector_norm(rows, dim=2, keepdim=True)
    source, kept = rows[:, :removed], rows[:, removed:]
    source_norm, kept_norm = norms[:, :removed], norms[:, removed:]
    same = target.unsqueeze(2) == target.unsqueeze(1)  # (B, R, R): joined the same token
    if grouping.drops:
        same = same & (grouping.target >= 0).unsqueeze(1)
    share = same.to(rows.dtype)
    if weight is None:
        total = torch.baddbmm(kept, share, source)
    else:
        masses = take(weight.unsqueeze(2), both).to(rows.dtype)
        source_mass, kept_mass = masses[:, :removed], masses[:, removed:]
        total = torch.baddbmm(kept * kept_mass, share, source * source_mass)
    if largest:
        length = torch.maximum(torch.where(same, source_norm.transpose(1, 2), 0.0).amax(2, keepdim=True), kept_norm)
    elif weight is None:
        length = torch.baddbmm(kept_norm, share, source_norm) / (1 + share.sum(2, keepdim=True))
    else:
        length = torch.baddbmm(kept_norm * kept_mass, share, source_norm * source_mass)
        length = length / torch.baddbmm(kept_mass, share, source_mass)
    direction, found = _direction(total, kept, kept_norm, length)
    change = direction * (length / found) - kept
    hits = grouping.membership() / share.sum(2).clamp_min(1).unsqueeze(1)  # (B, M, R)
    return grouping.take_kept(x).baddbmm_(hits.to(x.dtype), change.to(x.dtype))


def _direction(total: Tensor, kept: Tensor, kept_norm: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a group and its norm; the kept token and its norm where the sum vanishes."""
    found = torch.linalg.vector_norm(total, dim=2, keepdim=True)
    vanished = found * VANISHED < length
    norm = torch.where(vanished, kept_norm, found).clamp_min(torch.finfo(found.dtype).tiny)
    return torch.where(vanished, kept, total), norm
